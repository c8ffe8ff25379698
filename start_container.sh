#!/usr/bin/env bash
# Runs a command in the bertbench container:
#
#   bash start_container.sh [--cpu] [--profiling] [--print] [--help] DATA_DIR [--] [COMMAND ...]
#
#   DATA_DIR      your data, mounted at /data; the folder is created if it does not exist
#   COMMAND       what to run in /workspace, with its arguments; a shell without one
#   --cpu         use no GPU
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
#   RUNS_DIR        folder for results                                        (./runs)
#   IMAGE           image to run                    (bertbench:cuda with GPUs, else bertbench:cpu)
#   SHM_SIZE        private shared memory of this size, e.g. 16g              (the host's: --ipc=host)
#   NETWORK         the engine's --network; several nodes need host           (the engine's default)
#   ENGINE          docker or podman                                          (the first that answers)

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/engine.sh
source "$root/docker/engine.sh"
usage='usage: bash start_container.sh [--cpu] [--profiling] [--print] [--help] DATA_DIR [--] [COMMAND ...]'
host=${TEST_HOST:-} # tests put a folder in front of /dev, /etc and /proc

engine_info() {
    "$ENGINE" info --format "$1" 2>/dev/null || true
}

# Docker's --gpus needs the toolkit's hook; the runtime of that name need not be registered.
has_nvidia_runtime() {
    [[ $DIALECT == docker ]] &&
        { command -v nvidia-container-runtime-hook >/dev/null || [[ $(engine_info '{{json .Runtimes}}') == *'"nvidia"'* ]]; }
}

# Docker ignores CDI unless it is switched on, and then lists its folders.
has_cdi() {
    if [[ $DIALECT == docker && $(engine_info '{{json .CDISpecDirs}}') != *'"'* ]]; then return 1; fi
    grep -rqs 'nvidia\.com/gpu' "$host/etc/cdi" "$host/var/run/cdi"
}

# Sets gpu_options; empty means CPU only; the reason is printed.
choose_gpus() {
    gpu_options=()
    if [[ -n $cpu ]]; then
        return
    elif [[ $(nvidia-smi -L 2>/dev/null) != *GPU* ]]; then
        note "CPU only: nvidia-smi lists no GPU here"
    elif has_nvidia_runtime; then
        gpu_options=(--gpus all)
    elif has_cdi; then
        gpu_options=(--device nvidia.com/gpu=all)
    else
        note "CPU only: $ENGINE has neither the NVIDIA runtime nor a CDI specification; install the NVIDIA Container Toolkit:" \
            "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
    fi
}

# Sets user (uid:gid), groups, rootless and user_options, with no limit on locked memory where it may be lifted.
choose_user() {
    local group
    local -a of=()
    user="$(id -u):$(id -g)" rootless=''
    if [[ $user == 0:* && -n ${SUDO_UID:-} ]]; then user="$SUDO_UID:${SUDO_GID:-$SUDO_UID}" of=("$SUDO_UID"); fi
    read -r -a groups < <(id -G "${of[@]}" 2>/dev/null || echo "${user#*:}")
    user_options=(--user "$user" --ulimit memlock=-1 --ulimit stack=67108864)
    # Folders may be yours by a second group only.
    for group in "${groups[@]}"; do user_options+=(--group-add "$group"); done
    if [[ $DIALECT == podman && $(id -u) != 0 ]]; then
        rootless=yes user_options=(--user "$user" --userns keep-id --ulimit host)
        if [[ $(engine_info '{{.Host.OCIRuntime.Name}}') == crun ]]; then user_options+=(--group-add keep-groups); fi
    elif [[ $DIALECT == docker && $(engine_info '{{json .SecurityOptions}}') == *rootless* ]]; then
        # A rootless Docker maps its uid 0 to the caller, and may not raise limits.
        rootless=yes user_options=(--user 0:0)
    fi
    user_options+=(--security-opt no-new-privileges)
    # Without this, SELinux denies access to the mounted folders and the GPUs; relabeling your data would be worse.
    if [[ $DIALECT == podman ]]; then user_options+=(--security-opt label=disable); fi
}

