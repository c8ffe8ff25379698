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
    local found
    have "$1" && return
    found=$(find "$vendor" /usr/local -path "*/$1" -perm -u+x \( -type f -o -type l \) 2>/dev/null |
        grep -E "/(bin|nsight-compute[^/]*/[^/]*|NVIDIA-Nsight-Compute[^/]*)/$1\$" | sort -V | tail -n 1) || true
    if [[ -n $found ]]; then ln -s "$found" "$links/$1"; fi
}

from_installers() {
    local file
    local -a debs=()
    for file in "$installers"/*; do
        case $file in
            *.deb) debs+=("$file") ;;
            *.run) bash "$file" --quiet --accept -- -noprompt ;;
        esac
    done
    if ((${#debs[@]})); then
        apt-get update
        apt-get install -y --no-install-recommends "${debs[@]}"
        rm -rf /var/lib/apt/lists/*
    fi
    link nsys
    link ncu
}

# NVIDIA's CUDA images have the repository; elsewhere its keyring package adds it.
add_repository() {
    local id version machine keyring
    if grep -rqs developer.download.nvidia.com /etc/apt/sources.list /etc/apt/sources.list.d; then return; fi
    # shellcheck source=/dev/null
    read -r id version < <(source /etc/os-release && echo "$ID" "$VERSION_ID")
    machine=$(uname -m)
    if [[ $machine == aarch64 ]]; then machine=sbsa; fi
    keyring=$(mktemp --suffix=.deb)
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' \
        "$repositories/$id${version//./}/$machine/cuda-keyring_1.1-1_all.deb" "$keyring"
    dpkg --install "$keyring"
    rm "$keyring"
}

# The package of CUDA's own release where the base names one, else the newest.
package() {
    local release=${CUDA_VERSION:-} newest
    if [[ $release == *.* ]]; then
        release=$(cut -d. -f1,2 <<<"$release")
        if apt-cache show "cuda-$1-${release/./-}" >/dev/null 2>&1; then
            echo "cuda-$1-${release/./-}"
            return
        fi
    fi
    newest=$(apt-cache pkgnames "$1-" | grep -E "^$1-[0-9.]+\$" | sort -V | tail -n 1) || true
    echo "${newest:-$1}"
}

from_repository() {
    local -a wanted=()
    add_repository
    apt-get update
    have nsys || wanted+=("$(package nsight-systems)")
    have ncu || wanted+=("$(package nsight-compute)")
    apt-get install -y --no-install-recommends "${wanted[@]}"
    rm -rf /var/lib/apt/lists/*
    link nsys
    link ncu
}

from_installers
if [[ ${WITH_NSIGHT:-0} == 0 ]]; then exit 0; fi
if ! have nsys || ! have ncu; then from_repository; fi
for tool in nsys ncu; do
    if ! have "$tool"; then
        echo "nsight.sh: no $tool after the installation: put NVIDIA's .deb or .run into docker/installers, or build with WITH_NSIGHT=0" >&2
        exit 1
    fi
    "$tool" --version
done
