#!/usr/bin/env bash
# Makes the checkout in /workspace an installed one that any uid can run. It is all that a change of the code remakes.

set -euo pipefail
checkout=${1:-/workspace}
venv=${VIRTUAL_ENV:-/opt/venv}
cd "$checkout"

"$venv/bin/pip" install --quiet --no-deps --no-build-isolation --no-index --editable .
# The range that pyproject.toml asks of torch, where the base image brought its own.
"$venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import requires, version

from packaging.requirements import Requirement

for requirement in map(Requirement, requires("bertbench") or []):
    if requirement.name == "torch" and not requirement.specifier.contains(version("torch"), prereleases=True):
        sys.exit(f"checkout.sh: torch {version('torch')} does not fit {requirement}: take another base image or TORCH_VERSION")
PYTHON
chmod -R a+rX .
"$venv/bin/python" -m compileall -q analysis bench bert bertbench.py common records
mkdir -p runs /data
chmod 1777 runs /data
