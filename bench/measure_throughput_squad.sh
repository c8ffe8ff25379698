#!/usr/bin/env bash
# Throughput of fine-tuning BERT on SQuAD at each batch size, on the GPUs in CUDA_VISIBLE_DEVICES (or on the CPU).
#
#   bash bench/measure_throughput_squad.sh [start] [stop]
#
# With start and stop the iterations [start, stop) are measured; without, warm-up is detected and measuring continues until
# the median is known to 1 %. A second call with the same OUT continues where the first one ended. Environment:
#   BATCH_SIZES      micro batches                              ("8 16 32 64")
#   DEVICES          device counts                              (1 2 4 ... up to every visible GPU)
#   PRECISION        fp32 tf32 bf16 fp16 auto                   (auto)
#   PRESET           tiny mini small medium base large          (base)
#   SEQ_LEN          tokens per window at most                  (384)
#   PADDING          longest: of each batch; fixed: SEQ_LEN     (longest)
#   IMPLEMENTATIONS  bertbench hf hf-trainer hf-compiled                   (bertbench)
#   DATA             features of bertbench data squad, or synthetic (windows as long as the dev set's)  (synthetic)
#   OUT              run directory                              (runs/throughput-squad)
set -euo pipefail
# shellcheck disable=SC2034 # what is sourced reads them
task=squad tokens=384 extra=(${PADDING:+--padding "$PADDING"})
# shellcheck source=bench/measure_throughput.sh
source "$(dirname "$0")/measure_throughput.sh"
