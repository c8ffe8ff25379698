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

find_engine
if [[ $target == cpu ]]; then
    : "${BASE_IMAGE:=docker.io/library/debian:bookworm-slim}" "${TORCH_INDEX:=https://download.pytorch.org/whl/cpu}" "${WITH_NSIGHT:=0}"
elif [[ ${WITH_DEEPSPEED:-0}${WITH_HOROVOD:-0} == *1* ]]; then
    : "${BASE_IMAGE:=docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04}" # what compiles for CUDA needs nvcc
fi
for name in WITH_NSIGHT WITH_DEEPSPEED WITH_HOROVOD; do
    [[ ${!name:-0} == [01] ]] || die "$name=${!name} is not known: use 1 or 0"
done
user=${USER_ID:-$(id -u)}
if [[ $user == 0 && -z ${USER_ID:-} ]]; then user=${SUDO_UID:-10001}; fi
[[ $user =~ ^[1-9][0-9]*$ ]] || die "USER_ID=$user: give the number of a user who is not root"

image=${IMAGE:-bertbench:$target}
command=("$ENGINE" build --file "$root/docker/Dockerfile" --tag "$image" --build-arg "USER_ID=$user")
for name in BASE_IMAGE TORCH_INDEX TORCH_VERSION WITH_NSIGHT WITH_DEEPSPEED WITH_HOROVOD \
    PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT; do
    if [[ -n ${!name:-} ]]; then command+=(--build-arg "$name=${!name}"); fi
done
if revision=$(git -C "$root" describe --always --dirty --exclude '*' --abbrev=12 2>/dev/null); then
    command+=(--build-arg "REVISION=$revision")
fi
command+=("$root")

if [[ -n $print_only ]]; then
    print_command "${command[@]}"
    exit 0
fi
require_engine
note "building $image with $ENGINE"
DOCKER_BUILDKIT=1 "${command[@]}"
note "built $image; next: bash start_container.sh <data directory>"
