#!/usr/bin/env bash
# The body of measure_throughput_<task>.sh, which says on top what it does and sets `task` and `tokens` (the default of
# SEQ_LEN), and `extra` options where it has any, before it reads this file.
set -euo pipefail
: "${task:?run bench/measure_throughput_pretrain.sh or bench/measure_throughput_squad.sh}" "${tokens:?}"
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.venv/bin:$PATH
command -v bertbench >/dev/null || { echo "$0: bertbench is not installed: run make setup in $root" >&2 && exit 127; }

if [[ $# -eq 1 && $1 =~ ^[0-9]+$ ]]; then echo "$0: a start without a stop: give both iterations, as in $1 $((10#$1 + 10))" >&2; fi
if [[ ! ${1:-0} =~ ^[0-9]+$ || ! ${2:-0} =~ ^[0-9]+$ || $# -gt 2 || $# -eq 1 ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
read -ra batch_sizes <<<"${BATCH_SIZES:-8 16 32 64}"
read -ra implementations <<<"${IMPLEMENTATIONS:-bertbench}"
read -ra devices <<<"${DEVICES:-}"
exec bertbench throughput "$task" --preset "${PRESET:-base}" --precisions "${PRECISION:-auto}" \
    --seq-lens "${SEQ_LEN:-$tokens}" --batch-sizes "${batch_sizes[@]}" --implementations "${implementations[@]}" \
    ${devices:+--devices "${devices[@]}"} ${extra:+"${extra[@]}"} ${1:+--start "$1" --stop "$2"} \
    --data "${DATA:-synthetic}" --out "${OUT:-runs/throughput-$task}"
