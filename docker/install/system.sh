#!/usr/bin/env bash
# System packages, for any base image with apt. g++, make and Python's headers compile what torch, DeepSpeed and Horovod
# compile; setpriv (util-linux) hands a capability on, see entrypoint.sh.

set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

has_python() {
    python3 - 2>/dev/null <<'PYTHON'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not (sys.version_info >= (3, 11) and os.path.exists(header)))
PYTHON
}

packages=(ca-certificates g++ make tini util-linux)
has_python || packages+=(python3 python3-dev python3-venv)
apt-get update
apt-get install -y --no-install-recommends "${packages[@]}"
rm -rf /var/lib/apt/lists/*

if ! has_python; then
    echo "system.sh: bertbench needs Python 3.11 or newer with venv and headers; this base image gives $(python3 --version 2>&1)." \
        "Give another with BASE_IMAGE=" >&2
    exit 1
fi
