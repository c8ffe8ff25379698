#!/usr/bin/env bash
# A stand-in for podman on a machine where no engine can run: build, run and image inspect by buildah with chroot
# isolation. For image_test.sh alone: nothing is isolated, and what only an engine can do (limits, namespaces, devices) is
# left out.
#
# By environment:
#   BUILDAH_STORE     folder for images and containers
#   BUILDAH_OPTIONS   further options for buildah build, separated by blanks, e.g. --volume=/a:/a:ro
#   RUN_OPTIONS       further options for buildah run

set -euo pipefail
: "${BUILDAH_STORE:?}"
read -ra build_options <<<"${BUILDAH_OPTIONS:-}"
read -ra run_options <<<"${RUN_OPTIONS:-}"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}

buildah() {
    command buildah --root "$BUILDAH_STORE/root" --runroot "$BUILDAH_STORE/run" "$@"
}

run() {
    local image container code errors
    # Engines see to it that a container's name can be resolved; here localhost can.
    local -a options=("${run_options[@]}" --hostname localhost) entrypoint
    while [[ ${1:-} == --* ]]; do
        case $1 in
            --rm | --interactive | --tty) shift ;;
            --mount) options+=(--mount "$2,rw") && shift 2 ;; # buildah mounts read-only by default
            --cap-add) options+=(--cap-add "CAP_$2") && shift 2 ;;
            --user | --env) options+=("$1" "$2") && shift 2 ;;
            *) shift 2 ;;
        esac
    done
    image=$1
    shift
    mapfile -t entrypoint < <(buildah inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$image" | sed '/^$/d')
    if (($# == 0)); then set -- /bin/bash; fi
    container=$(buildah from --pull-never "$image")
    errors=$(mktemp)
    # Linux sometimes finds buildah's copy of itself still busy when it is to be sealed: nothing has begun then.
    for _ in {1..5}; do
        code=0
        buildah run "${options[@]}" "$container" -- "${entrypoint[@]}" "$@" 2>"$errors" || code=$?
        cat "$errors" >&2
        grep -q 'sealing memfd copy' "$errors" || break
    done
    rm "$errors"
    buildah rm "$container" >/dev/null
    return "$code"
}

case $1 in
    --version) echo "podman version 5.0.0 (by buildah)" ;;
    version) echo 5.0.0 ;;
    ps | info) ;;
    build) shift && buildah build --layers --format docker --pull-never "${build_options[@]}" "$@" ;;
    image) buildah inspect --type image "$3" ;;
    run) shift && run "$@" ;;
    *) echo "podman_by_buildah.sh: $1 is not known" >&2 && exit 2 ;;
esac
