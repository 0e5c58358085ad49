#!/usr/bin/env bash
# Runs everything that needs a CUDA device, in about ten minutes: tests, then benchmarks of bench/.
#
#   pip install -e '.[dev]' trl liger-kernel
#   bash scripts/gpu.sh | tee gpu.txt
set -euo pipefail
cd "$(dirname "$0")/.."

if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "torch finds no CUDA device: run this on a machine with a GPU." >&2
    exit 2
fi
python -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())'
python -m pytest -q tests/gpu

# Output layer: 4,096 tokens, compared with all logits at once and Liger's kernel; memory of 32,768.
python bench/output_layer.py --device cuda --tokens 4096 --features 3584
python bench/output_layer.py --device cuda --tokens 32768 --features 3584 --memory --pieces-only

# Shared prefixes: 64 rollouts of 2,360 + 400 tokens in a model with the shape of Qwen2.5-0.5B.
python bench/prefixes.py --device cuda --features 896 --layers 24 --words 151936 --prompt 2360 --answer 400

# A step compared with TRL's, and the local engine compared with generate.
python bench/train.py --features 1024 --layers 12 --words 32000 --prompt 944 --answer 160 --micro-tokens 16384
python bench/train.py --step sft --features 1024 --layers 12 --words 32000 --prompt 944 --answer 160 --micro-tokens 16384
python bench/engine.py --device cuda
