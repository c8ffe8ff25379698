#!/usr/bin/env bash
# Throughput of BERT pretraining at each batch size, on the GPUs in CUDA_VISIBLE_DEVICES (or on the CPU).
#
#   bash bench/measure_throughput_pretrain.sh [start] [stop]
#
# With start and stop the iterations [start, stop) are measured; without, warm-up is detected and measuring continues until
# the median is known to 1 %. A second call with the same OUT continues where the first one ended. Environment:
#   BATCH_SIZES      micro batches                              ("8 16 32 64")
#   DEVICES          device counts                              (1 2 4 ... up to every visible GPU)
#   PRECISION        fp32 tf32 bf16 fp16 auto                   (auto)
#   PRESET           tiny mini small medium base large          (base)
#   SEQ_LEN          tokens per sequence                        (128)
#   IMPLEMENTATIONS  bertbench hf hf-trainer hf-compiled                   (bertbench)
#   DATA             folder of HDF5 shards, or synthetic        (synthetic)
#   OUT              run directory                              (runs/throughput-pretrain)
set -euo pipefail
# shellcheck disable=SC2034 # what is sourced reads them
task=pretrain tokens=128 extra=()
# shellcheck source=bench/measure_throughput.sh
source "$(dirname "$0")/measure_throughput.sh"
