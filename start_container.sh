#!/usr/bin/env bash
# Runs a command in the bertbench container:
#
#   bash start_container.sh [--profiling] [--print] [--help] DATA_DIR [--] [COMMAND ...]
#
#   DATA_DIR      your data, mounted at /data; the folder is created if it does not exist
#   COMMAND       what to run in /workspace, with its arguments; a shell without one
#   --profiling   let Nsight Compute read the GPUs' counters: adds the one capability that the driver asks for
#   --print       print the command, run and create nothing
#   --help        print this
#
# Results are written to ./runs on this machine (/workspace/runs inside). The command runs as you, not as root. All
# NVIDIA GPUs are passed on where the engine can do so (NVIDIA runtime or CDI); otherwise it runs on the CPU and says so.
# InfiniBand devices are passed to the container if present.
#
# By environment:
#   CUDA_VISIBLE_DEVICES, NCCL_*, GLOO_SOCKET_IFNAME, OMP_NUM_THREADS      passed on unchanged
#   GPUS            auto, all (fail without GPUs) or none                     (auto)
#   RUNS_DIR        folder for results                                        (./runs)
#   IMAGE           image to run                    (bertbench:cuda with GPUs, else bertbench:cpu)
#   SHM_SIZE        private shared memory of this size, e.g. 16g              (the host's: --ipc=host)
#   NETWORK         the engine's --network; several nodes need host           (the engine's default)
#   PROFILING_CAPABILITY    PERFMON or SYS_ADMIN     (PERFMON from driver 565 and Docker 23 on, else SYS_ADMIN)
#   CDI_SPEC_DIRS   folders of CDI specifications, colon-separated            (/etc/cdi:/var/run/cdi)
#   ENGINE          docker or podman                                          (the first that answers)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"
usage='usage: bash start_container.sh [--profiling] [--print] [--help] DATA_DIR [--] [COMMAND ...]'
toolkit='https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html'
host=${TEST_HOST:-} # tests put a folder in front of /dev and /proc

engine_info() {
    "$ENGINE" info --format "$1" 2>/dev/null || true
}

has_gpu() {
    [[ $(nvidia-smi -L 2>/dev/null) == *GPU* ]]
}

# Docker's --gpus needs the toolkit's hook; the runtime of that name need not be registered.
has_nvidia_runtime() {
    command -v nvidia-container-runtime-hook >/dev/null || [[ $(engine_info '{{json .Runtimes}}') == *'"nvidia"'* ]]
}

has_cdi() {
    local -a folders
    # Docker ignores CDI unless it is switched on, and then lists its folders.
    if [[ $DIALECT == docker && $(engine_info '{{json .CDISpecDirs}}') != *'"'* ]]; then return 1; fi
    IFS=: read -r -a folders <<<"${CDI_SPEC_DIRS:-/etc/cdi:/var/run/cdi}"
    grep -rqs 'nvidia\.com/gpu' "${folders[@]}"
}

