#!/usr/bin/env bash
# Nsight Systems and Nsight Compute: what the base image has, else the newest of NVIDIA's apt repository.
#
# By environment:
#   WITH_NSIGHT   1: both tools or fail; 0: neither

set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
links=${1:-/usr/local/bin}
vendor=${2:-/opt/nvidia}
repositories=https://developer.download.nvidia.com/compute/cuda/repos

has_both() {
    command -v nsys >/dev/null && command -v ncu >/dev/null
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

if [[ ${WITH_NSIGHT:-0} == 0 ]] || has_both; then exit 0; fi
add_repository
apt-get update
for tool in nsight-systems nsight-compute; do
    packages+=("$(apt-cache pkgnames "$tool-" | grep -E "^$tool-[0-9.]+\$" | sort -V | tail -n 1)")
done
apt-get install -y --no-install-recommends "${packages[@]}"
rm -rf /var/lib/apt/lists/*
# The packages leave their tools below /opt/nvidia: the newest of each gets a link on PATH.
for tool in nsys ncu; do
    command -v "$tool" >/dev/null && continue
    path=$(find "$vendor" -path "*/$tool" -perm -u+x \( -type f -o -type l \) | grep -E "/(bin|[0-9.]+)/$tool\$" | sort -V | tail -n 1) || true
    if [[ -n $path ]]; then ln -s "$path" "$links/$tool"; fi
done
if ! has_both; then
    echo "nsight.sh: no nsys or ncu after the installation: give a BASE_IMAGE that has them, or build with WITH_NSIGHT=0" >&2
    exit 1
fi
