#!/usr/bin/env bash
# `make image-test`: builds the image's target cpu on a machine without a container engine, and uses it.
#
# The base is a Debian made by debootstrap. build_image.sh and start_container.sh run unchanged, on a replacement for podman
# that calls buildah (podman_by_buildah.sh). Needs root, buildah and debootstrap, about 10 GB and eight minutes.
#
#   bash docker/image_test.sh [base|build]
#
# With `base` it makes only the base, with `build` the base and the image, for a later call with the same IMAGE_TEST_DIR.
# By environment:
#   IMAGE_TEST_DIR    where images and results go                  (a temporary folder, removed at the end)
#   TORCH_INDEX       wheel index for torch                        (PyTorch's CPU index, or the index or folder of wheels that
#                                                                   pip on this machine is configured for)
#   WITH_DEEPSPEED, WITH_HOROVOD, ...    as for build_image.sh     (0)
#   DEBIAN            release of the base                          (bookworm)
#   DEBIAN_MIRROR     where debootstrap takes it from              (the archive that apt on this machine uses)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"
# shellcheck source=docker/package_sources.sh
source "$root/docker/package_sources.sh"
revision=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || true)

for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || die "$tool is not installed: sudo apt-get install buildah debootstrap"
done
[[ $(id -u) == 0 ]] || die "only root can make a base with debootstrap: run it with sudo"
if [[ -n ${IMAGE_TEST_DIR:-} ]]; then
    mkdir -p "$IMAGE_TEST_DIR"
    work=$(realpath "$IMAGE_TEST_DIR")
else
    work=$(mktemp -d)
    chmod 755 "$work" # the user inside is another one
fi
current=start
finish() {
    local code=$?
    if ((code != 0)); then echo "image_test.sh: step $current failed (exit code $code)" >&2; fi
    pkill -TERM -P $$ || true
    wait
    # Killed in the middle, buildah leaves containers mounted.
    awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/self/mounts | sort --reverse | xargs -r umount --lazy
    if [[ -z ${IMAGE_TEST_DIR:-} ]]; then rm -rf "$work"; fi
}
trap finish EXIT
[[ $work != *[[:space:]]* ]] || die "the folder '$work' has a blank in its path, which debootstrap cannot take: set TMPDIR or IMAGE_TEST_DIR"
export BUILDAH_STORE=$work/store RUN_OPTIONS='' BUILDAH_OPTIONS=''

store() {
    buildah --root "$BUILDAH_STORE/root" --runroot "$BUILDAH_STORE/run" "$@"
}

# What a step took, by this call and by earlier ones with the same IMAGE_TEST_DIR.
seconds_of() {
    awk -v name="$1" '$1 == name { sum += $2 } END { print sum + 0 }' "$work/seconds"
}

# Seconds since the machine started: nobody sets that clock.
clock() {
    local seconds
    read -r seconds _ </proc/uptime
    echo "${seconds%.*}"
}

step() {
    local began
    began=$(clock)
    current=$1
    shift
    printf '\n== %s\n' "$current"
    "$@"
    echo "$current $(($(clock) - began))" >>"$work/seconds"
}

# With overlay mounts layers share their files; without them every layer is a copy.
choose_storage() {
    mkdir -p "$work"/overlay/{lower,upper,work,merged}
    export STORAGE_DRIVER=vfs
    if mount -t overlay overlay -o "lowerdir=$work/overlay/lower,upperdir=$work/overlay/upper,workdir=$work/overlay/work" \
        "$work/overlay/merged" 2>/dev/null; then
        umount "$work/overlay/merged"
        STORAGE_DRIVER=overlay
    fi
}

# The replacement is the only engine on PATH.
choose_engine() {
    mkdir -p "$work/bin"
    ln -sf "$root/docker/podman_by_buildah.sh" "$work/bin/podman"
    export PATH=$work/bin:$PATH ENGINE=podman GPUS=none
}

