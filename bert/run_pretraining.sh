#!/usr/bin/env bash
# Pretraining as NVIDIA does it: phase 1 on 128 tokens, then phase 2 on 512 from its weights, with LAMB.
#
#   DATA=<folder> bash bert/run_pretraining.sh
#
# A second call with the same OUT resumes. SIGTERM and Ctrl-C save a checkpoint before they end it. Environment:
#   DATA                  folder above the HDF5 shards of both lengths, of `bertbench data pretrain`   (required)
#   DATA_PHASE2           the same for phase 2                                                         (DATA)
#   OUT                   its folders phase1 and phase2 are the run directories                        (runs/pretraining)
#   PHASES                which phases                                                                 ("1 2")
#   INIT                  weights to begin the first of PHASES from                                    (none; for "2": OUT/phase1)
#   PRESET                tiny mini small medium base large                                            (large)
#   DEVICES               processes, one device each                                                   (every GPU)
#   PRECISION             fp32 tf32 bf16 fp16 auto                                                     (auto)
#   SEED                  of weights, data order and dropout                                           (42)
#   BATCH_SIZE            sequences per update over all devices, phase 1                               (65536)
#   BATCH_SIZE_PHASE2     the same in phase 2                                                          (32768)
#   MICRO_BATCH_SIZE      sequences per device and micro-step, phase 1; accumulation follows           (32)
#   MICRO_BATCH_SIZE_PHASE2                                                                            (8)
#   STEPS, STEPS_PHASE2                   updates                                                      (7038, 1563)
#   LEARNING_RATE, LEARNING_RATE_PHASE2   peak learning rate                                           (6e-3, 4e-3)
#   WARMUP, WARMUP_PHASE2                 fraction of the updates                                      (.2843, .128)
#   SAVE_EVERY            updates between checkpoints                                                  (200)
#   EVAL_EVERY            updates between evaluations on the test shards; 0: never                     (0)
#   MAX_SECONDS           save and end after this time in s, for the limits of queues                  (none)
set -euo pipefail
# shellcheck source=bert/child.sh
source "$(dirname "$0")/child.sh"
need_data "the folder that 'bertbench data pretrain --output' wrote"
out=${OUT:-runs/pretraining}

# Seconds on a clock that nobody sets, where there is one.
clock() {
    local seconds=$SECONDS
    [[ -r /proc/uptime ]] && read -r seconds _ </proc/uptime
    echo "${seconds%.*}"
}

if [[ -n ${MAX_SECONDS:-} && ! $MAX_SECONDS =~ ^[1-9][0-9]{0,8}$ ]]; then
    echo "run_pretraining.sh: MAX_SECONDS='$MAX_SECONDS' is not a whole number of seconds above 0" >&2
    exit 2
fi
began=$(clock)
init=${INIT:-}
read -ra phases <<<"${PHASES:-1 2}"
if [[ ${#phases[@]} -eq 0 ]]; then
    echo "run_pretraining.sh: PHASES is blank: give 1, 2 or both" >&2
    exit 2
fi
for phase in "${phases[@]}"; do
    folder=$out/phase$phase
    options=(--phase "$phase" --out "$folder" --preset "${PRESET:-large}" --precision "${PRECISION:-auto}")
    options+=(--save-every "${SAVE_EVERY:-200}" --eval-every "${EVAL_EVERY:-0}")
    if [[ $phase == 2 ]]; then
        init=${init:-$out/phase1}
        options+=(--data "${DATA_PHASE2:-$DATA}" ${BATCH_SIZE_PHASE2:+--global-batch-size "$BATCH_SIZE_PHASE2"})
        options+=(${MICRO_BATCH_SIZE_PHASE2:+--micro-batch-size "$MICRO_BATCH_SIZE_PHASE2"})
        options+=(${STEPS_PHASE2:+--steps "$STEPS_PHASE2"} ${WARMUP_PHASE2:+--warmup "$WARMUP_PHASE2"})
        options+=(${LEARNING_RATE_PHASE2:+--learning-rate "$LEARNING_RATE_PHASE2"})
    else
        options+=(--data "$DATA" ${BATCH_SIZE:+--global-batch-size "$BATCH_SIZE"})
        options+=(${MICRO_BATCH_SIZE:+--micro-batch-size "$MICRO_BATCH_SIZE"})
        options+=(${STEPS:+--steps "$STEPS"} ${WARMUP:+--warmup "$WARMUP"})
        options+=(${LEARNING_RATE:+--learning-rate "$LEARNING_RATE"})
    fi
    options+=(${init:+--init "$init"} ${DEVICES:+--devices "$DEVICES"} ${SEED:+--seed "$SEED"})
    if [[ -n ${MAX_SECONDS:-} ]]; then
        left=$((MAX_SECONDS - ($(clock) - began)))
        options+=(--max-seconds "$((left > 1 ? left : 1))")
    fi
    echo "== phase $phase: $folder"
    run bertbench train pretrain "${options[@]}"
    finished "$folder" || exit 0 # stopped in time, as the command has said: the next call resumes here
    [[ $signals -eq 0 ]] || exit 0
    init=$folder
done
