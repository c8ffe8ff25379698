#!/usr/bin/env bash
# Builds the CPU image on a machine without a container engine, and uses it.
#
# The base is a Debian made by debootstrap. build_image.sh and start_container.sh run unchanged, on a replacement for podman
# that calls buildah (podman_by_buildah.sh). Needs root, buildah and debootstrap, about 15 GB and ten minutes.
#
# By environment:
#   TORCH_INDEX       wheel index for torch                (PyTorch's CPU index, or the indexes of this machine's pip)
#   WITH_DEEPSPEED, WITH_HOROVOD, ...    as for build_image.sh     (0)
#   DEBIAN, DEBIAN_MIRROR    release and archive of the base       (bookworm, debootstrap's own)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"

for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || die "$tool is not installed: sudo apt-get install buildah debootstrap"
done
[[ $(id -u) == 0 ]] || die "only root can make a base with debootstrap: run it with sudo"
work=$(mktemp -d)
chmod 755 "$work" # the user inside is another one
finish() {
    local code=$?
    if ((code != 0)); then note "step $current failed (exit code $code)"; fi
    # Killed in the middle, buildah leaves containers mounted.
    awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/self/mounts | sort --reverse | xargs -r umount --lazy
    rm -rf "$work"
}
current=start
trap finish EXIT
# The replacement is the only engine on PATH.
mkdir "$work/bin"
ln -s "$root/docker/podman_by_buildah.sh" "$work/bin/podman"
export PATH=$work/bin:$PATH ENGINE=podman RUNS_DIR=$work/runs BUILDAH_STORE=$work/store
export BUILDAH_OPTIONS='' BASE_IMAGE=localhost/bertbench-base:${DEBIAN:-bookworm}

step() {
    current=$1
    printf '\n== %s\n' "$current"
    "$1"
}

# pip inside the image reaches what pip on this machine reaches: the same certificates, indexes and folders of wheels.
share_packages() {
    local setting variable value place python=python3 certificates=/etc/ssl/certs/ca-certificates.crt
    if [[ -x $root/.venv/bin/python ]]; then python=$root/.venv/bin/python; fi # a bare Debian's own has no pip
    if [[ -f $certificates ]]; then
        export PIP_CERT=/opt/certificates.crt
        BUILDAH_OPTIONS="--volume=$certificates:$PIP_CERT:ro"
    fi
    for setting in index-url extra-index-url find-links; do
        variable=${setting^^} variable=PIP_${variable//-/_}
        value=${!variable:-$("$python" -m pip config get "global.$setting" 2>/dev/null || true)}
        if [[ -z $value ]]; then continue; fi
        export "$variable=$value" TORCH_INDEX="${TORCH_INDEX:-pip}"
        for place in $value; do
            place=${place#file://}
            # The pages of an index lead to files beside its folder.
            if [[ $setting == *index-url ]]; then place=$(dirname "$place"); fi
            if [[ -d $place ]]; then BUILDAH_OPTIONS+=" --volume=$place:$place:ro"; fi
        done
    done
}

base() {
    debootstrap --variant=minbase "${DEBIAN:-bookworm}" "$work/base" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log" >&2 && return 1; }
    podman import "$work/base" "$BASE_IMAGE"
    rm -rf "$work/base"
}

build() {
    bash "$root/build_image.sh" --cpu
}

# A user who is not root calls through sudo: start_container.sh reads SUDO_UID.
inside() {
    SUDO_UID=12345 SUDO_GID=12345 bash "$root/start_container.sh" --cpu "$work/my data" -- "$@"
}

# The image's user is not root; the calling user, who has no account inside, has a home and owns the files written.
user() {
    [[ $(podman run bertbench:cpu id -un) == bertbench ]] || die "the image's default user is not bertbench"
    # shellcheck disable=SC2016  # the shell inside expands it
    [[ $(inside bash -c 'id -u && echo "$HOME" && touch runs/mine /data/mine') == $'12345\n/tmp/home-12345' ]] ||
        die "the command did not run as uid 12345 with a home"
    [[ $(stat -c %u "$work/runs/mine" "$work/my data/mine" | sort -u) == 12345 ]] || die "files belong to another"
}

doctor() {
    inside bertbench doctor
}

# Compiles a kernel (g++), trains, writes a checkpoint, and records the image's revision.
training() {
    local revision
    inside bertbench train pretrain --data synthetic --preset tiny --device cpu --precision fp32 \
        --micro-batch-size 2 --global-batch-size 4 --steps 3 --out runs/training
    [[ -d $work/runs/training/checkpoints/step-0000003 ]] || die "no checkpoint in runs/training"
    revision=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || true)
    grep -rqF "\"git_commit\": \"$revision" --include=env.json "$work/runs/training" || die "the results do not name the revision $revision"
}

share_packages
for name in base build user doctor training; do step "$name"; done
printf '\n== image-test passed: bertbench:cpu on %s, in %s s on %s cores\n' "$BASE_IMAGE" "$SECONDS" "$(nproc)"
