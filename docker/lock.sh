#!/usr/bin/env bash
# Writes docker/locks/*.txt: exact versions with hashes, for every Python from 3.11 on. Needs uv: PATH=$PWD/.venv/bin:$PATH.
#
#   bash docker/lock.sh [uv option ...]     e.g. --upgrade, or --upgrade-package transformers
#
# What is locked stays as it is unless an option asks for newer versions. Each file holds what the ones before it lack:
#   torch.txt         torch from PyPI with its CUDA libraries
#   packages.txt      everything else that bertbench needs
#   deepspeed.txt, horovod.txt      what WITH_DEEPSPEED and WITH_HOROVOD add

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Replaced only when all of it is there.
locks=$scratch/locks
mkdir -p docker/locks
cp -r docker/locks "$locks"

compile() {
    uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command lock.sh "$@"
}

# The names in a lock, one per line.
names() {
    sed -n 's/^\([a-z0-9._-]*\)==.*/\1/p' "$@" | sort -u
}

# Sets skip: options that leave out the given packages.
leave_out() {
    local name
    skip=()
    for name in "$@"; do skip+=(--no-emit-package "$name"); done
}

printf '%s\n' 'torch ; sys_platform == "linux"' >"$scratch/torch.in"
printf '%s\n' 'horovod==0.28.1' cloudpickle 'cmake<4' >"$scratch/horovod.in"
# All that a command of the image may need.
extras=(--extra hf --extra gpu --extra tune --extra scores --extra tensorboard)
# Everything at once, so that the files agree.
find "$locks" -name "*.txt" -exec cat {} + >"$scratch/all.txt"
compile pyproject.toml <(printf '%s\n' cloudpickle 'cmake<4') "${extras[@]}" --extra deepspeed \
    --output-file "$scratch/all.txt" "$@"

compile "$scratch/torch.in" --constraint "$scratch/all.txt" --output-file "$locks/torch.txt"
mapfile -t cuda < <(names "$locks/torch.txt" | grep -E '^(torch|triton|cuda-.*|nvidia-.*)$')
leave_out "${cuda[@]}"
compile pyproject.toml "${extras[@]}" --constraint "$scratch/all.txt" "${skip[@]}" --output-file "$locks/packages.txt"
mapfile -t present < <(names "$locks/torch.txt" "$locks/packages.txt")
leave_out "${present[@]}"
compile pyproject.toml "${extras[@]}" --extra deepspeed --constraint "$scratch/all.txt" "${skip[@]}" \
    --output-file "$locks/deepspeed.txt"
# Their own metadata can only be had by building them; what they need is in packages.txt, or named above.
compile "$scratch/horovod.in" --no-deps --constraint "$scratch/all.txt" --output-file "$locks/horovod.txt"
cp "$locks"/*.txt docker/locks/
