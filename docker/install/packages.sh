#!/usr/bin/env bash
# The other Python packages, locked with their hashes, and the packages of the WITH_ arguments.
#
# By environment, each 1 or 0:
#   WITH_DEEPSPEED    DeepSpeed; compiles its operators when they are first used
#   WITH_HOROVOD      Horovod, compiled here: with NCCL where the base image has nvcc, else with Gloo
#   WITH_DLPROF       nvidia-dlprof-pytorch-nvtx, from NVIDIA's index

set -euo pipefail
locks=${1:-/opt/bertbench/locks}
venv=${VIRTUAL_ENV:-/opt/venv}

locked() {
    "$venv/bin/pip" install --require-hashes --no-deps --no-build-isolation --use-pep517 --requirement "$locks/$1.txt"
}

asked() {
    local name=WITH_$1
    case ${!name:-0} in
        1) return 0 ;;
        0) return 1 ;;
        *) echo "packages.sh: $name=${!name} is invalid: use 1 or 0" >&2 && exit 1 ;;
    esac
}

# Horovod 0.28.1 asks for C++14, torch's headers need C++17: its sources are unpacked, checked, corrected and built.
horovod() {
    local folder
    folder=$(mktemp -d)
    "$venv/bin/pip" install --require-hashes --no-deps --requirement <(sed '/^horovod==/,$d' "$locks/horovod.txt")
    sed -n '/^horovod==/,$p' "$locks/horovod.txt" >"$folder/horovod.txt"
    "$venv/bin/pip" download --require-hashes --no-deps --no-build-isolation --dest "$folder" --requirement "$folder/horovod.txt"
    tar --extract --gzip --file "$folder"/horovod-*.tar.gz --directory "$folder" --strip-components 1
    grep -rlE 'CMAKE_CXX_STANDARD 14' --include=CMakeLists.txt "$folder" |
        xargs -r sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/'
    if command -v nvcc >/dev/null; then export HOROVOD_GPU_OPERATIONS=NCCL; fi
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 \
        "$venv/bin/pip" install --no-deps --no-build-isolation --use-pep517 "$folder"
    rm -rf "$folder"
    "$venv/bin/python" -c 'import horovod.torch'
}

locked packages
if asked DEEPSPEED; then
    command -v nvcc >/dev/null || export DS_ACCELERATOR=cpu
    locked deepspeed
fi
if asked HOROVOD; then horovod; fi
if asked DLPROF; then
    "$venv/bin/pip" install --no-deps --index-url https://pypi.ngc.nvidia.com nvidia-dlprof-pytorch-nvtx==1.8.0
fi
"$venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__, "CUDA", torch.version.cuda)
PYTHON
