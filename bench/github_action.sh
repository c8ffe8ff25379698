#!/usr/bin/env bash
# What action.yml does on a runner: measure, compare with a baseline, write the summary of the job. Anything that sets
# these variables can run it, in the folder that the paths are relative to. Environment:
#   INPUT_ARGUMENTS        of `bertbench throughput`, split at blanks and line endings: a task, then options
#   INPUT_OUT              run directory of this measurement               (runs/throughput)
#   INPUT_BASELINE         run directory to compare with; nothing is compared where it does not exist
#   INPUT_THRESHOLD        relative change of the step time that counts    (0.02)
#   INPUT_FAIL_NOT_CONCLUSIVE   true fails where the measurements cannot decide (false)
#   GITHUB_STEP_SUMMARY, GITHUB_OUTPUT    files that get the result as Markdown, and `run` and `verdict`
# verdict is one of no-regression, regression, not-conclusive, no-baseline, error. Exit code: 0; 1 for a regression; 2
# where nothing can be compared, such as a damaged baseline; 3 where a trial failed; 4 for not-conclusive if that is to
# fail.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.venv/bin:$PATH
: "${INPUT_ARGUMENTS:?the arguments of bertbench throughput, such as: pretrain --preset base --rounds 3}"
run=${INPUT_OUT:-runs/throughput} baseline=${INPUT_BASELINE:-} summary=${GITHUB_STEP_SUMMARY:-/dev/stdout}
if [[ $run == *$'\n'* ]]; then
    echo "INPUT_OUT must be one line" >&2
    exit 2
fi
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# Tells the runner the verdict and ends with an exit code.
finish() {
    printf 'run=%s\nverdict=%s\n' "$run" "$1" >>"${GITHUB_OUTPUT:-/dev/stdout}"
    exit "$2"
}

# Runs a command whose stderr is shown and kept.
keep_errors() {
    { "$@" 2>&1 >&3 | tee "$errors" >&2; } 3>&1
}

# Shows the end of what a command said, and fails with its exit code.
fail() {
    { printf '### bertbench: %s\n\n' "$1"; tail -n 20 "$errors" | sed 's/^/    /'; } >>"$summary"
    finish error "$2"
}

read -r -d '' -a arguments <<<"$INPUT_ARGUMENTS" || true
measured=0
keep_errors bertbench throughput "${arguments[@]}" --out "$run" || measured=$?
# Code 3 is of a failed trial, which is a regression where it ran before.
[[ $measured == 0 || $measured == 3 ]] || fail "the measurement failed" "$measured"

if [[ -z $baseline || ! -e $baseline ]]; then
    printf '### bertbench: no baseline yet\n\nNothing was compared. Store the run directory as the baseline.\n' >>"$summary"
    finish no-baseline "$measured"
fi
code=0
keep_errors bertbench compare "$baseline" "$run" --threshold "${INPUT_THRESHOLD:-0.02}" --full --markdown "$summary" || code=$?
case $code in
    0) finish no-regression "$measured" ;;
    1) finish regression 1 ;;
    4) if [[ ${INPUT_FAIL_NOT_CONCLUSIVE:-false} == true ]]; then measured=4; fi; finish not-conclusive "$measured" ;;
    *) fail "the baseline cannot be compared" "$code" ;;
esac
