#!/usr/bin/env bash
# GPT-2 124M on one GPU, synthetic tokens, in under 6 minutes: tokens/s and MFU in bf16 of our step
# under Plain and ZeRO 1, eager and compiled, beside the minimal loop; then ZeRO stages over Plain.
# Installs nothing. JSON goes to $OUT, else to runs/bench. Try it without a GPU: SMOKE=1.
#
#     bash bench/gpu_lm.sh          # PYTHON=... for another interpreter than .venv's
#     SMOKE=1 bash bench/gpu_lm.sh  # a tiny model in fp32 on the CPU, the same path
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/bench}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
export PYTHONPATH="$PWD" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
mkdir -p "$out"

if [ -n "${SMOKE:-}" ]; then
    device=(--device cpu --precision fp32)
    shape=(--layers 1 --width 32 --heads 2 --context 16 --vocab 64 --batch 2)
    turns=(--steps 1 --repeats 2 --warmup 1)
    wrapped=(--no-compile)
else
    nvidia-smi --query-gpu=name,driver_version,memory.used,utilization.gpu --format=csv
    "$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no CUDA device"'
    device=(--device cuda --precision bf16)
    # 50,304: GPT-2's vocabulary in steps of 64, in ours and in the minimal loop alike
    shape=(--layers 12 --width 768 --heads 12 --context 1024 --vocab 50304 --batch 16)
    turns=(--steps 10 --repeats 5 --warmup 5)
    wrapped=()
fi

# a limit on each part, and the second is made even if the first runs out of time
failed=0
timeout 240 "$python" bench/lm_step.py "${device[@]}" "${shape[@]}" "${turns[@]}" \
    ${wrapped[@]+"${wrapped[@]}"} --zero1 --no-default-model --out "$out/gpu_lm_step.json" || failed=1
ranks=${RANKS:-1}
timeout 110 "$python" -m torch.distributed.run --standalone --nproc_per_node="$ranks" \
    bench/lm_engines.py "${device[@]}" "${shape[@]}" "${turns[@]}" --engines plain,zero1 \
    --gpt2 --out "$out/gpu_lm_engines.json" || failed=1
exit "$failed"
