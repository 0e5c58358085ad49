#!/usr/bin/env bash
# Tests the built wheel in fresh environments: each given Python, with the newest and the lowest versions
# that pyproject.toml allows. The tests import the wheel, never the checkout. The last line counts the
# failed environments; their output is kept.
#
#   PATTERN=tests/config bash scripts/matrix.sh 3.11 3.12 3.13      # needs uv; PATTERN: a subset of the tests
#
# UV_TORCH_BACKEND=cpu installs the CPU build of torch, which is smaller.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# = 0 ] || ! command -v uv >/dev/null; then
    echo "usage: bash scripts/matrix.sh PYTHON ..., as in 3.11 3.13; it needs uv (pip install uv)" >&2
    exit 2
fi

place=$(mktemp -d)
git clone -q . "$place/checkout"
uv build -q --wheel --out-dir "$place" .
wheel=$(echo "$place"/*.whl)

failed=0
for version in "$@"; do
    for resolution in highest lowest-direct; do
        env=$place/$version-$resolution
        log=$place/$version-$resolution.log
        versions=$env.txt
        uv venv -q --python "$version" "$env"
        # Resolve from pyproject.toml, because the dependencies of a wheel are not direct ones.
        if uv pip compile -q pyproject.toml --extra dev --python-version "$version" \
            --resolution "$resolution" -o "$versions" >"$log" 2>&1 &&
            VIRTUAL_ENV=$env uv pip install -q -r "$versions" >>"$log" 2>&1 &&
            VIRTUAL_ENV=$env uv pip install -q --no-deps "$wheel" >>"$log" 2>&1 &&
            (cd "$place/checkout" && OMP_NUM_THREADS=1 "$env/bin/python" -m pytest -q -n auto \
                --dist worksteal ${PATTERN-}) >>"$log" 2>&1; then
            echo "Python $version, $resolution versions: $(tail -n 1 "$log")"
            rm -rf "$env"
        else
            failed=$((failed + 1))
            echo "Python $version, $resolution versions failed; its output: $log"
            grep -E '^(FAILED|ERROR) |(passed|failed|error)' "$log" | tail -n 20 || true
        fi
    done
done
echo "$failed of $((2 * $#)) environments failed"
[ "$failed" = 0 ]
