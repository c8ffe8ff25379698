#!/usr/bin/env bash
# Builds the container image: bash build_image.sh [--cpu] [--print] [--help]
#
#   --cpu      an image without CUDA, for machines without an NVIDIA GPU (several GB smaller)
#   --print    print the command, run nothing
#   --help     print this
#
# By environment:
#   IMAGE             name of the image                              (bertbench:cuda; bertbench:cpu with --cpu)
#   BASE_IMAGE        image to build on, e.g. nvcr.io/nvidia/pytorch:26.02-py3     (see docker/README.md)
#   TORCH_INDEX       wheel index for torch, for another CUDA;       (PyPI; PyTorch's CPU index with --cpu)
#                     pip: the index that pip is configured for, without the lock's hashes
#   TORCH_VERSION     version of torch, for another CUDA             (the one in docker/locks/torch.txt)
#   WITH_NSIGHT       1 or 0: Nsight Systems and Nsight Compute      (1; 0 with --cpu)
#   WITH_DEEPSPEED    1 or 0: DeepSpeed                              (0)
#   WITH_HOROVOD      1 or 0: Horovod, compiled                      (0)
#   WITH_DLPROF       1 or 0: DLProf's NVTX annotations              (0)
#   USER_ID           uid of the image's user                        (yours; 10001 for root)
#   ENGINE            docker or podman                               (the first that answers)
#   PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, PIP_TRUSTED_HOST, PIP_CERT    passed on to pip when set; they
#                     stay readable in the image's history, so no passwords in them

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"

target=cuda print_only=
for argument in "$@"; do
    case $argument in
        --cpu) target=cpu ;;
        --print) print_only=yes ;;
        -h | --help) show_help "${BASH_SOURCE[0]}" && exit 0 ;;
        *) die "unexpected argument '$argument': usage: bash build_image.sh [--cpu] [--print] [--help]" ;;
    esac
done

# Sets extras (the build arguments of what was asked for), needs_nvcc (what has to compile for CUDA) and parts.
choose_extras() {
    local name value
    extras=() needs_nvcc=() parts=(torch)
    for name in NSIGHT DEEPSPEED HOROVOD DLPROF; do
        value=WITH_$name
        value=${!value:-}
        case $value in
            '') ;;
            0 | 1) extras+=(--build-arg "WITH_$name=$value") ;;
            *) die "WITH_$name=$value is not known: use 1 or 0" ;;
        esac
        if [[ ${value:-0} == 1 || ($name == NSIGHT && -z $value && $target == cuda) ]]; then parts+=("$name"); fi
        case $value$name in 1DEEPSPEED | 1HOROVOD) needs_nvcc+=("$name") ;; esac
    done
}

check_installers() {
    local -a misplaced
    misplaced=("$root"/docker/*.deb "$root"/docker/*.run)
    ((${#misplaced[@]} == 0)) || die "${misplaced[0]##*/} lies in docker/: move installers to docker/installers/"
}

# What has to be compiled for CUDA needs nvcc, which only the devel variant of NVIDIA's images has.
choose_base() {
    base=${BASE_IMAGE:-}
    if [[ -z $base && $target == cuda && ${#needs_nvcc[@]} -gt 0 ]]; then
        base=$(sed -n 's/^ARG CUDA_IMAGE=\(.*\)-base-\(.*\)/\1-devel-\2/p' "$root/docker/Dockerfile")
    fi
}

shopt -s nullglob
find_engine
choose_extras
check_installers
choose_base
user=${USER_ID:-$(id -u)}
if [[ $user == 0 && -z ${USER_ID:-} ]]; then user=${SUDO_UID:-0}; fi
if [[ $user == 0 && -z ${USER_ID:-} ]]; then user=10001; fi
[[ $user =~ ^[1-9][0-9]*$ ]] || die "USER_ID=$user: give the number of a user who is not root"

image=${IMAGE:-bertbench:$target}
command=("$ENGINE" build --file "$root/docker/Dockerfile" --target "$target" --tag "$image" --build-arg "USER_ID=$user")
if [[ -n $base ]]; then command+=(--build-arg "${target^^}_IMAGE=$base"); fi
for name in TORCH_INDEX TORCH_VERSION PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT; do
    if [[ -n ${!name:-} ]]; then command+=(--build-arg "$name=${!name}"); fi
done
command+=("${extras[@]}")
if revision=$(git -C "$root" describe --always --dirty --exclude '*' --abbrev=12 2>/dev/null); then
    command+=(--build-arg "REVISION=$revision")
fi
command+=("$root")

if [[ -n $print_only ]]; then
    print_command "${command[@]}"
    exit 0
fi
require_engine
note "building $image (target $target${base:+ on $base}) with $ENGINE; in it: ${parts[*]}"
if [[ $DIALECT == docker ]]; then
    # BuildKit builds only the stages that the target needs. From Docker 23 on it comes with the buildx plugin.
    export DOCKER_BUILDKIT=1
    if ! is_older "$(engine_version)" 23 && ! "$ENGINE" buildx version >/dev/null 2>&1; then
        DOCKER_BUILDKIT=0
        note "no buildx plugin: Docker's old builder is used, which builds more than is needed (install docker-buildx-plugin)"
    fi
fi
"${command[@]}"
note "built $image; next: bash start_container.sh <data directory>"