# pip inside the image reaches what pip on this machine reaches: the same certificates, indexes and folders of wheels.
choose_packages() {
    local setting variable value place
    local -a shared=()
    # A bare Debian's own Python has no pip.
    local PYTHON=${PYTHON:-python3}
    if [[ -x $root/.venv/bin/python ]]; then PYTHON=$root/.venv/bin/python; fi
    local certificates=/etc/ssl/certs/ca-certificates.crt
    if [[ -f $certificates ]]; then
        export PIP_CERT=/opt/certificates.crt
        shared+=("--volume=$certificates:$PIP_CERT:ro")
    fi
    echo '[global]' >"$work/pip.conf"
    for setting in index-url extra-index-url find-links trusted-host; do
        variable=${setting^^} variable=PIP_${variable//-/_}
        value=$(pip_setting "$setting")
        unset "$variable"
        if [[ -z $value ]]; then continue; fi
        export "$variable=$value"
        echo "$setting = $value" >>"$work/pip.conf"
        for place in $value; do
            place=${place#file://}
            # The pages of an index lead to files beside its folder.
            if [[ $setting == *index-url ]]; then place=$(dirname "$place"); fi
            if [[ $place == /?* && $place != *:* && -d $place && " ${shared[*]} " != *" --volume=$place:"* ]]; then
                shared+=("--volume=$place:$place:ro")
            fi
        done
    done
    if [[ -n ${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_FIND_LINKS:-} ]]; then export TORCH_INDEX=${TORCH_INDEX:-pip}; fi
    BUILDAH_OPTIONS="${shared[*]}"
    # A build gets pip's settings as arguments, a container as pip's file.
    RUN_OPTIONS="${shared[*]} --volume=$work/pip.conf:/etc/pip.conf:ro ${PIP_CERT:+--env=PIP_CERT=$PIP_CERT}"
}

make_base() {
    local container mirror=${DEBIAN_MIRROR:-}
    export BASE_IMAGE=localhost/bertbench-base:${DEBIAN:-bookworm}
    if podman image inspect "$BASE_IMAGE" >/dev/null 2>&1; then return; fi
    [[ -n $mirror ]] || mirror=$(debian_archive) ||
        die "apt on this machine has read no archive of Debian: run apt-get update, or set DEBIAN_MIRROR"
    debootstrap --variant=minbase "${DEBIAN:-bookworm}" "$work/base" "$mirror" >"$work/debootstrap.log" 2>&1 ||
        { tail -n 5 "$work/debootstrap.log" >&2 && return 1; }
    container=$(store from scratch)
    store copy --quiet "$container" "$work/base" /
    store commit --quiet --rm "$container" "$BASE_IMAGE"
    rm -rf "$work/base"
}

# A user who is not root calls through sudo: start_container.sh reads SUDO_UID.
inside() {
    SUDO_UID=12345 SUDO_GID=12345 RUNS_DIR=$work/runs bash "$root/start_container.sh" "$work/my data" -- "$@"
}

# The calling user owns the files written, and no process in the container was root.
check_user() {
    [[ $(inside id -u) == 12345 ]] || die "the command did not run as uid 12345"
    # shellcheck disable=SC2016  # the shell inside expands it
    [[ $(inside bash -c 'echo "$HOME" && touch runs/mine /data/mine') == /tmp/home-12345 ]] || die "uid 12345 has no home"
    [[ $(stat -c %u "$work/runs/mine" "$work/my data/mine" | sort -u) == 12345 ]] || die "files belong to another"
}

# By default the image's user, not root.
check_default_user() {
    [[ $(podman run bertbench:cpu id -un) == bertbench ]] || die "the image's default user is not bertbench"
}

# start_container.sh --profiling starts as root with one more capability; the entrypoint keeps only that one.
check_capability() {
    local capabilities
    capabilities=$(podman run --user 0:0 --cap-add SYS_ADMIN --env BERTBENCH_RUN_AS=12345:12345 --env BERTBENCH_CAPABILITY=sys_admin \
        bertbench:cpu bash -c 'id -u; sed -n "s/^Cap\(Eff\|Bnd\|Amb\):\s*0*//p" /proc/self/status')
    [[ $capabilities == $'12345\n200000\n200000\n200000' ]] || die "not exactly CAP_SYS_ADMIN: $capabilities"
}

# nsight.sh with a real apt and a real .deb, as a user would put it into docker/installers.
check_installers() {
    local tool package=$work/tools
    rm -rf "$package" "$work/installers"
    mkdir -p "$package/DEBIAN" "$package/opt/nvidia/nsight-systems-cli/2025.1.1/bin" "$package/opt/nvidia/nsight-compute/2025.1.0" "$work/installers"
    printf '%s\n' 'Package: nsight-tools' 'Version: 1' 'Architecture: all' 'Maintainer: nobody' 'Description: stand-in' >"$package/DEBIAN/control"
    for tool in nsight-systems-cli/2025.1.1/bin/nsys nsight-compute/2025.1.0/ncu; do
        printf '#!/bin/sh\necho "%s $*"\n' "${tool##*/}" >"$package/opt/nvidia/$tool"
        chmod +x "$package/opt/nvidia/$tool"
    done
    dpkg-deb --build --root-owner-group "$package" "$work/installers/tools.deb" >/dev/null
    [[ $(podman run --user 0:0 --env WITH_NSIGHT=1 --mount "type=bind,source=$work/installers,target=/data" bertbench:cpu \
        bash -c 'bash docker/install/nsight.sh /data >/dev/null && nsys x && ncu y') == $'nsys x\nncu y' ]] ||
        die "the tools of an installer are not on PATH"
}

# The defaults of bench.sh are tested by tests/slow/test_bench.py.
check_bench() {
    mkdir -p "$work/my data/text"
    # Documents are separated by empty lines.
    for _ in {1..400}; do
        printf '%s\n' {1..8}' times the model read a sentence about the weather, and then another one about the sea.' ''
    done >"$work/my data/text/one.txt"
    inside env BATCH_SIZES=4 MAX_SECONDS=2 BUDGET=100 bash bench/bench.sh /data/text
    [[ -s $work/runs/bench-text/report/report.html ]] || die "no report in runs/bench-text"
    if [[ -n $revision ]]; then
        grep -rqF "\"git_commit\": \"$revision" --include=*.json "$work/runs/bench-text" || die "the results do not name the revision $revision"
    fi
}

# What depends on the image: its compiler, its torch, HDF5, the rights of its user. The rest is tested outside.
check_unit_tests() {
    inside bash -c '
        python -m pip install --quiet --target /tmp/tests "pytest>=8.3" "pytest-timeout>=2.3" "hypothesis>=6.110" "scipy>=1.13" "pytest-xdist>=3.6" &&
        PYTHONPATH=/tmp/tests HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis python -m pytest -q -p no:cacheprovider -n 2 --dist worksteal \
            tests/unit/common tests/unit/bert/test_elementwise.py tests/unit/bert/test_lamb.py tests/unit/bert/test_shards.py tests/unit/bert/test_checkpoint.py'
}

# A change of the code rebuilds only the last layers.
check_rebuild() {
    local copy=$work/checkout began
    began=$(clock)
    rm -rf "$copy"
    mkdir "$copy"
    tar --create --directory "$root" --exclude ./.venv --exclude ./runs --exclude ./.git . | tar --extract --directory "$copy"
    echo "# changed" >>"$copy/bench/sweep/trials.py"
    IMAGE=bertbench:changed bash "$copy/build_image.sh" --cpu >"$work/rebuild.log" 2>&1 || { tail "$work/rebuild.log" >&2 && return 1; }
    rebuild_seconds=$(($(clock) - began))
    ! grep -q 'Collecting\|Setting up' "$work/rebuild.log" || die "the rebuild installed packages again: see $work/rebuild.log"
    [[ $(podman run bertbench:changed tail -n 1 bench/sweep/trials.py) == "# changed" ]] || die "the rebuilt image holds the old code"
}

size_mb() {
    local container mounted
    container=$(store from --pull-never bertbench:cpu)
    mounted=$(store mount "$container")
    du --summarize --block-size=1M "$mounted" | cut -f1
    store rm "$container" >/dev/null
}

choose_storage
choose_engine
choose_packages
step base make_base
if [[ ${1:-} == base ]]; then exit; fi
step build bash "$root/build_image.sh" --cpu
if [[ ${1:-} == build ]]; then exit; fi
size=$(size_mb)
step user check_user
step default-user check_default_user
step capability check_capability
step installers check_installers
step doctor inside bertbench doctor
step bench check_bench
step unit-tests check_unit_tests
step rebuild check_rebuild

printf '\n== image-test passed\n'
printf 'bertbench:cpu on %s: %s MB unpacked, built in %s s on %s cores (%s storage), rebuilt after a change of the code in %s s\n' \
    "$BASE_IMAGE" "$size" "$(seconds_of build)" "$(nproc)" "$STORAGE_DRIVER" "$rebuild_seconds"
cut -d ' ' -f 1 "$work/seconds" | sort -u | while read -r name; do printf '%s: %s s\n' "$name" "$(seconds_of "$name")"; done
