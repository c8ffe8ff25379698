#!/usr/bin/env bash
# Start of every container: makes the caller's uid, which has no account in the image, able to work; then becomes the
# command.

set -euo pipefail
runs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/runs

if [[ ! -w ${HOME:-/} || ${HOME:-/} == / ]]; then
    HOME=${TMPDIR:-/tmp}/home-$(id -u)
    mkdir -p "$HOME"
    export HOME
fi
# Python's getpass, which torch.compile asks for its cache folder, fails where a uid has no name.
USER=${USER:-$(id -un 2>/dev/null || true)}
export USER LOGNAME=${LOGNAME:-$USER}

if [[ ! -w $runs ]]; then
    printf 'entrypoint: %s cannot be written by uid %s: results will not be kept; start with start_container.sh or mount a folder of yours there\n' \
        "$runs" "$(id -u)" >&2
fi
exec "$@"
