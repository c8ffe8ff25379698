# shellcheck shell=bash
# shellcheck disable=SC2034  # what is set here is read by the scripts that source this file
# Shared by build_image.sh and start_container.sh: messages, and the container engine of this machine.

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "bash $BASH_VERSION is too old: 4.4 or newer is needed" >&2
    exit 2
fi
OLDEST_DOCKER=20.10 # --gpus and BuildKit
OLDEST_PODMAN=3.4   # --userns keep-id together with --ulimit host

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
# disguise) and ENGINE_ERROR (empty, or why it does not answer).
find_engine() {
    local candidate message
    local -a candidates=(docker podman) found=()
    if [[ -n ${ENGINE:-} ]]; then
        [[ $ENGINE == docker || $ENGINE == podman ]] || die "ENGINE=$ENGINE is not known: use ENGINE=docker or ENGINE=podman"
        candidates=("$ENGINE")
    fi
    for candidate in "${candidates[@]}"; do
        if command -v "$candidate" >/dev/null; then found+=("$candidate"); fi
    done
    ((${#found[@]})) || die "no container engine: ${candidates[*]} not found on PATH. Install Docker" \
        "(https://docs.docker.com/engine/install/) or Podman (https://podman.io/docs/installation)," \
        "or run without a container: make setup"

    ENGINE=${found[0]} ENGINE_ERROR=
    for candidate in "${found[@]}"; do
        if message=$(timeout 20 "$candidate" ps --quiet 2>&1 >/dev/null); then
            ENGINE=$candidate ENGINE_ERROR=
            break
        elif (($? == 124)); then
            message="nothing, for 20 s"
        fi
        ENGINE_ERROR=${ENGINE_ERROR:-${message:-it gave no reason}}
    done
    DIALECT=docker
    if [[ $("$ENGINE" --version 2>/dev/null) == *podman* ]]; then DIALECT=podman; fi
}

# is_older A B: whether version A comes before B; an unknown A does not.
is_older() {
    [[ -n $1 && $1 != "$2" && $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

engine_version() {
    local field=Server
    if [[ $DIALECT == podman ]]; then field=Client; fi
    "$ENGINE" version --format "{{.$field.Version}}" 2>/dev/null || true
}

# Ends the script unless the engine answers and is new enough.
require_engine() {
    local version oldest
    case ${ENGINE_ERROR,,} in
        '') ;;
        *'permission denied'*)
            die "you may not use $ENGINE: join its group (sudo usermod -aG docker \"\$USER\", then log in again)," \
                "or use rootless Podman (ENGINE=podman). It said: ${ENGINE_ERROR%%$'\n'*}"
            ;;
        *)
            die "$ENGINE is installed but does not answer: start it (sudo systemctl start docker), or set" \
                "ENGINE=docker or ENGINE=podman to choose. It said: ${ENGINE_ERROR%%$'\n'*}"
            ;;
    esac
    version=$(engine_version)
    oldest=$([[ $DIALECT == podman ]] && echo "$OLDEST_PODMAN" || echo "$OLDEST_DOCKER")
    if is_older "$version" "$oldest"; then
        die "$ENGINE $version is too old: $oldest or newer is needed; update it, or choose another with ENGINE=docker or ENGINE=podman"
    fi
}

# Prints a command so that it can be pasted into a shell.
print_command() {
    local line
    printf -v line '%q ' "$@"
    printf '%s\n' "${line% }"
}
