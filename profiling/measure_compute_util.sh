#!/usr/bin/env bash
# The body of measure_compute_util_<task>.sh, which says on top what it does and sets `task` and `tokens` (the default of
# SEQ_LEN), and `extra` options where it has any, before it reads this file.
set -euo pipefail
: "${task:?run profiling/measure_compute_util_pretrain.sh or profiling/measure_compute_util_squad.sh}" "${tokens:?}"
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.venv/bin:$PATH
command -v bertbench >/dev/null || { echo "$0: bertbench is not installed: run make setup in $root" >&2 && exit 127; }

profiler=${1:-torch} start=${2:-10} stop=${3:-13}
if [[ $# -eq 2 && $start =~ ^[0-9]+$ ]]; then echo "$0: a start without a stop: give both iterations, as in $profiler $start $((10#$start + 3))" >&2; fi
if [[ ! $profiler =~ ^(nsys|ncu|nvprof|torch)$ || ! $start =~ ^[0-9]+$ || ! $stop =~ ^[0-9]+$ || $# -gt 3 || $# -eq 2 ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
read -ra batch_sizes <<<"${BATCH_SIZES:-8 16 32 64}"
read -ra devices <<<"${DEVICES:-}"
exec bertbench profile "$task" --profiler "$profiler" --start "$start" --stop "$stop" --preset "${PRESET:-base}" \
    --precisions "${PRECISION:-auto}" --seq-lens "${SEQ_LEN:-$tokens}" --batch-sizes "${batch_sizes[@]}" \
    ${devices:+--devices "${devices[@]}"} ${extra:+"${extra[@]}"} --data "${DATA:-synthetic}" \
    --out "${OUT:-runs/compute-util-$task-$profiler}"
