"""Check this machine: its devices, the tools that can run here, and the remedy for everything that is missing."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.machine.devices import Devices, cpu_description, driver_version, installed_version, native_bf16
from bench.profilers import PROFILERS, load_profiler
from bench.submit.job import CLUSTERS
from common.errors import BertbenchError
from common.tools import run_program
from records.trial import Trial

OK, WARNING, MISSING = "ok", "warning", "missing"
# Seconds to wait for a tool.
_TOOL_SECONDS = 10.0
# How to install each distribution.
_PACKAGES = {
    "torch": "make setup",
    "h5py": "make setup",
    "tokenizers": "make setup",
    "nanotoken": "make setup, for text to tokens in a thirtieth of the time",
    "zlib-ng": "make setup, for shards written in two thirds of the time",
    "transformers": "pip install 'bertbench[hf]' for the implementations hf, hf-compiled, hf-unpadded and hf-trainer",
    "nvidia-ml-py": "make setup, for GPU power and clocks",
    "nvtx": "pip install 'bertbench[gpu]' for NVTX ranges",
    "scikit-learn": "pip install 'bertbench[scores]' for scores of GLUE",
    "tensorboard": "pip install 'bertbench[tensorboard]' for the scalars of trainings",
    "optuna": "pip install 'bertbench[tune]' for `bertbench tune`",
    "ncu-report": "pip install 'bertbench[ncu]' to read reports of Nsight Compute (.ncu-rep)",
    "deepspeed": "pip install 'bertbench[deepspeed]' for the strategy deepspeed",
    "horovod": "build the image with WITH_HOROVOD=1 for the strategy horovod",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report."""

    name: str
    state: str
    """ok, warning (works, but affects measurements) or missing (needed only for what the remedy names)."""
    detail: str
    remedy: str = ""


def examine(devices: Devices | BertbenchError) -> list[Check]:
    """Check everything the suite can use. `devices` is the result or error of find_devices."""
    return [*_hardware(devices), *_packages(), *_tools(), *_profilers(devices), *_state()]


def _check(name: str, is_there: bool, detail: str, remedy: str, otherwise: str = MISSING) -> Check:
    return Check(name, OK, detail) if is_there else Check(name, otherwise, detail, remedy)


def _hardware(devices: Devices | BertbenchError) -> Iterator[Check]:
    yield Check("Python", OK, f"{sys.version.split()[0]} at {sys.executable}")
    cpu = cpu_description()
    sets = " ".join(flag for flag in cpu["flags"] if flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve"))
    yield Check("CPU", OK, f"{cpu['model']}, {cpu['physical_cores']} cores ({cpu['usable_cores']} usable), {sets}")
    if isinstance(devices, BertbenchError):
        yield Check("GPU", WARNING, str(devices), "correct CUDA_VISIBLE_DEVICES")
        return
    if not devices.gpus:
        remedy = "to use GPUs, install the NVIDIA driver, and start containers with start_container.sh"
        yield Check("GPU", MISSING, devices.note, remedy)
    for index, gpu in enumerate(devices.gpus):
        memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / 2**30:.0f} GiB"
        yield Check(f"GPU {index}", OK, f"{gpu.name}{memory}, {gpu.uuid}, driver {driver_version()}")
    details = {True: "in hardware", False: "not in hardware: GEMMs are emulated and slower than fp32", None: "unknown"}
    native = native_bf16(devices)
    yield _check(
        "bf16", native is True, details[native], "use --precisions fp32 (the default auto selects it)", WARNING
    )


def _packages() -> Iterator[Check]:
    for name, remedy in _PACKAGES.items():
        version = installed_version(name)
        yield _check(f"package {name}", version is not None, version or "not installed", remedy)


def _tools() -> Iterator[Check]:
    tools = {
        os.environ.get("CC", "cc"): "install a C compiler, or name it with CC=, for the fast step on a CPU",
        "nvidia-smi": "install the NVIDIA driver, which includes it",
        **{each.tool: f"for `bertbench submit`: {each.remedy}" for each in CLUSTERS.values()},
    }
    for name, remedy in tools.items():
        path = shutil.which(name)
        yield _check(f"tool {name}", path is not None, path or "not on PATH", remedy)
    if "BERTBENCH_REVISION" in os.environ:  # set in the container image, which starts no containers
        return
    engine = shutil.which("docker") or shutil.which("podman")
    yield _check("tool docker", engine is not None, engine or "not on PATH", "install docker or podman for containers")


def _with_version(path: str) -> str:
    try:
        lines = run_program([path, "--version"], _TOOL_SECONDS).stdout.splitlines()
    except BertbenchError as error:
        return str(error)
    return next((f"{path}: {line.strip()}" for line in reversed(lines) if any(map(str.isdigit, line))), path)


def _profilers(devices: Devices | BertbenchError) -> Iterator[Check]:
    """Check whether every profiler can run here, by `Profiler.check`, so that `bertbench profile` agrees."""
    device = devices.kind if isinstance(devices, Devices) else "cuda"
    without_gpu = {"torch": "CPU operators", "nsys": "NVTX ranges"}
    for name in PROFILERS:
        trial = Trial(kind="profile", device=device, profiler=name, start_iteration=10, stop_iteration=13)
        try:
            load_profiler(name).check(trial)
        except BertbenchError as error:
            problem, _, remedy = str(error).partition(": ")  # messages have the form "problem: remedy"
            yield Check(f"profiler {name}", MISSING, problem, remedy)
            continue
        tool, version = shutil.which(name), installed_version(name)
        detail = _with_version(tool) if tool else f"{name} {version}" if version else f"{name} is not installed"
        if device == "cpu" and name in without_gpu:
            detail += f"; without a GPU: {without_gpu[name]}"
        yield _check(f"profiler {name}", bool(tool or version), detail, "make setup")


def _state() -> Iterator[Check]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    idle, detail = load <= 0.2 * cores, f"load average {load:.1f} on {cores} cores"
    yield _check("load", idle, detail, "stop other work before measuring", WARNING)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield _check("disk", free > 5, f"{free:.0f} GiB free", "free disk space", WARNING)
