# shellcheck shell=bash
# Read by the run_*.sh scripts: `run COMMAND...` runs it beside this shell, which passes signals on to it and waits until
# it has saved. `signals` counts the signals that came.
child=""
signals=0
trap 'signals=$((signals + 1)); [[ -n $child ]] && kill -TERM "$child" 2>/dev/null || true' INT TERM
run() {
    "$@" &
    child=$!
    local before code=0 last
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
