# shellcheck shell=bash
# shellcheck disable=SC2034  # what is set here is read by the scripts that source this file
# Shared by build_image.sh, start_container.sh and image_test.sh: messages, and the container engine of this machine.

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

note() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# The comment at the top of a script is its help.
show_help() {
    sed -n '2,/^$/ s/^# \{0,1\}//p' "$1"
}

# Sets ENGINE (docker or podman; the first that answers), DIALECT (whose options it takes: `docker` may be podman in
# disguise) and ENGINE_ERROR (empty, or why none can be used).
find_engine() {
    local candidate
    local -a candidates=(docker podman)
    if [[ -n ${ENGINE:-} ]]; then
        [[ $ENGINE == docker || $ENGINE == podman ]] || die "ENGINE=$ENGINE is not known: use ENGINE=docker or ENGINE=podman"
        candidates=("$ENGINE")
    fi
    ENGINE=${candidates[0]} DIALECT=docker
    ENGINE_ERROR="no container engine: install Docker (https://docs.docker.com/engine/install/) or Podman (https://podman.io/docs/installation), or run without a container: make setup"
    for candidate in "${candidates[@]}"; do
        command -v "$candidate" >/dev/null || continue
        ENGINE=$candidate
        if ENGINE_ERROR=$(timeout 20 "$candidate" ps --quiet 2>&1 >/dev/null); then break; fi
        ENGINE_ERROR="$candidate does not answer: start it, or join its group; or choose another with ENGINE=. It says: ${ENGINE_ERROR%%$'\n'*}"
    done
    if [[ $("$ENGINE" --version 2>/dev/null) == *podman* ]]; then DIALECT=podman; fi
}

require_engine() {
    [[ -z $ENGINE_ERROR ]] || die "$ENGINE_ERROR"
}

# Prints a command so that it can be pasted into a shell.
print_command() {
    local line
    printf -v line '%q ' "$@"
    printf '%s\n' "${line% }"
}
