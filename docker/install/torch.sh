#!/usr/bin/env bash
# The virtual environment /opt/venv and torch in it: the base image's own torch where it has one (NVIDIA's PyTorch
# images), else the locked one.
#
# By environment:
#   TORCH_INDEX     wheel index; `pip`: the index pip is configured for. Unset: the same index, with hashes checked
#   TORCH_VERSION   version to take from TORCH_INDEX   (the locked one)

set -euo pipefail
lock=${1:-/opt/bertbench/locks/torch.txt}
venv=${VIRTUAL_ENV:-/opt/venv}
locked=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' "$lock")

if own=$(python3 -c 'import torch; print(torch.__version__)' 2>/dev/null); then
    echo "torch.sh: the base image's torch $own is used${TORCH_INDEX:+, TORCH_INDEX is not}"
    python3 -m venv --system-site-packages "$venv"
    exit 0
fi
python3 -m venv "$venv"
if [[ ${TORCH_INDEX:-} == pip ]]; then
    "$venv/bin/pip" install "torch==${TORCH_VERSION:-$locked}"
elif [[ -n ${TORCH_INDEX:-} ]]; then
    "$venv/bin/pip" install --index-url "$TORCH_INDEX" "torch==${TORCH_VERSION:-$locked}"
elif [[ -z ${TORCH_VERSION:-} || $TORCH_VERSION == "$locked" ]]; then
    "$venv/bin/pip" install --require-hashes --no-deps --requirement "$lock"
else
    "$venv/bin/pip" install "torch==$TORCH_VERSION"
fi
