#!/usr/bin/env bash
# The other Python packages, locked with their hashes, and the packages of the WITH_ arguments.
#
# By environment, each 1 or 0:
#   WITH_DEEPSPEED    DeepSpeed; compiles its operators when they are first used
#   WITH_HOROVOD      Horovod, compiled here: with NCCL where the base image has nvcc, else with Gloo

set -euo pipefail
locks=${1:-/opt/bertbench/locks}
venv=${VIRTUAL_ENV:-/opt/venv}

locked() {
    "$venv/bin/pip" install --require-hashes --no-deps --no-build-isolation --use-pep517 --requirement "$locks/$1.txt"
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
if [[ ${WITH_DEEPSPEED:-0} == 1 ]]; then
    command -v nvcc >/dev/null || export DS_ACCELERATOR=cpu
    locked deepspeed
fi
if [[ ${WITH_HOROVOD:-0} == 1 ]]; then horovod; fi
"$venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__, "CUDA", torch.version.cuda)
PYTHON