# Sets gpu_options; empty means CPU only; the reason is printed.
choose_gpus() {
    local reason
    gpu_options=()
    case ${GPUS:-auto} in
        none) reason="GPUS=none" ;;
        auto | all)
            if [[ ${GPUS:-auto} == auto ]] && ! has_gpu; then
                reason="nvidia-smi lists no GPU here (GPUS=all insists)"
            elif [[ $DIALECT == docker ]] && has_nvidia_runtime; then
                gpu_options=(--gpus all)
            elif [[ $DIALECT == podman ]] && is_older "$(engine_version)" 4.1; then
                reason="$ENGINE $(engine_version) is too old for GPUs: 4.1 or newer is needed"
            elif has_cdi; then
                gpu_options=(--device nvidia.com/gpu=all)
            else
                reason="$ENGINE has neither the NVIDIA runtime nor a CDI specification; install the NVIDIA Container Toolkit: $toolkit"
                if [[ $DIALECT == podman ]]; then reason+=", then sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"; fi
            fi
            ;;
        *) die "GPUS=$GPUS is not known: use auto, all or none" ;;
    esac
    if ((${#gpu_options[@]} == 0)); then
        if [[ ${GPUS:-auto} == all ]]; then die "GPUS=all, but $reason"; fi
        note "CPU only: $reason"
    fi
}

# Sets user (uid:gid), groups, rootless, user_options and limit_options: no limit on locked memory where it may be lifted.
choose_user() {
    local group
    user="$(id -u):$(id -g)"
    read -r -a groups < <(id -G || echo "${user#*:}")
    rootless=
    if [[ $user == 0:* && ${SUDO_UID:-0} =~ ^[1-9][0-9]*$ ]]; then
        user="$SUDO_UID:${SUDO_GID:-$SUDO_UID}"
        read -r -a groups < <(id -G "$SUDO_UID" 2>/dev/null || echo "${user#*:}")
        note "called by sudo: the command runs as $user, who called it"
    elif [[ $user == 0:* ]]; then
        note "called by root: the command runs as root in the container, and what it writes belongs to root"
    fi
    # Folders may be yours by a second group only.
    user_options=(--user "$user" --security-opt no-new-privileges)
    for group in "${groups[@]}"; do user_options+=(--group-add "$group"); done
    limit_options=(--ulimit memlock=-1 --ulimit stack=67108864)
    if [[ $DIALECT == podman ]]; then
        if [[ $(id -u) != 0 ]]; then
            user_options=(--user "$user" --security-opt no-new-privileges)
            if [[ $(engine_info '{{.Host.OCIRuntime.Name}}') == crun ]]; then user_options+=(--group-add keep-groups); fi
        fi
        # Without this, SELinux denies access to the mounted folders and the GPUs; relabeling your data would be worse.
        user_options+=(--security-opt label=disable)
        if [[ $(id -u) != 0 ]]; then
            rootless=yes
            user_options+=(--userns keep-id)
            limit_options=(--ulimit host)
        fi
    elif [[ $(engine_info '{{json .SecurityOptions}}') == *rootless* ]]; then
        # A rootless Docker maps its uid 0 to the caller, and may not raise limits.
        rootless=yes
        user_options=(--user 0:0 --security-opt no-new-privileges)
        limit_options=()
    fi
}

# Sets profiling_options. NVIDIA's rule: https://developer.nvidia.com/ERR_NVGPUCTRPERM
choose_profiling() {
    local capability=${PROFILING_CAPABILITY:-} driver
    profiling_options=()
    [[ -n $profiling ]] || return 0
    if ((${#gpu_options[@]} == 0)); then
        note "--profiling: no GPU is passed on, so there is nothing to permit"
        return
    fi
    if grep -qs 'RmProfilingAdminOnly: 0' "$host/proc/driver/nvidia/params"; then
        note "--profiling: this machine's driver lets every user read the counters; no capability is added"
        return
    fi
    [[ -z $rootless ]] || die "--profiling cannot work under a rootless $ENGINE: the driver does not accept its capabilities." \
        "Ask your administrator for NVreg_RestrictProfilingToAdminUsers=0 (docs/how-to/container.md), or use an engine that runs as root"
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
    if [[ -z $capability ]]; then
        capability=SYS_ADMIN
        # Docker knows PERFMON from 23 on.
        if [[ $driver =~ ^[0-9]+ && ${BASH_REMATCH[0]} -ge 565 ]] &&
            ! { [[ $DIALECT == docker ]] && is_older "$(engine_version)" 23; }; then
            capability=PERFMON
        fi
    fi
    [[ $capability == PERFMON || $capability == SYS_ADMIN ]] ||
        die "PROFILING_CAPABILITY=$capability is not known: use PERFMON or SYS_ADMIN"
    note "--profiling: adds the capability $capability (driver ${driver:-unknown})"
    profiling_options=(--cap-add "$capability")
    if [[ $user != 0:* ]]; then
        # Docker gives an added capability to root alone; the entrypoint becomes the caller and keeps this one.
        user_options=("${user_options[@]/$user/0:0}")
        profiling_options+=(--env "BERTBENCH_RUN_AS=$user:$(IFS=, && echo "${groups[*]}")" --env "BERTBENCH_CAPABILITY=${capability,,}")
    fi
}

# Sets device_options and environment_options.
choose_devices_and_environment() {
    local name
    device_options=() environment_options=()
    if [[ -d $host/dev/infiniband ]]; then
        device_options=(--device /dev/infiniband)
        note "InfiniBand: /dev/infiniband is passed on"
    fi
    for name in CUDA_VISIBLE_DEVICES GLOO_SOCKET_IFNAME OMP_NUM_THREADS "${!NCCL_@}"; do
        if [[ -n ${!name+set} ]]; then environment_options+=(--env "$name=${!name}"); fi
    done
}

# Prints the absolute path of folder $2, creating it unless only printing; $1 is its name in messages.
folder() {
    local path
    path=$(realpath -m -- "$2")
    case $path in *[,\"]*) die "$1 '$2' has a comma or a quote in its path, which --mount cannot take: rename it" ;; esac
    if [[ -e $path && ! -d $path ]]; then die "$1 '$2' is a file: give a folder"; fi
    if [[ ! -e $path && -z $print_only ]]; then
        note "$1 $path does not exist: creating it"
        # Under sudo it belongs to the one who called.
        as_user mkdir -p -- "$path" 2>/dev/null || { mkdir -p -- "$path" 2>/dev/null && chown "$user" "$path"; } ||
            die "$1 '$2' does not exist and cannot be created: choose another folder"
    fi
    printf '%s\n' "$path"
}

# Runs a command as the user inside: under sudo the one who called.
as_user() {
    if [[ $(id -u) == 0 && $user != 0:* ]]; then
        setpriv --reuid "${user%:*}" --regid "${user#*:}" --groups "$(IFS=, && echo "${groups[*]}")" "$@"
    else
        "$@"
    fi
}

print_only='' profiling=''
while (($#)); do
    case $1 in
        --profiling) profiling=yes ;;
        --print) print_only=yes ;;
        -h | --help) show_help "${BASH_SOURCE[0]}" && exit 0 ;;
        --) shift && break ;;
        -*) die "unknown option '$1': $usage" ;;
        *) break ;;
    esac
    shift
done
if (($# == 0)) || [[ -z $1 ]]; then die "no DATA_DIR given: $usage"; fi
data_argument=$1
shift
case ${1:-} in
    --) shift ;;
    -*) die "option '$1' stands after DATA_DIR: options come before it, and a command that starts with - after --; $usage" ;;
esac

find_engine
if [[ -z $print_only ]]; then require_engine; fi
choose_gpus
choose_user
choose_profiling
choose_devices_and_environment
if ((${#gpu_options[@]})); then target=cuda; else target=cpu; fi
image=${IMAGE:-bertbench:$target}
if [[ -z $print_only ]] && ! "$ENGINE" image inspect "$image" >/dev/null 2>&1; then
    cpu=$([[ $target == cuda ]] || printf ' --cpu')
    if [[ -n ${IMAGE:-} ]]; then
        die "image $image not found: get it with: $ENGINE pull $image, or build it with: IMAGE=$image bash build_image.sh$cpu"
    fi
    die "image $image not found: build it with: bash build_image.sh$cpu"
fi
runs=$(folder RUNS_DIR "${RUNS_DIR:-runs}")
if [[ -z $print_only ]]; then
    as_user test -w "$runs" || die "RUNS_DIR $runs is not writable for you: give another with RUNS_DIR=<folder>"
fi
data=$(folder DATA_DIR "$data_argument")
if [[ -z $print_only ]]; then
    { as_user test -r "$data" && as_user test -x "$data"; } || die "DATA_DIR $data cannot be read by you: give a folder of yours"
    as_user test -w "$data" || note "DATA_DIR $data is not writable for you: it can be read, but no data can be prepared in it"
fi

command=("$ENGINE" run --rm --interactive)
if [[ -t 0 && -t 1 ]]; then command+=(--tty); fi
command+=("${user_options[@]}" "${limit_options[@]}" "${gpu_options[@]}" "${device_options[@]}" "${profiling_options[@]}")
if [[ -n ${SHM_SIZE:-} ]]; then command+=(--shm-size "$SHM_SIZE"); else command+=(--ipc host); fi
if [[ -n ${NETWORK:-} ]]; then command+=(--network "$NETWORK"); fi
command+=("${environment_options[@]}")
command+=(--mount "type=bind,source=$data,target=/data" --mount "type=bind,source=$runs,target=/workspace/runs")
command+=("$image" "$@")

if [[ -n $print_only ]]; then
    print_command "${command[@]}"
    exit 0
fi
exec "${command[@]}"
