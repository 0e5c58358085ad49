#!/bin/bash
# A run on all machines of a Slurm job: sbatch --nodes=2 --gres=gpu:8 deploy/slurm.sh RECIPE KEY=VALUE ... --out FOLDER
# With SEARCH_INDEX=FOLDER, written by 'fieldcraft index', the first machine also serves this index to the run.
#SBATCH --job-name=fieldcraft
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# All nodes know each other by this token.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="${RAY_AUTH_TOKEN:-$(openssl rand -hex 32)}"
port="${RAY_PORT:-6379}"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="$(srun --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" hostname --ip-address | cut -d' ' -f1)"

srun --nodes=1 --ntasks=1 --overlap --nodelist="${hosts[0]}" \
    ray start --head --node-ip-address="$head" --port="$port" --block &
for host in "${hosts[@]:1}"; do
    # It tries again until the head is there.
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$host" \
        bash -c "until ray start --address=$head:$port --block; do sleep 2; done" &
done

if [ -n "${SEARCH_INDEX:-}" ]; then
    search="http://$head:${SEARCH_PORT:-8000}"
    srun --nodes=1 --ntasks=1 --overlap --nodelist="${hosts[0]}" bash -c \
        'while true; do fieldcraft serve search --index "$0" --host "$1" --port "$2"; sleep 2; done' \
        "$SEARCH_INDEX" "$head" "${SEARCH_PORT:-8000}" &
    until curl --silent --fail --output /dev/null "$search/health"; do sleep 2; done
    set -- "$1" "search.url=$search" "${@:2}"
fi

export RAY_ADDRESS="$head:$port"
srun --nodes=1 --ntasks=1 --overlap --nodelist="${hosts[0]}" bash -c \
    'until [ "$(ray status 2>/dev/null | grep -c " node_")" -ge "$0" ]; do sleep 2; done; fieldcraft run "$@"' \
    "${#hosts[@]}" "$@"
