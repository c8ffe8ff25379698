#!/usr/bin/env bash
# How much of its time a GPU computes in BERT pretraining (with ncu: how much of its cores), at each batch size.
#
#   bash profiling/measure_compute_util_pretrain.sh [nsys|ncu|nvprof|torch] [start] [stop]
#
# The iterations [start, stop) are recorded, 10 and 13 if not given; the profiler is torch if not given, which needs no
# tool. `bertbench doctor` says which profilers can run here. At the end the table is printed, one row per batch size
# and rank: compute_utilization.csv in OUT, or core_utilization.csv for ncu (nvprof's files are kept, not analysed yet).
# Environment:
#   BATCH_SIZES      micro batches                              ("8 16 32 64")
#   DEVICES          device counts                              (1)
#   PRECISION        fp32 tf32 bf16 fp16 auto                   (auto)
#   PRESET           tiny mini small medium base large          (base)
#   SEQ_LEN          tokens per sequence                        (128)
#   DATA             folder of HDF5 shards, or synthetic        (synthetic)
#   OUT              run directory                              (runs/compute-util-pretrain-<profiler>)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.venv/bin:$PATH

profiler=${1:-torch} start=${2:-10} stop=${3:-13}
if [[ ! $profiler =~ ^(nsys|ncu|nvprof|torch)$ || ! $start =~ ^[0-9]+$ || ! $stop =~ ^[0-9]+$ || $# -gt 3 || $# -eq 2 ]]; then
    sed -n '2,17s/^# \{0,1\}//p' "$0"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
read -ra batch_sizes <<<"${BATCH_SIZES:-8 16 32 64}"
read -ra devices <<<"${DEVICES:-}"
out=${OUT:-runs/compute-util-pretrain-$profiler}
table=$out/compute_utilization.csv
[[ $profiler != ncu ]] || table=$out/core_utilization.csv

code=0
bertbench profile pretrain --profiler "$profiler" --start "$start" --stop "$stop" --preset "${PRESET:-base}" \
    --precisions "${PRECISION:-auto}" --seq-lens "${SEQ_LEN:-128}" --batch-sizes "${batch_sizes[@]}" \
    ${devices:+--devices "${devices[@]}"} --data "${DATA:-synthetic}" --out "$out" || code=$?
# 3: some batch sizes gave no profile, for example for lack of memory; the others stand in the table.
if [[ $code -ne 0 && $code -ne 3 ]]; then exit "$code"; fi
if [[ -s $table ]]; then
    printf '\n%s\n' "$table"
    cat "$table"
else
    printf '%s was not written\n' "$table" >&2
fi
exit "$code"