# Sets profiling_options. NVIDIA's rule: https://developer.nvidia.com/ERR_NVGPUCTRPERM
choose_profiling() {
    local capability=SYS_ADMIN driver
    profiling_options=()
    if [[ -z $profiling || ${#gpu_options[@]} == 0 ]] || grep -qs 'RmProfilingAdminOnly: 0' "$host/proc/driver/nvidia/params"; then
        return # nothing to permit, or every user may read the counters
    fi
    [[ -z $rootless ]] || die "--profiling cannot work under a rootless $ENGINE: the driver does not accept its capabilities." \
        "Ask your administrator for NVreg_RestrictProfilingToAdminUsers=0 (docs/how-to/container.md), or use an engine that runs as root"
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
    if [[ $driver =~ ^[0-9]+ && ${BASH_REMATCH[0]} -ge 565 ]]; then capability=PERFMON; fi
    note "--profiling: adds the capability $capability"
    profiling_options=(--cap-add "$capability")
    if [[ $user != 0:* ]]; then
        # Docker gives an added capability to root alone; the entrypoint becomes the caller and keeps this one.
        user_options=("${user_options[@]/$user/0:0}")
        profiling_options+=(--env "BERTBENCH_RUN_AS=$user:$(IFS=, && echo "${groups[*]}")" --env "BERTBENCH_CAPABILITY=${capability,,}")
    fi
}

# Prints the absolute path of folder $2, creating it unless only printing; $1 is its name in messages.
folder() {
    if [[ ! -d $2 && -z $print_only ]]; then
        mkdir -p -- "$2" || die "$1 '$2' cannot be created: give a folder"
        if [[ $(id -u) == 0 ]]; then chown "$user" "$2"; fi # under sudo it belongs to the one who called
    fi
    realpath -m -- "$2"
}

cpu='' print_only='' profiling=''
while (($#)); do
    case $1 in
        --cpu) cpu=yes ;;
        --profiling) profiling=yes ;;
        --print) print_only=yes ;;
        -h | --help) show_help "${BASH_SOURCE[0]}" && exit 0 ;;
        --) shift && break ;;
        -*) die "unknown option '$1': $usage" ;;
        *) break ;;
    esac
    shift
done
data_argument=${1:-}
[[ -n $data_argument ]] || die "no DATA_DIR given: $usage"
shift
case ${1:-} in
    --) shift ;;
    -*) die "option '$1' stands after DATA_DIR: options come before it, and a command that starts with - after --; $usage" ;;
esac

find_engine
choose_gpus
choose_user
choose_profiling
if ((${#gpu_options[@]})); then target=cuda; else target=cpu; fi
image=${IMAGE:-bertbench:$target}
if [[ -z $print_only ]]; then
    require_engine
    "$ENGINE" image inspect "$image" >/dev/null 2>&1 ||
        die "image $image not found: build it with: ${IMAGE:+IMAGE=$IMAGE }bash build_image.sh$([[ $target == cuda ]] || echo ' --cpu')"
fi
runs=$(folder RUNS_DIR "${RUNS_DIR:-runs}")
data=$(folder DATA_DIR "$data_argument")

command=("$ENGINE" run --rm --interactive)
if [[ -t 0 && -t 1 ]]; then command+=(--tty); fi
command+=("${user_options[@]}" "${gpu_options[@]}" "${profiling_options[@]}")
if [[ -d $host/dev/infiniband ]]; then command+=(--device /dev/infiniband); fi
if [[ -n ${SHM_SIZE:-} ]]; then command+=(--shm-size "$SHM_SIZE"); else command+=(--ipc host); fi
if [[ -n ${NETWORK:-} ]]; then command+=(--network "$NETWORK"); fi
for name in CUDA_VISIBLE_DEVICES GLOO_SOCKET_IFNAME OMP_NUM_THREADS "${!NCCL_@}"; do
    if [[ -n ${!name+set} ]]; then command+=(--env "$name=${!name}"); fi
done
command+=(--mount "type=bind,source=$data,target=/data" --mount "type=bind,source=$runs,target=/workspace/runs" "$image" "$@")
if [[ -n $print_only ]]; then print_command "${command[@]}"; else exec "${command[@]}"; fi
