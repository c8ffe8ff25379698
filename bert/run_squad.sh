#!/usr/bin/env bash
# Fine-tuning on SQuAD 1.1 or 2.0 from a checkpoint, then the answers of the best model to the questions of EVAL_DATA.
#
#   DATA=<features> EVAL_DATA=<features> INIT=<weights> bash bert/run_squad.sh
#
# A second call with the same OUT resumes. SIGTERM and Ctrl-C save a checkpoint before they end it. Environment:
#   DATA                  features to train on, of `bertbench data squad` (a folder or a file)         (required)
#   EVAL_DATA             features to evaluate on; "none" evaluates and predicts nothing               (DATA, where a folder)
#   INIT                  a run, a checkpoint, or anything that `bertbench convert` reads              (none: random weights)
#   OUT                   run directory; the answers go to its folder predictions                      (runs/squad)
#   PRESET                tiny mini small medium base large distilbert                                 (INIT's shape, or base)
#   DEVICES               processes, one device each                                                   (every GPU)
#   PRECISION             fp32 tf32 bf16 fp16 auto                                                     (auto)
#   SEED                  of weights, data order and dropout                                           (42)
#   BATCH_SIZE            windows per update over all devices                                          (32)
#   MICRO_BATCH_SIZE      windows per device and micro-step; accumulation follows                      (8)
#   EPOCHS                passes over the windows                                                      (2)
#   STEPS                 updates, in place of EPOCHS                                                  (none)
#   LEARNING_RATE         peak learning rate                                                           (3e-5)
#   WARMUP                fraction of the updates                                                      (.1)
#   PADDING               longest: to the longest window of a micro-batch; fixed: to the most          (longest)
#   SAVE_EVERY            updates between checkpoints                                                  (200)
#   EVAL_EVERY            updates between evaluations                                                  (an epoch)
#   MAX_SECONDS           save and end after this time in s, for the limits of queues                  (none)
set -euo pipefail
# shellcheck source=bert/child.sh
source "$(dirname "$0")/child.sh"
need_data "the features that 'bertbench data squad --output' wrote"
out=${OUT:-runs/squad}
evaluation=${EVAL_DATA:-}
[[ -n $evaluation || ! -d $DATA ]] || evaluation=$DATA
[[ $evaluation != none ]] || evaluation=""

options=(--data "$DATA" --out "$out" --precision "${PRECISION:-auto}" --save-every "${SAVE_EVERY:-200}")
options+=(${evaluation:+--eval-data "$evaluation"} ${INIT:+--init "$INIT"} ${PRESET:+--preset "$PRESET"})
options+=(${BATCH_SIZE:+--global-batch-size "$BATCH_SIZE"} ${MICRO_BATCH_SIZE:+--micro-batch-size "$MICRO_BATCH_SIZE"})
options+=(${EPOCHS:+--epochs "$EPOCHS"} ${STEPS:+--steps "$STEPS"} ${LEARNING_RATE:+--learning-rate "$LEARNING_RATE"})
options+=(${WARMUP:+--warmup "$WARMUP"} ${PADDING:+--padding "$PADDING"} ${EVAL_EVERY:+--eval-every "$EVAL_EVERY"})
options+=(${DEVICES:+--devices "$DEVICES"} ${SEED:+--seed "$SEED"} ${MAX_SECONDS:+--max-seconds "$MAX_SECONDS"})
run bertbench train squad "${options[@]}"
finished "$out" || exit 0 # stopped in time, as the command has said: the next call resumes here
[[ $signals -eq 0 && -n $evaluation ]] || exit 0
run bertbench predict squad --checkpoint "$out" --features "$evaluation" --out "$out/predictions" \
    --precision "${PRECISION:-auto}"
