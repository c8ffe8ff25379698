"""Check this machine: its devices, the tools that can run here, and the remedy for everything that is missing."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.machine.environment import cpu_description, installed_version, native_bf16
from bench.profilers import PROFILERS, load_profiler, permission
from bench.profilers.tool import run_tool
from bench.submit.job import CLUSTERS
from common.errors import BertbenchError, InputError, MissingToolError
from common.registry import lookup
from records.trial import Trial

OK, WARNING, MISSING = "ok", "warning", "missing"
ENGINE_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a container engine; a daemon that hangs keeps its socket open without an answer."""
# In the same order as docker/engine.sh.
_ENGINES = ("docker", "podman")


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
    checks = [Check("Python", OK, f"{sys.version.split()[0]} at {sys.executable}"), *_cpu()]
    if isinstance(devices, BertbenchError):
        checks.append(Check("GPU", WARNING, str(devices), "correct CUDA_VISIBLE_DEVICES"))
    else:
        checks += [*_gpus(devices), _bf16(devices)]
    checks += [*_packages(), *_tools(), *profiler_checks(devices), _memory_pages(), _load(), _disk()]
    return checks


FEATURES = ("cuda", "two-devices", "bf16", "hf")
"""What `has` answers."""


def has(feature: str, devices: Devices) -> bool:
    """Return whether a feature is available: cuda, two-devices, bf16 (in hardware) or hf (transformers installed)."""
    answers: dict[str, Callable[[], bool]] = {
        "cuda": lambda: devices.kind == "cuda",
        "bf16": lambda: bool(native_bf16(devices)),
        "two-devices": lambda: devices.count >= 2,
        "hf": lambda: importlib.util.find_spec("transformers") is not None,
    }
    return lookup(answers, feature, "feature")()


def _cpu() -> Iterator[Check]:
    cpu = cpu_description()
    sets = " ".join(flag for flag in cpu["flags"] if flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve"))
    yield Check("CPU", OK, f"{cpu['model']}, {cpu['physical_cores']} cores ({cpu['usable_cores']} usable), {sets}")


def _gpus(devices: Devices) -> Iterator[Check]:
    if devices.kind == "cpu":
        yield Check(
            "GPU",
            MISSING,
            devices.note or "none",
            "everything runs on the CPU; to use GPUs, install the NVIDIA driver, and start containers with "
            "start_container.sh, which passes the GPUs through",
        )
        return
    for index, gpu in enumerate(devices.gpus):
        memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / 2**30:.0f} GiB"
        yield Check(f"GPU {index}", OK, f"{gpu.name}{memory}, {gpu.uuid}")
    if "+cpu" in (installed_version("torch") or ""):
        yield Check(
            "torch for GPUs",
            MISSING,
            f"torch {installed_version('torch')} is a CPU build",
            "install a CUDA build: make clean setup TORCH_INDEX=https://download.pytorch.org/whl/cu130",
        )


def _bf16(devices: Devices) -> Check:
    native = native_bf16(devices)
    if native:
        return Check("bf16", OK, "in hardware")
    detail = "not in hardware: GEMMs are emulated and slower than fp32" if native is False else "unknown"
    return Check("bf16", WARNING, detail, "use --precisions fp32 (the default auto selects it)")


def _packages() -> Iterator[Check]:
    wanted = {
        "torch": ("torch", "make setup"),
        "h5py": ("h5py", "make setup"),
        "tokenizers": ("tokenizers", "make setup"),
        "nanotoken": ("nanotoken", "make setup, for text to tokens in a thirtieth of the time"),
        "zlib_ng": ("zlib-ng", "make setup, for shards written in two thirds of the time"),
        "transformers": (
            "transformers",
            "pip install 'bertbench[hf]' for the implementations hf, hf-compiled, hf-unpadded and hf-trainer",
        ),
        "pynvml": ("nvidia-ml-py", "make setup, for GPU power and clocks"),
        "nvtx": ("nvtx", "pip install 'bertbench[gpu]' for NVTX ranges"),
        "sklearn": ("scikit-learn", "pip install 'bertbench[scores]' for scores of GLUE"),
        "tensorboard": ("tensorboard", "pip install 'bertbench[tensorboard]' for the scalars of trainings"),
        "optuna": ("optuna", "pip install 'bertbench[tune]' for `bertbench tune`"),
        "ncu_report": ("ncu-report", "pip install 'bertbench[ncu]' to read reports of Nsight Compute (.ncu-rep)"),
        "deepspeed": ("deepspeed", "pip install 'bertbench[deepspeed]' for the strategy deepspeed"),
        "horovod": ("horovod", "build the image with WITH_HOROVOD=1 for the strategy horovod"),
    }
    for module, (distribution, remedy) in wanted.items():
        if importlib.util.find_spec(module) is None:
            yield Check(f"package {distribution}", MISSING, "not installed", remedy)
        else:
            yield Check(f"package {distribution}", OK, installed_version(distribution) or "installed")


def _compiler() -> Check:
    name = os.environ.get("CC", "cc")
    path = shutil.which(name)
    if path is None:
        remedy = "install gcc, or name another C compiler with CC=, for the optimization fused-elementwise on a CPU"
        return Check("tool cc", MISSING, f"{name!r} is not on PATH", remedy)
    return Check("tool cc", OK, path)


