#!/usr/bin/env bash
# Nsight Systems and Nsight Compute: what the base image has, else an installer from docker/installers, else NVIDIA's apt
# repository.
#
# By environment:
#   WITH_NSIGHT   1: both tools or fail; 0: only the files in docker/installers

set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
installers=${1:-/opt/bertbench/installers}
links=${2:-/usr/local/bin}
vendor=${3:-/opt/nvidia}
repositories=https://developer.download.nvidia.com/compute/cuda/repos

have() {
    command -v "$1" >/dev/null
}

# An installer leaves its tools below /opt/nvidia or /usr/local: the newest of each gets a link on PATH.
link() {
    local tool path
    for tool in nsys ncu; do
        have "$tool" && continue
        path=$(find "$vendor" /usr/local -path "*/$tool" -perm -u+x \( -type f -o -type l \) 2>/dev/null |
            grep -E "/(bin|[Nn]sight-[Cc]ompute[^/]*/[^/]*|NVIDIA-Nsight-Compute[^/]*)/$tool\$" | sort -V | tail -n 1) || true
        if [[ -n $path ]]; then ln -s "$path" "$links/$tool"; fi
    done
}

from_installers() {
    local file
    for file in "$installers"/*; do
        case $file in
            *.deb) apt-get update && apt-get install -y --no-install-recommends "$file" ;;
            *.run) bash "$file" --quiet --accept -- -noprompt ;;
        esac
    done
    rm -rf /var/lib/apt/lists/*
    link
}

# NVIDIA's CUDA images have the repository; elsewhere its keyring package adds it.
from_repository() {
    local id version machine keyring tool
    local -a packages
    if ! grep -rqs developer.download.nvidia.com /etc/apt/sources.list /etc/apt/sources.list.d; then
        # shellcheck source=/dev/null
        read -r id version < <(source /etc/os-release && echo "$ID" "$VERSION_ID")
        machine=$(uname -m)
        if [[ $machine == aarch64 ]]; then machine=sbsa; fi
        keyring=$(mktemp --suffix=.deb)
        python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' \
            "$repositories/$id${version//./}/$machine/cuda-keyring_1.1-1_all.deb" "$keyring"
        dpkg --install "$keyring"
        rm "$keyring"
    fi
    apt-get update
    for tool in nsight-systems nsight-compute; do
        packages+=("$(apt-cache pkgnames "$tool-" | grep -E "^$tool-[0-9.]+\$" | sort -V | tail -n 1)")
    done
    apt-get install -y --no-install-recommends "${packages[@]}"
    rm -rf /var/lib/apt/lists/*
    link
}

from_installers
if [[ ${WITH_NSIGHT:-0} == 0 ]]; then exit 0; fi
if ! have nsys || ! have ncu; then from_repository; fi
if ! have nsys || ! have ncu; then
    echo "nsight.sh: no nsys or ncu after the installation: put NVIDIA's .deb or .run into docker/installers, or build with WITH_NSIGHT=0" >&2
    exit 1
fi
