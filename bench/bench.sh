#!/usr/bin/env bash
# Measures this machine in one go: text, HDF5 shards, sweep, profile, speed of light, report. `make bench` calls it.
#
#   bash bench/bench.sh [folder of .txt files or MediaWiki dumps]
#
# Without a folder a small text corpus is generated. Run it again to resume. Environment:
#   OUT           run directory; another one repeats all  (runs/bench, with a folder runs/bench-<its name>)
#   PRESET        model shape                        (mini; base on GPUs)
#   BATCH_SIZES   micro batches                      ("4 8"; "32 64 128" on GPUs)
#   DEVICES       device counts                      (1; on GPUs 1 2 4 ... up to all)
#   PRECISION     fp32 bf16 fp16 tf32 auto           (auto: bf16 where the hardware has it)
#   MAX_SECONDS   longest measuring per trial, s     (4; 20 on GPUs)
#   ROUNDS        interleaved rounds of every configuration; fewer than 3 are not conclusive  (3)
set -euo pipefail
script=$(realpath "$0")

if [[ $# -gt 1 || ${1:-} == -* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
# Each command runs beside this shell, which passes SIGTERM and Ctrl-C on and waits: nothing is left running.
child=
trap 'trap - INT TERM; [[ -n $child ]] && kill -TERM "$child" 2>/dev/null; wait; exit 130' INT TERM
run() {
    "$@" &
    child=$!
    local code=0
    wait "$child" || code=$?
    child=
    return "$code"
}
# The same with the result in a file: the end shows what matters of it. Progress and messages stay visible.
quietly() {
    local file=$1
    shift
    run "$@" >"$file"
}
text=${1:+$(realpath -m "$1")}
root=$(realpath "$(dirname "$script")/..")
# A relative path is as the caller means it, who may be elsewhere.
[[ -z ${OUT:-} || $OUT == /* ]] || OUT=$(realpath -ms --relative-base="$root" "$OUT")
cd "$root"
PATH=$PWD/.venv/bin:$PATH
if ! command -v bertbench >/dev/null; then
    echo "bertbench is not installed here: make bench installs it and calls this script" >&2
    exit 2
fi
if [[ -n $text && ! -e $text ]]; then
    echo "$text does not exist: give a folder of .txt files or MediaWiki dumps" >&2
    exit 2
fi
if bertbench doctor --has cuda; then
    : "${PRESET:=base}" "${BATCH_SIZES:=32 64 128}" "${DEVICES:=}" "${MAX_SECONDS:=20}"
    light_seconds=60
else
    : "${PRESET:=mini}" "${BATCH_SIZES:=4 8}" "${DEVICES:=1}" "${MAX_SECONDS:=4}"
    light_seconds=15
fi
: "${OUT:=runs/bench${text:+-$(basename "$text")}}" "${PRECISION:=auto}" "${ROUNDS:=3}"
read -ra batch_sizes <<<"$BATCH_SIZES"
devices=()
[[ -n $DEVICES ]] && read -ra devices <<<"$DEVICES"

source_options=(--generate 1000000)
[[ -n $text ]] && source_options=(--input "$text")
data=$OUT/data/$(basename "${text:-generated}")
mkdir -p "$OUT"
echo "== 1/5 data"
quietly "$OUT/data.txt" bertbench data pretrain "${source_options[@]}" --output "$data" --seq-len 128 --dupe-factor 1
echo "== 2/5 throughput, $ROUNDS round(s)"
common=(--preset "$PRESET" --precisions "$PRECISION" --seq-lens 128 --data "$data" --out "$OUT")
status=0
quietly "$OUT/throughput.txt" bertbench throughput pretrain "${common[@]}" --batch-sizes "${batch_sizes[@]}" \
    ${devices:+--devices "${devices[@]}"} --implementations bertbench hf --max-seconds "$MAX_SECONDS" --min-steps 8 \
    --rounds "$ROUNDS" || status=$?
[[ $status -eq 0 || $status -eq 3 ]] || exit "$status"
echo "== 3/5 profile of three iterations of the fastest configuration"
quietly "$OUT/profile.txt" bertbench profile pretrain --winner-of "$OUT" --out "$OUT" --profiler torch --start 3 --stop 6 ||
    status=$?
echo "== 4/5 speed of light of the fastest configuration"
quietly "$OUT/speed-of-light.txt" bertbench speed-of-light pretrain --winner-of "$OUT" --out "$OUT" \
    --max-seconds "$light_seconds" || status=$?
echo "== 5/5 report"
run bertbench report "$OUT"
exit "$status"
