#!/usr/bin/env bash
# One GPU, in under 6 minutes, nothing to download: the tests of tests/gpu; lanes of the small CNN and
# of CIFAR's ResNet-18 (samples/s, memory, share of the bf16 peak); a whole run of v14 on images of
# CIFAR's shape and its projected time for the published 100 epochs.
# Installs nothing. JSON goes to $OUT, else to runs/bench. Try it without a GPU: SMOKE=1.
#
#     bash bench/gpu.sh          # PYTHON=... for another interpreter than .venv's
#     SMOKE=1 bash bench/gpu.sh  # little of each on the CPU, the same path
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/bench}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
export PYTHONPATH="$PWD" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
mkdir -p "$out"

if [ -n "${SMOKE:-}" ]; then
    tests=(--collect-only)
    lanes=(--device cpu --models small_cnn --batches 8 --widths 1 2 --precisions fp32 bf16
        --samples 32 --blocks 1)
    whole=(--device cpu --precision fp32 --model small_cnn --feature-dim 128 --samples 300
        --epochs 1 --batch 32)
else
    nvidia-smi --query-gpu=name,driver_version,memory.used,utilization.gpu --format=csv
    "$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no CUDA device"' ||
        exit 1
    tests=()
    lanes=(--device cuda --models small_cnn resnet18 --batches 64 512 --widths 1 4 8 16
        --precisions fp32 bf16 --samples 8192 --blocks 3)
    whole=(--device cuda --precision bf16 --samples 50000 --epochs 10)
fi

# a limit on each part, and the others are made even if one fails or runs out of time; the last part
# is the shortest to lose
failed=0
timeout -k 10 120 "$python" bench/lanes.py "${lanes[@]}" --out "$out/gpu_lanes.json" || failed=1
timeout -k 10 130 "$python" bench/whole.py "${whole[@]}" --out "$out/gpu_whole.json" || failed=1
timeout -k 10 100 "$python" -m pytest tests/gpu -m gpu -p no:cacheprovider \
    ${tests[@]+"${tests[@]}"} || failed=1
exit "$failed"