def _tools() -> Iterator[Check]:
    yield _compiler()
    path = shutil.which("nvidia-smi")
    if path is None:
        yield Check("tool nvidia-smi", MISSING, "not on PATH", "install the NVIDIA driver, which includes it")
    else:
        yield Check("tool nvidia-smi", OK, _tool_version(path))
    if "BERTBENCH_REVISION" not in os.environ:  # set in the container image, which starts no containers
        yield _container_engine()
    for cluster in CLUSTERS.values():
        path = shutil.which(cluster.tool)  # no version check: az would access the network
        detail, remedy = (path, "") if path else ("not on PATH", f"for `bertbench submit`: {cluster.remedy}")
        yield Check(f"tool {cluster.tool}", OK if path else MISSING, detail, remedy)


def _container_engine() -> Check:
    """Find a container engine as docker/engine.sh does: the first client whose engine answers."""
    silent = ""
    for path in filter(None, map(shutil.which, _ENGINES)):
        try:
            run_tool([path, "ps", "--quiet"], ENGINE_TIMEOUT_SECONDS)
        except (InputError, MissingToolError) as error:
            silent = silent or f"{_tool_version(path)}; its engine does not answer: {' '.join(str(error).split())}"
        else:
            also = f"; {silent}" if silent else ""
            return Check("tool docker", OK, f"{_tool_version(path)}, engine running{also}")
    remedy = (
        "for start_container.sh: start docker (sudo systemctl start docker) and join its group (sudo usermod -aG "
        'docker "$USER"), or install podman, which needs no daemon'
    )
    return Check("tool docker", MISSING, silent or "not on PATH", remedy)


def profiler_checks(devices: Devices | BertbenchError) -> Iterator[Check]:
    """Check whether every profiler can run here; if not, say why and give the remedy.

    Uses `Profiler.check`, so that this report always agrees with `bertbench profile`.
    """
    for name in PROFILERS:
        if isinstance(devices, Devices) and devices.kind == "cpu" and name in ("ncu", "nvprof"):
            yield _without_gpu(name)
        else:
            yield _profiler(name, devices.kind if isinstance(devices, Devices) else "cuda")


def _without_gpu(name: str) -> Check:
    path = shutil.which(name)
    found = f"installed ({_tool_version(path)}), but this machine has no GPU" if path else "needs a GPU"
    remedy = "on a CPU use --profiler torch, or nsys for NVTX ranges"
    return Check(f"profiler {name}", MISSING, found, remedy)


def _profiler(name: str, device: str) -> Check:
    trial = Trial(kind="profile", device=device, profiler=name, start_iteration=10, stop_iteration=13)
    try:
        load_profiler(name).check(trial)
    except BertbenchError as error:
        problem, _, remedy = str(error).partition(": ")  # messages have the form "problem: remedy"
        return Check(f"profiler {name}", MISSING, problem, remedy)
    except ImportError as error:
        return Check(f"profiler {name}", MISSING, f"cannot be imported ({error})", "make setup")
    if name in ("torch", "nvtx"):  # packages, not tools
        if importlib.util.find_spec(name) is None:
            return Check(f"profiler {name}", MISSING, f"the package {name} is not installed", "make setup")
        detail = f"{name} {installed_version(name) or ''}".strip()
    else:
        detail = _tool_version(shutil.which(name) or name)
    denied = permission.counters_denied() if name in ("ncu", "nvprof") else None
    if denied is not None:
        return Check(f"profiler {name}", MISSING if name == "ncu" else WARNING, f"{detail}; {denied}", permission.ALLOW)
    return Check(f"profiler {name}", OK, detail + _limits(name, trial))


def _limits(name: str, trial: Trial) -> str:
    limits = ""
    if trial.device == "cpu":
        limits += {"torch": "; without a GPU: CPU operators", "nsys": "; without a GPU: NVTX ranges"}.get(name, "")
    if name == "nsys":
        try:
            load_profiler("nsys", ("sampling",)).check(trial)
        except BertbenchError as error:
            limits += f"; unavailable: {error}"
    if name == "ncu" and not permission.DRIVER_PARAMETERS.exists():
        limits += f"; permission to read counters unknown ({permission.DRIVER_PARAMETERS} does not exist)"
    return limits


def _tool_version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"{path} (does not answer --version)"
    lines = [line.strip() for line in done.stdout.splitlines() if any(char.isdigit() for char in line)]
    return f"{path}: {lines[-1]}" if lines else path


def _memory_pages() -> Check:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
        mode = text.split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return Check("huge pages", OK, "not applicable here")
    return Check("huge pages", OK, f"transparent huge pages: {mode}")


def _load() -> Check:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.2 * cores:
        return Check("load", WARNING, f"load average {load:.1f} on {cores} cores", "stop other work before measuring")
    return Check("load", OK, f"load average {load:.1f} on {cores} cores")


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    state = OK if free > 5 * 2**30 else WARNING
    return Check("disk", state, f"{free / 2**30:.0f} GiB free", "" if state == OK else "free disk space")


def to_json(checks: list[Check]) -> list[dict[str, Any]]:
    """Return the checks as plain values."""
    return [{"name": c.name, "state": c.state, "detail": c.detail, "remedy": c.remedy} for c in checks]
