"""Record the environment: hardware, topology, versions, variables. Secrets are redacted."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices, find_devices
from common.errors import BertbenchError
from common.redact import redact_environment

_LIBRARIES = ("torch", "transformers", "numpy", "h5py", "tokenizers", "deepspeed", "horovod", "nvtx", "triton")
_OPENMP_PREFIXES = ("OMP_", "GOMP_", "MKL_", "KMP_")
_VARIABLE_PREFIXES = ("NCCL_", "CUDA_", "TORCH_", *_OPENMP_PREFIXES, "GLOO_", "SLURM_", "PYTORCH_", "LD_PRELOAD")
# libgomp's default is 300,000: beside another busy process each parallel region then waits for a time slice.
_SPIN_COUNT = "5000"
# Instruction sets with fast bf16 GEMMs.
_NATIVE_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
_NATIVE_BF16_CAPABILITY = (8, 0)


def capture(devices: Devices) -> dict[str, Any]:
    """Describe this machine for env.json; unknown values are omitted or None."""
    cpu = cpu_description()
    variables = os.environ | bounded_spin()
    gpus = [_gpu(index, gpu.uuid, gpu.name, gpu.memory_bytes) for index, gpu in enumerate(devices.gpus)]
    return {
        "host": platform.node(),
        "device_name": gpus[0]["name"] if gpus else cpu["model"],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": cpu,
        "memory_bytes": _memory_bytes(),
        "gpus": gpus,
        "topology": gpu_topology() if gpus else None,
        "driver": _driver_version() if gpus else None,
        "native_bf16": native_bf16(devices),
        "libraries": {name: version for name in _LIBRARIES if (version := installed_version(name))},
        "git_commit": _git_commit(),
        "load_average": list(os.getloadavg()),
        "variables": redact_environment(
            {name: value for name, value in variables.items() if name.startswith(_VARIABLE_PREFIXES)}
        ),
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
        return any(flag in flags for flag in _NATIVE_BF16_FLAGS) if flags else None
    capabilities = [_capability(gpu.uuid) for gpu in devices.gpus]
    known = [capability for capability in capabilities if capability is not None]
    return min(known) >= _NATIVE_BF16_CAPABILITY if known else None


def cpu_description() -> dict[str, Any]:
    """Return the CPU's model, cores, NUMA nodes, and vector and matrix instruction sets."""
    import psutil

    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    wanted = ("avx", "amx", "sve", "bf16", "fma", "f16c", "asimd", "vnni")
    return {
        "model": fields.get("model name") or platform.processor() or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "flags": [flag for flag in flags if flag.startswith(wanted)],
    }


def gpu_topology() -> str | None:
    """Return the GPU topology matrix of nvidia-smi, or None without nvidia-smi."""
    return _command(["nvidia-smi", "topo", "-m"])


def _gpu(index: int, uuid: str, name: str, memory_bytes: int | None) -> dict[str, Any]:
    capability = _capability(uuid)
    return {
        "index": index,
        "name": name,
        "uuid": uuid,
        "memory_bytes": memory_bytes,
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
    }


def compute_capability(uuid: str) -> tuple[int, int]:
    """Return the compute capability of a GPU or MIG slice. Raises ImportError without NVML, and NVML errors."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if uuid.upper().startswith("MIG-"):
        handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return int(major), int(minor)


def first_gpu_capability() -> tuple[int, int] | str:
    """Return the compute capability of the first GPU in CUDA_VISIBLE_DEVICES, or why it is unknown."""
    try:
        uuid = find_devices("cuda").gpus[0].uuid
        return compute_capability(uuid) if uuid else "NVML returns no UUID for the first visible GPU"
    except BertbenchError as error:
        return str(error)
    except Exception as error:  # NVML raises a class per error code; ImportError without NVML
        return f"NVML does not return the compute capability ({error})"


def _capability(uuid: str) -> tuple[int, int] | None:
    try:
        return compute_capability(uuid)
    except Exception:  # no NVML, or a MIG slice without this value
        return None


def _driver_version() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:
        return None


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the checkout; the container image, which has no git, knows the commit of its build."""
    root = Path(__file__).resolve().parents[2]
    built_from = os.environ.get("BERTBENCH_REVISION")
    return _command(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]) or built_from or None


def _command(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
