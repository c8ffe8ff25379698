#!/usr/bin/env bash
# Start of every container: makes the caller's uid, which may have no account in the image, able to work; then becomes
# the command.
#
# By environment, from start_container.sh --profiling:
#   BERTBENCH_RUN_AS       uid:gid:group,group,... to become, keeping ...
#   BERTBENCH_CAPABILITY   ... this one capability

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
runs=${here%/*}/runs

# Docker gives an added capability to root alone, so --profiling starts as root. Here it becomes the caller, with that
# capability in the ambient set, which programs inherit, and without any other.
if [[ -n ${BERTBENCH_RUN_AS:-} ]]; then
    IFS=: read -r uid gid groups <<<"$BERTBENCH_RUN_AS"
    capability=${BERTBENCH_CAPABILITY:?must be set together with BERTBENCH_RUN_AS}
    unset BERTBENCH_RUN_AS BERTBENCH_CAPABILITY HOME USER LOGNAME
    exec setpriv --reuid "$uid" --regid "$gid" --groups "${groups:-$gid}" \
        --inh-caps="-all,+$capability" --ambient-caps="-all,+$capability" --bounding-set="-all,+$capability" \
        bash "${BASH_SOURCE[0]}" "$@"
fi

if [[ -z ${HOME:-} ]]; then HOME=$({ getent passwd "$(id -u)" || true; } | cut -d: -f6); fi
if [[ ! -w ${HOME:-/} || ${HOME:-/} == / ]]; then
    HOME=${TMPDIR:-/tmp}/home-$(id -u)
    mkdir -p "$HOME"
fi
# Python's getpass, which torch.compile asks for its cache folder, fails where a uid has no name.
USER=${USER:-$(id -un 2>/dev/null || true)}
export HOME USER LOGNAME=${LOGNAME:-$USER}

if [[ ! -w $runs ]]; then
    printf 'entrypoint: %s cannot be written by uid %s: results will not be kept; start with start_container.sh or mount a folder of yours there\n' \
        "$runs" "$(id -u)" >&2
fi
if [[ $* == /bin/bash && -t 0 ]]; then cat "$here/greeting.txt"; fi
exec -- "$@"
