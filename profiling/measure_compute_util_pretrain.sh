#!/usr/bin/env bash
# How much of its time a GPU computes in BERT pretraining (with ncu: how much of its cores), at each batch size.
#
#   bash profiling/measure_compute_util_pretrain.sh [nsys|ncu|nvprof|torch] [start] [stop]
#
# The iterations [start, stop) are recorded, 10 and 13 if not given; the profiler is torch if not given, which needs no
# tool. `bertbench doctor` says which profilers can run here. The table at the end has a row per batch size and rank;
# compute_utilization.csv in OUT, or core_utilization.csv for ncu, has every column.
# Environment:
#   BATCH_SIZES      micro batches                              ("8 16 32 64")
#   DEVICES          device counts                              (1)
#   PRECISION        fp32 tf32 bf16 fp16 auto                   (auto)
#   PRESET           tiny mini small medium base large          (base)
#   SEQ_LEN          tokens per sequence                        (128)
#   DATA             folder of HDF5 shards, or synthetic        (synthetic)
#   OUT              run directory                              (runs/compute-util-pretrain-<profiler>)
set -euo pipefail
# shellcheck disable=SC2034 # what is sourced reads them
task=pretrain tokens=128 extra=()
# shellcheck source=profiling/measure_compute_util.sh
source "$(dirname "$0")/measure_compute_util.sh"
