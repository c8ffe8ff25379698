# shellcheck shell=bash
# Sourced first by the run_*.sh scripts: prints the help and rejects arguments, since options are environment
# variables; adds .venv/bin to PATH.
PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin:$PATH
if [[ $# -gt 0 ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    [[ $1 == -h || $1 == --help ]] && exit 0
    echo "$(basename "$0"): takes no arguments, but $1 was given: options are the environment variables above" >&2
    exit 2
fi

# need_data WHAT: end unless DATA is set and bertbench is installed.
need_data() {
    if ! command -v bertbench >/dev/null; then
        echo "$(basename "$0"): bertbench is not installed: run make setup in $(cd "$(dirname "$0")/.." && pwd)" >&2
        exit 127
    fi
    [[ -z ${DATA:-} ]] || return 0
    echo "$(basename "$0"): DATA is not set: give $1" >&2
    exit 2
}

# `run COMMAND...` runs it beside this shell, which passes signals on to it and waits until it has saved. `signals`
# counts the signals that came.
child=""
signals=0
trap 'signals=$((signals + 1)); [[ -n $child ]] && kill -TERM "$child" 2>/dev/null || true' INT TERM
run() {
    "$@" &
    child=$!
    local before code=127 last # what a program that does not exist ends with
    while :; do
        before=$signals last=$code code=0
        wait "$child" || code=$?
        [[ $code -ne 127 ]] || code=$last # it had been waited for already
        [[ $signals -gt $before ]] || break
    done
    child=""
    return "$code"
}

# finished RUN: whether a run directory says that its training is complete.
finished() {
    grep -qs '"finished": true' "$1/train.json"
}
