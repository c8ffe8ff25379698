#!/usr/bin/env bash
# A stand-in for podman on a machine where no engine can run, for image_test.sh alone: buildah with chroot isolation, which
# isolates nothing and leaves out what only an engine can do (limits, namespaces, devices).
#
# By environment:
#   BUILDAH_STORE     folder for images and containers
#   BUILDAH_OPTIONS   further options for buildah build, separated by blanks, e.g. --volume=/a:/a:ro

set -euo pipefail
export BUILDAH_ISOLATION=chroot

buildah() {
    command buildah --root "$BUILDAH_STORE/root" --runroot "$BUILDAH_STORE/run" "$@"
}

run() {
    local image container code=0
    # Engines see to it that a container's name can be resolved; here localhost can.
    local -a options=(--hostname localhost) entrypoint
    while [[ ${1:-} == --* ]]; do
        case $1 in
            --rm | --interactive | --tty) shift ;;
            --mount) options+=(--mount "$2,rw") && shift 2 ;; # buildah mounts read-only by default
            --user | --env) options+=("$1" "$2") && shift 2 ;;
            *) shift 2 ;;
        esac
    done
    image=$1
    mapfile -t entrypoint < <(buildah inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$image" | sed '/^$/d')
    container=$(buildah from --pull-never "$image")
    buildah run "${options[@]}" "$container" -- "${entrypoint[@]}" "${@:2}" || code=$?
    buildah rm "$container" >/dev/null
    return "$code"
}

# import FOLDER IMAGE
import() {
    local container
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$1" /
    buildah commit --quiet --rm "$container" "$2"
}

case $1 in
    --version) echo "podman version 5.0.0 (by buildah)" ;;
    ps | info) ;;
    build) read -ra options <<<"$BUILDAH_OPTIONS" && buildah build --layers --format docker --pull-never "${options[@]}" "${@:2}" ;;
    image) buildah inspect --type image "$3" ;;
    run | import) "$@" ;;
esac
