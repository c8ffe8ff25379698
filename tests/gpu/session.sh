#!/usr/bin/env bash
# The figures of one GPU, in order of worth, each part under its own time limit.
#
#   bash tests/gpu/session.sh OUT [first|second]     both by default, 560 and 200 s; OUT/session.tar.gz has everything
#
# By environment:
#   PYTHON    Python with a torch for CUDA                                  (python3)
#   SHARDS    prepared pretraining data for the loss curves; none: left out (.data/shards)

set -uo pipefail
if (($# < 1)); then sed -n '2,8p' "${BASH_SOURCE[0]}"; exit 2; fi
OUT=$(realpath -m "$1") HALF=${2:-both} PYTHON=${PYTHON:-python3} SHARDS=${SHARDS:-.data/shards}
RUN=$OUT/run
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
mkdir -p "$OUT"
bertbench=("$PYTHON" -m bench.cli.main)
large=(--device cuda --devices 1 --preset large --seq-lens 512 --data synthetic:mean254 --out "$RUN" --json)

# part NAME SECONDS COMMAND...: standard output goes to OUT/NAME.json, errors to OUT/NAME.log; the next part runs anyhow.
part() {
    local name=$1 seconds=$2 began=$SECONDS outcome=0
    shift 2
    timeout --signal=INT --kill-after=10 "$seconds" "$@" >"$OUT/$name.json" 2>"$OUT/$name.log" || outcome=$?
    echo "$name: exit code $outcome after $((SECONDS - began)) s" | tee -a "$OUT/parts.txt"
}

first_half() {
    nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm,clocks.sm,temperature.gpu --format=csv >"$OUT/card.csv" 2>&1
    nvidia-smi dmon -s pc -d 1 >"$OUT/dmon.txt" 2>&1 &
    local monitor=$!
    part correctness 45 "$PYTHON" tests/gpu/correctness.py --seconds 35 --json
    part throughput 150 "${bertbench[@]}" throughput pretrain "${large[@]}" --rounds 1 --max-seconds 10 \
        --batch-sizes 128 64 --precisions bf16 fp8 --timeout-seconds 60
    part kernels 100 "$PYTHON" tests/gpu/kernels.py --json
    if command -v ncu >/dev/null; then
        part ncu 60 ncu --clock-control none --kernel-name 'regex:attention_|norm_backward|quantize_both|gelu_fp8' \
            --launch-count 8 --section SpeedOfLight --section WarpStateStats --section Occupancy --csv \
            "$PYTHON" tests/gpu/kernels.py --once --only attention norm cast
    fi
    for precision in bf16 fp8; do
        part "profile-$precision" 90 "${bertbench[@]}" profile pretrain "${large[@]}" --batch-sizes 128 --precisions $precision \
            --profiler torch --start 10 --stop 12 --timeout-seconds 80
    done
    kill "$monitor" 2>/dev/null
}

# curve NAME OPTION...: the losses of 400 steps, on data in the same order.
curve() {
    local name=$1
    shift
    part "curve-$name" 60 "${bertbench[@]}" train pretrain --preset small --data "$SHARDS" --seq-len 128 --device cuda --devices 1 \
        --global-batch-size 256 --micro-batch-size 256 --steps 400 --out "$OUT/curve-$name" --json "$@"
}

second_half() {
    if [[ -d $SHARDS ]]; then # at once: losses do not depend on the time
        curve bf16 --precision bf16 &
        curve fp8 --precision fp8 &
        curve fp8-fast --precision fp8 --fp8-fast-gradients &
        wait
    fi
    part steps 95 "$PYTHON" tests/gpu/steps.py --rows bf16:64 bf16:128 fp8:64 fp8:128 fp8:224 fp8:128:lamb --seconds 4 --json \
        --profile "$OUT/host.txt"
    part hf 45 "${bertbench[@]}" throughput pretrain "${large[@]}" --rounds 1 --max-seconds 5 --batch-sizes 64 --precisions bf16 \
        --implementations hf --timeout-seconds 40
}

case $HALF in
    first) first_half ;;
    second) second_half ;;
    both)
        first_half
        second_half
        ;;
    *) echo "session.sh: '$HALF' is neither first nor second" >&2 && exit 2 ;;
esac
tar --exclude=session.tar.gz --exclude='*.safetensors' -czf "$OUT/session.tar.gz" -C "$OUT" .
cat "$OUT/parts.txt"
