"""Check this machine: its devices, the tools that can run here, and the remedy for everything that is missing."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.machine.environment import cpu_description, driver_version, installed_version, native_bf16
from bench.profilers import PROFILERS, load_profiler
from bench.submit.job import CLUSTERS
from common.errors import BertbenchError
from common.registry import lookup
from common.tools import run_program
from records.trial import Trial

OK, WARNING, MISSING = "ok", "warning", "missing"
ENGINE_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a tool; a container engine that hangs keeps its socket open without an answer."""
PACKAGES = {
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
"""How to install each distribution."""


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
    return [*_hardware(devices), *_packages(), *_tools(), *profiler_checks(devices), *_state()]


FEATURES = ("cuda", "bf16", "hf")
"""What `has` answers."""


def has(feature: str, devices: Devices) -> bool:
    """Return whether a feature is available: cuda, bf16 (in hardware) or hf (transformers installed)."""
    answers = {
        "cuda": devices.kind == "cuda",
        "bf16": native_bf16(devices) is True,
        "hf": importlib.util.find_spec("transformers") is not None,
    }
    return lookup(answers, feature, "feature")


def _hardware(devices: Devices | BertbenchError) -> Iterator[Check]:
    yield Check("Python", OK, f"{sys.version.split()[0]} at {sys.executable}")
    cpu = cpu_description()
    sets = " ".join(flag for flag in cpu["flags"] if flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve"))
    yield Check("CPU", OK, f"{cpu['model']}, {cpu['physical_cores']} cores ({cpu['usable_cores']} usable), {sets}")
    if isinstance(devices, BertbenchError):
        yield Check("GPU", WARNING, str(devices), "correct CUDA_VISIBLE_DEVICES")
        return
    if not devices.gpus:
        remedy = (
            "everything runs on the CPU; to use GPUs, install the NVIDIA driver, and start containers with "
            "start_container.sh, which passes the GPUs through"
        )
        yield Check("GPU", MISSING, devices.note, remedy)
    for index, gpu in enumerate(devices.gpus):
        memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / 2**30:.0f} GiB"
        yield Check(f"GPU {index}", OK, f"{gpu.name}{memory}, {gpu.uuid}, driver {driver_version()}")
    details = {True: "in hardware", False: "not in hardware: GEMMs are emulated and slower than fp32", None: "unknown"}
    native = native_bf16(devices)
    remedy = "" if native else "use --precisions fp32 (the default auto selects it)"
    yield Check("bf16", OK if native else WARNING, details[native], remedy)


def _packages() -> Iterator[Check]:
    for name, remedy in PACKAGES.items():
        version = installed_version(name)
        yield Check(
            f"package {name}", OK if version else MISSING, version or "not installed", "" if version else remedy
        )


def _tools() -> Iterator[Check]:
    tools = {
        os.environ.get("CC", "cc"): "install a C compiler, or name it with CC=, for fused-elementwise on a CPU",
        "nvidia-smi": "install the NVIDIA driver, which includes it",
        **{each.tool: f"for `bertbench submit`: {each.remedy}" for each in CLUSTERS.values()},
    }
    for name, remedy in tools.items():
        path = shutil.which(name)
        yield Check(f"tool {name}", OK if path else MISSING, path or "not on PATH", "" if path else remedy)
    if "BERTBENCH_REVISION" not in os.environ:  # set in the container image, which starts no containers
        yield _container_engine()


def _container_engine() -> Check:
    """Find a container engine as docker/engine.sh does: the first client whose engine answers."""
    problem = "not on PATH"
    for path in filter(None, map(shutil.which, ("docker", "podman"))):
        try:
            done = run_program([path, "ps", "--quiet"], ENGINE_TIMEOUT_SECONDS)
        except BertbenchError as error:
            problem = str(error)
            continue
        if done.exit_code == 0:
            return Check("tool docker", OK, f"{_with_version(path)}, engine running")
        problem = f"{_with_version(path)}; its engine does not answer: {done.message}"
    remedy = (
        "for start_container.sh: start docker (sudo systemctl start docker) and join its group (sudo usermod -aG "
        'docker "$USER"), or install podman, which needs no daemon'
    )
    return Check("tool docker", MISSING, problem, remedy)


def _with_version(path: str) -> str:
    try:
        lines = run_program([path, "--version"], ENGINE_TIMEOUT_SECONDS).stdout.splitlines()
    except BertbenchError as error:
        return str(error)
    return next((f"{path}: {line.strip()}" for line in reversed(lines) if any(map(str.isdigit, line))), path)


def profiler_checks(devices: Devices | BertbenchError) -> Iterator[Check]:
    """Check whether every profiler can run here, by `Profiler.check`, so that `bertbench profile` agrees."""
    device = devices.kind if isinstance(devices, Devices) else "cuda"
    for name in PROFILERS:
        trial = Trial(kind="profile", device=device, profiler=name, start_iteration=10, stop_iteration=13)
        try:
            load_profiler(name).check(trial)
        except BertbenchError as error:
            problem, _, remedy = str(error).partition(": ")  # messages have the form "problem: remedy"
            yield Check(f"profiler {name}", MISSING, problem, remedy)
            continue
        tool, version = shutil.which(name), installed_version(name)
        detail = _with_version(tool) if tool else f"{name} {version}"
        if device == "cpu" and name in ("torch", "nsys"):
            detail += f"; without a GPU: {'CPU operators' if name == 'torch' else 'NVTX ranges'}"
        if not tool and version is None:
            yield Check(f"profiler {name}", MISSING, f"the package {name} is not installed", "make setup")
        else:
            yield Check(f"profiler {name}", OK, detail)


def _state() -> Iterator[Check]:
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    mode = pages.read_text(encoding="ascii").partition("[")[2].partition("]")[0] if pages.exists() else "not supported"
    yield Check("huge pages", OK, f"transparent huge pages: {mode}")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    state, remedy = (WARNING, "stop other work before measuring") if load > 0.2 * cores else (OK, "")
    yield Check("load", state, f"load average {load:.1f} on {cores} cores", remedy)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    state, remedy = (OK, "") if free > 5 else (WARNING, "free disk space")
    yield Check("disk", state, f"{free:.0f} GiB free", remedy)


def to_json(checks: list[Check]) -> list[dict[str, Any]]:
    """Return the checks as plain values."""
    return [asdict(check) for check in checks]
