#!/usr/bin/env bash
# Builds the container image: bash build_image.sh [--cpu] [--print] [--help]
#
#   --cpu      an image without CUDA, for machines without an NVIDIA GPU (several GB smaller)
#   --print    print the command, run nothing
#   --help     print this
#
# By environment:
#   IMAGE         name of the image                         (bertbench:cuda; bertbench:cpu with --cpu)
#   BASE_IMAGE    image to build on                         (see docker/Dockerfile)
#   TORCH_INDEX   wheel index for torch, for another CUDA   (PyPI; PyTorch's CPU index with --cpu)
#   ENGINE        docker or podman                          (the first that answers)

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
command=("$ENGINE" build --file "$root/docker/Dockerfile" --target "$target" --tag "${IMAGE:-bertbench:$target}")
if [[ -n ${BASE_IMAGE:-} ]]; then command+=(--build-arg "${target^^}_IMAGE=$BASE_IMAGE"); fi
if [[ -n ${TORCH_INDEX:-} ]]; then command+=(--build-arg "TORCH_INDEX=$TORCH_INDEX"); fi
if revision=$(git -C "$root" rev-parse --verify --quiet HEAD 2>/dev/null); then
    command+=(--build-arg "REVISION=$revision")
fi
command+=("$root")

if [[ -n $print_only ]]; then
    print_command "${command[@]}"
    exit 0
fi
require_engine
# Old Docker engines ask for this to build only the stages that the target needs.
export DOCKER_BUILDKIT=1
exec "${command[@]}"
