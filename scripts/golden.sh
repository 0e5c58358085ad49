#!/usr/bin/env bash
# Executes the runs of scripts/golden.py with the code of a commit and of the working tree, and compares
# them. A change that only moves or renames code must end with "all numbers are equal".
#
#   bash scripts/golden.sh COMMIT [--keys FILE]
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# = 0 ]; then
    echo "usage: bash scripts/golden.sh COMMIT [--keys FILE]" >&2
    exit 2
fi
commit=$1
shift

python=python3
[ -x .venv/bin/python ] && python=$PWD/.venv/bin/python

work=$(mktemp -d)
trap 'git worktree remove --force "$work/before"; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/before" "$commit"
PYTHONPATH=$work/before/src "$python" scripts/golden.py "$work/old"
PYTHONPATH=$PWD/src "$python" scripts/golden.py "$work/new" --like "$work/old" "$@"
