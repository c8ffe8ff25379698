"""A program recorded by the real nsys."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

# All that nsys says when its connection to its own agent breaks at start, before the program runs: about once in some
# hundred calls on a busy machine.
_AGENT_LOST = "End of file"
# In what nsys 2022.4 throws where its agent was not there in time, likewise on a busy machine.
_NO_ENDPOINT = "Local Endpoint is not available"


def skip_unless_nsys_can_record_nvtx() -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    try:
        nvtx = importlib.metadata.version("nvtx")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package nvtx is not installed")
    said = subprocess.run(["nsys", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    year = re.search(r"\b(20\d\d)\.", said)
    newer = tuple(int(part) for part in re.findall(r"\d+", nvtx)[:3]) > (0, 2, 11)
    if newer and (year is None or int(year[1]) < 2023):
        pytest.skip(f"nvtx {nvtx} loses its ranges with this nsys ({said.strip()}): nvtx 0.2.11 keeps them")


def record(folder: Path, program: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Return the report of Python's `program`, run in `folder`; again where nsys lost its agent at the start."""
    report = folder / "report.nsys-rep"
    command = [
        "nsys",
        "profile",
        "-t",
        "nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        *options,
        "-o",
        "report",
        "-f",
        "true",
    ]
    for _ in range(3):
        done = subprocess.run(
            [*command, sys.executable, *program],
            cwd=folder,
            env={**os.environ, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0", **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        said = (done.stdout + done.stderr).strip()
        if said != _AGENT_LOST and _NO_ENDPOINT not in said:
            break
    assert report.is_file(), said
    return report
