"""Record the environment: hardware, topology, versions, variables. Secrets are redacted."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from bench.machine.devices import Devices, find_devices, installed_version
from bench.machine.nvml import ask, nvml
from common.errors import BertbenchError
from common.redact import redact_environment

_LIBRARIES = ("torch", "transformers", "numpy", "h5py", "tokenizers", "deepspeed", "horovod", "nvtx", "triton")
# Prefixes of the variables to record.
_VARIABLES = ("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "OMP_", "GOMP_", "MKL_", "KMP_", "GLOO_", "SLURM_", "LD_PRELOAD")
# libgomp's default is 300,000: beside another busy process each parallel region then waits for a time slice.
_SPIN_COUNT = "5000"
# Instruction sets with fast bf16 GEMMs.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
_FLAGS = ("avx", "amx", "sve", "bf16", "fma", "f16c", "asimd", "vnni")


def capture(devices: Devices) -> dict[str, Any]:
    """Describe this machine for env.json; unknown values are omitted or None."""
    cpu = cpu_description()
    variables = {name: value for name, value in (os.environ | bounded_spin()).items() if name.startswith(_VARIABLES)}
    gpus = [
        {
            "index": index,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "memory_bytes": gpu.memory_bytes,
            "compute_capability": gpu.capability and ".".join(map(str, gpu.capability)),
        }
        for index, gpu in enumerate(devices.gpus)
    ]
    return {
        "host": platform.node(),
        "device_name": gpus[0]["name"] if gpus else cpu["model"],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": cpu,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "topology": _command(["nvidia-smi", "topo", "-m"]) if gpus else None,
        "driver": driver_version() if gpus else None,
        "native_bf16": native_bf16(devices),
        "libraries": {name: version for name in _LIBRARIES if (version := installed_version(name))},
        "git_commit": _git_commit(),
        "load_average": list(os.getloadavg()),
        "variables": redact_environment(variables),
    }


def bounded_spin() -> dict[str, str]:
    """Return the variable that bounds how long the OpenMP threads of a rank spin; none if the user has set one.

    See https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html. It must be set before torch is imported.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    return {} if chosen else {"GOMP_SPINCOUNT": _SPIN_COUNT}


def native_bf16(devices: Devices) -> bool | None:
    """Return whether the devices have bf16 GEMMs in hardware; None if unknown."""
    if devices.kind == "cpu":
        flags = cpu_description()["flags"]
        return not _BF16_FLAGS.isdisjoint(flags) if flags else None
    known = [gpu.capability for gpu in devices.gpus if gpu.capability is not None]
    return min(known) >= (8, 0) if known else None


def cpu_description() -> dict[str, Any]:
    """Return the CPU's model, cores, NUMA nodes, and vector and matrix instruction sets."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "model": fields.get("model name") or platform.processor() or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": len(os.sched_getaffinity(0)),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "flags": [flag for flag in flags if flag.startswith(_FLAGS)],
    }


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver."""
    version: str | None = ask(lambda: nvml().nvmlSystemGetDriverVersion())
    return version


def first_gpu_capability() -> tuple[int, int] | str:
    """Return the compute capability of the first GPU in CUDA_VISIBLE_DEVICES, or why it is unknown."""
    try:
        return find_devices("cuda").gpus[0].capability or "NVML does not report it"
    except BertbenchError as error:
        return str(error)


def _git_commit() -> str | None:
    """Return the commit of the checkout; the container image, which has no git, knows the commit of its build."""
    root = str(Path(__file__).resolve().parents[2])
    described = _command(["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"])
    return described or os.environ.get("BERTBENCH_REVISION") or None


def _command(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
