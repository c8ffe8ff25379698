#!/usr/bin/env bash
# The body of measure_compute_util_<task>.sh, which says on top what it does and sets `task` and `tokens` (the default of
# SEQ_LEN), and `extra` options where it has any, before it reads this file.
set -euo pipefail
: "${task:?run profiling/measure_compute_util_pretrain.sh or profiling/measure_compute_util_squad.sh}" "${tokens:?}"
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.venv/bin:$PATH

profiler=${1:-torch} start=${2:-10} stop=${3:-13}
if [[ ! $profiler =~ ^(nsys|ncu|nvprof|torch)$ || ! $start =~ ^[0-9]+$ || ! $stop =~ ^[0-9]+$ || $# -gt 3 || $# -eq 2 ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
read -ra batch_sizes <<<"${BATCH_SIZES:-8 16 32 64}"
read -ra devices <<<"${DEVICES:-}"
out=${OUT:-runs/compute-util-$task-$profiler}
table=$out/compute_utilization.csv
[[ $profiler != ncu ]] || table=$out/core_utilization.csv

code=0
bertbench profile "$task" --profiler "$profiler" --start "$start" --stop "$stop" --preset "${PRESET:-base}" \
    --precisions "${PRECISION:-auto}" --seq-lens "${SEQ_LEN:-$tokens}" --batch-sizes "${batch_sizes[@]}" \
    ${devices:+--devices "${devices[@]}"} ${extra:+"${extra[@]}"} --data "${DATA:-synthetic}" --out "$out" ||
    code=$?
# 3: some batch sizes gave no profile, for example for lack of memory; the others are in the table.
if [[ $code -ne 0 && $code -ne 3 ]]; then exit "$code"; fi
if [[ -s $table ]]; then
    printf '\n%s\n' "$table"
    cat "$table"
else
    printf '%s was not written\n' "$table" >&2
fi
exit "$code"
