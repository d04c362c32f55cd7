#!/usr/bin/env bash
# Measure on one GPU what docs/benchmarks.md says of GPUs, the most telling first, in 9 minutes at most.
#
#     bash benchmarks/gpu.sh [OUT]        # OUT: a folder for tables and logs; default benchmarks/results
#
# A case that does not end in its time is stopped, and the others go on: one line a case says how it ended. To try the
# script where there is no GPU: DEVICE=cpu QUICK=1 bash benchmarks/gpu.sh tables
set -u
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
device=${DEVICE:-cuda}
python=${PYTHON:-python}
began=$SECONDS
mkdir -p "$out"

case_of() { # NAME SECONDS COMMAND...
  local name=$1 most=$2 left=$((540 - (SECONDS - began)))
  shift 2
  if [ "$left" -lt 5 ]; then
    echo "not measured: $name (9 minutes are over)"
    return
  fi
  local from=$SECONDS code=0
  timeout --signal INT --kill-after 5 "$((most < left ? most : left))" "$@" >"$out/$name.log" 2>&1 || code=$?
  case $code in
    0) echo "measured: $name ($((SECONDS - from)) s)" ;;
    124 | 130 | 137) echo "not measured: $name (stopped after $((SECONDS - from)) s)" ;;
    *) echo "failed: $name (exit $code; $out/$name.log ends: $(tail -n 1 "$out/$name.log" | cut -c 1-200))" ;;
  esac
}

step() { # NAME SECONDS SHAPE TRAIN BATCH ROUNDS K...
  local name=$1 most=$2 shape=$3 train=$4 batch=$5 rounds=$6
  shift 6
  local length=128
  if [ -n "${QUICK:-}" ]; then shape=tiny batch=16 rounds=1 length=16; fi
  case_of "$name" "$most" "$python" benchmarks/step.py --shape "$shape" --train "$train" --k "$@" --batch "$batch" \
    --length "$length" --rounds "$rounds" --device "$device" --precision bf16 --out "$out"
}

memory() { # NAME SECONDS OPTIONS...
  local name=$1 most=$2 shape=llama-1b
  shift 2
  if [ -n "${QUICK:-}" ]; then shape=tiny; fi
  case_of "$name" "$most" "$python" benchmarks/memory.py --shape "$shape" --device "$device" --precision bf16 \
    --rows 8 --length 64 "$@"
}

if [ "$device" = cuda ]; then
  case_of tests 150 env CONFIDE_TEST_GPU=1 "$python" -m pytest -q tests/test_device.py tests/randomness/test_chacha_gpu.py
fi
step gpt2-lora 90 gpt2 lora 1024 5 10
step gpt2-full 60 gpt2 full 256 5 1 8
step llama-1b-lora 90 llama-1b lora 256 3 10
step llama-1b-full 120 llama-1b full 256 3 1 8
memory llama-1b-bf16 60
memory llama-1b-nf4 90 --quantise nf4
step gpt2-medium-lora 45 gpt2-medium lora 1024 5 10
step gpt2-large-lora 60 gpt2-large lora 1024 3 10
echo "in all $((SECONDS - began)) s; tables and logs: $out"
