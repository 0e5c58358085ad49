#!/usr/bin/env bash
# Runs the tests N times in different random orders, concurrently with M busy processes. No test may
# depend on the order or on the speed of the machine. The last line counts the failed runs; for each
# failure, the seed of its order is printed and its output is kept.
#
#   bash scripts/repeat.sh N M [arguments of pytest]
#   bash scripts/repeat.sh 5 2 tests/engine
set -euo pipefail
cd "$(dirname "$0")/.."

if ! [[ "${1-}" =~ ^[1-9][0-9]*$ && "${2-}" =~ ^[0-9]+$ ]]; then
    echo "usage: bash scripts/repeat.sh RUNS BUSY_PROCESSES [arguments of pytest]" >&2
    exit 2
fi
runs=$1 busy=$2
shift 2

python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python

for ((i = 0; i < busy; i++)); do
    "$python" -c 'while True: pass' &
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

failed=0
for ((run = 1; run <= runs; run++)); do
    seed=$RANDOM
    log=$(mktemp)
    echo "run $run of $runs: --random-order-seed=$seed"
    if OMP_NUM_THREADS=1 "$python" -m pytest -q -n auto --dist worksteal \
        --random-order-bucket=module --random-order-seed="$seed" "$@" >"$log" 2>&1; then
        tail -n 1 "$log"
        rm "$log"
    else
        failed=$((failed + 1))
        grep -E '^(FAILED|ERROR) |(passed|failed|error)' "$log" | tail -n 20
        echo "its output: $log"
    fi
done
echo "$failed of $runs runs failed"
[ "$failed" = 0 ]
