#!/usr/bin/env bash
# Runs a command in the bertbench container: bash start_container.sh [--print] [--help] DATA_DIR [COMMAND ...]
#
#   DATA_DIR   your data, mounted at /data; the folder is created if it does not exist
#   COMMAND    what to run in /workspace, with its arguments; a shell without one
#   --print    print the command, run and create nothing
#   --help     print this
#
# Results are written to ./runs on this machine (/workspace/runs inside). The command runs as you, not as root. All
# NVIDIA GPUs are passed on where the engine can do so (NVIDIA runtime or CDI); otherwise it runs on the CPU and says so.
#
# By environment:
#   CUDA_VISIBLE_DEVICES   GPUs to use, passed on as it is
#   GPUS            auto, all (fail without GPUs) or none                     (auto)
#   RUNS_DIR        folder for results                                        (./runs)
#   IMAGE           image to run                    (bertbench:cuda with GPUs, else bertbench:cpu)
#   SHM_SIZE        private shared memory of this size, e.g. 16g              (the host's: --ipc=host)
#   CDI_SPEC_DIRS   where CDI specifications lie, colon-separated             (/etc/cdi:/var/run/cdi)
#   ENGINE          docker or podman                                          (the first that answers)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"
usage='usage: bash start_container.sh [--print] [--help] DATA_DIR [COMMAND ...]'
toolkit='https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html'

engine_info() {
    "$ENGINE" info --format "$1" 2>/dev/null || true
}

has_gpu() {
    [[ $(nvidia-smi -L 2>/dev/null) == *GPU* ]]
}

has_cdi() {
    local -a folders
    # Docker ignores CDI unless it is switched on, and then lists its folders.
    if [[ $DIALECT == docker && $(engine_info '{{json .CDISpecDirs}}') != *'"'* ]]; then return 1; fi
    IFS=: read -r -a folders <<<"${CDI_SPEC_DIRS:-/etc/cdi:/var/run/cdi}"
    grep -rqs 'nvidia\.com/gpu' "${folders[@]}"
}

# Sets gpu_options; empty means CPU only, which is said together with the reason.
choose_gpus() {
    local reason
    gpu_options=()
    case ${GPUS:-auto} in
        none) reason="GPUS=none" ;;
        auto | all)
            if [[ ${GPUS:-auto} == auto ]] && ! has_gpu; then
                reason="nvidia-smi lists no GPU here (GPUS=all insists)"
            elif [[ $DIALECT == docker && $(engine_info '{{json .Runtimes}}') == *'"nvidia"'* ]]; then
                gpu_options=(--gpus all)
            elif has_cdi; then
                gpu_options=(--device nvidia.com/gpu=all)
            else
                reason="$ENGINE has neither the NVIDIA runtime nor a CDI specification; install the NVIDIA Container Toolkit: $toolkit"
                if [[ ${GPUS:-auto} == all ]]; then die "GPUS=all, but $reason"; fi
            fi
            ;;
        *) die "GPUS=$GPUS is not known: use auto, all or none" ;;
    esac
    if ((${#gpu_options[@]} == 0)); then note "CPU only: $reason"; fi
}

# Sets user_options and limit_options: the caller's uid, and no limit on locked memory where that may be lifted.
choose_user() {
    local user
    user="$(id -u):$(id -g)"
    user_options=(--user "$user")
    limit_options=(--ulimit memlock=-1 --ulimit stack=67108864)
    if [[ $DIALECT == podman ]]; then
        # Without this a host with SELinux hides the mounted folders and the GPUs; relabelling your data would be worse.
        user_options+=(--security-opt label=disable)
        if [[ $(id -u) != 0 ]]; then
            user_options+=(--userns keep-id)
            limit_options=(--ulimit host)
        fi
    elif [[ $(engine_info '{{json .SecurityOptions}}') == *rootless* ]]; then
        # A rootless Docker maps its uid 0 to the caller, and may not raise limits.
        user_options=(--user 0:0)
        limit_options=()
    fi
}

# Prints the absolute path of folder $2, creating it unless only printing; $1 is its name in messages.
folder() {
    local path
    path=$(realpath -m -- "$2")
    case $path in *[,\"]*) die "$1 '$2' has a comma or a quote in its path, which --mount cannot take: rename it or use a link" ;; esac
    if [[ -e $path && ! -d $path ]]; then die "$1 '$2' is a file: give a folder"; fi
    if [[ ! -e $path && -z $print_only ]]; then
        mkdir -p -- "$path" 2>/dev/null || die "$1 '$2' does not exist and cannot be created: choose another folder"
        note "created $1 $path"
    fi
    printf '%s\n' "$path"
}

print_only=
while (($#)); do
    case $1 in
        --print) print_only=yes ;;
        -h | --help) show_help "${BASH_SOURCE[0]}" && exit 0 ;;
        -*) die "unknown option '$1': $usage" ;;
        *) break ;;
    esac
    shift
done
if (($# == 0)) || [[ -z $1 ]]; then die "no DATA_DIR given: $usage"; fi
data_argument=$1
shift

find_engine
if [[ -z $print_only ]]; then require_engine; fi
choose_gpus
choose_user
if ((${#gpu_options[@]})); then target=cuda; else target=cpu; fi
image=${IMAGE:-bertbench:$target}
if [[ -z $print_only ]] && ! "$ENGINE" image inspect "$image" >/dev/null 2>&1; then
    die "image $image not found: build it with: bash build_image.sh$([[ $target == cuda ]] || printf ' --cpu')"
fi
data=$(folder DATA_DIR "$data_argument")
runs=$(folder RUNS_DIR "${RUNS_DIR:-runs}")

command=("$ENGINE" run --rm --interactive)
if [[ -t 0 && -t 1 ]]; then command+=(--tty); fi
command+=("${user_options[@]}" "${limit_options[@]}" "${gpu_options[@]}")
if [[ -n ${SHM_SIZE:-} ]]; then command+=(--shm-size "$SHM_SIZE"); else command+=(--ipc host); fi
if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then command+=(--env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"); fi
command+=(--mount "type=bind,source=$data,target=/data" --mount "type=bind,source=$runs,target=/workspace/runs")
command+=("$image" "$@")

if [[ -n $print_only ]]; then
    print_command "${command[@]}"
    exit 0
fi
exec "${command[@]}"
