"""Find the devices of a run: GPUs in CUDA_VISIBLE_DEVICES (numbers, UUIDs, MIG names), else CPU cores."""

import contextlib
import dataclasses
import itertools
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from common.errors import BertbenchError, UsageError
from common.memory import control_group
from common.redact import redact_environment


def nvml() -> Any:
    """Return pynvml, initialized. Raises ImportError without the package, NVMLError without a driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def ask(query: Callable[..., Any], *handles: Any) -> Any:
    """Return what a query of NVML returns; None where the driver or the GPU does not have it."""
    try:
        return query(*handles)
    except Exception:  # NVML raises a class per error code
        return None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    visible_as: str
    """Its name in CUDA_VISIBLE_DEVICES."""
    uuid: str
    memory_bytes: int | None
    """Its own memory; None if NVML does not report it."""
    number: int | None = None
    """Number in the order of the bus; None if NVML does not list it."""
    capability: tuple[int, int] | None = None
    """Compute capability; None if NVML does not report it."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of this node that trials may use."""

    kind: str
    """cpu or cuda."""
    gpus: tuple[Gpu, ...]
    """In the order of the local ranks; empty on a CPU."""
    cpu_cores: int
    """Physical cores this process may run on."""
    note: str = ""
    """Why there is no GPU; empty if there is one."""

    @property
    def count(self) -> int:
        """Maximum number of ranks on this node: its GPUs, or its cores on a CPU."""
        return len(self.gpus) if self.kind == "cuda" else self.cpu_cores

    def default_world_sizes(self) -> tuple[int, ...]:
        """Return 1, 2, 4 ... up to all GPUs; on a CPU one rank with all cores."""
        if self.kind == "cpu":
            return (1,)
        return tuple(sorted({*(2**power for power in range(self.count.bit_length())), self.count}))

    def environment(self, world_size: int) -> dict[str, str]:
        """Return the environment variables that show a child process only the first `world_size` devices.

        Raises UsageError if there are fewer.
        """
        if world_size > self.count:
            what = f"{self.count} GPUs" if self.kind == "cuda" else f"{self.count} CPU cores ({self.note})"
            problem = f"{world_size} devices, but this node has {what}: use --devices {self.count} or fewer"
            raise UsageError("device-missing", problem)
        if self.kind == "cpu":
            return {"CUDA_VISIBLE_DEVICES": ""}
        names = ",".join(gpu.visible_as for gpu in self.gpus[:world_size])
        # By default CUDA numbers GPUs by speed and NVML by bus; this makes them agree.
        return {"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def find_devices(kind: str = "auto") -> Devices:
    """Return the devices that this process may use. `kind` is auto, cpu or cuda."""
    gpus, note = ([], "the CPU was requested") if kind == "cpu" else _visible_gpus()
    if kind == "cuda" and not gpus:
        problem = f"--device cuda needs a GPU, but {note}: run `bertbench doctor` for the remedy"
        raise UsageError("device-missing", problem)
    return Devices("cuda" if gpus else "cpu", tuple(gpus), physical_cores(), note)


def _visible_gpus() -> tuple[list[Gpu], str]:
    """Return the GPUs, or why there is none."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None and wanted.strip(" ,") in ("", "-1", "NoDevFiles", "void"):
        return [], f"CUDA_VISIBLE_DEVICES={wanted!r} hides every GPU"
    try:
        present = _nvml_gpus()
    except ImportError:
        return [], "the package nvidia-ml-py is not installed"
    except Exception as error:  # NVML raises a class per error code
        return [], f"NVML is unavailable ({error}): no NVIDIA driver, or the container was started without GPUs"
    if not present:
        return [], "NVML reports no GPU"
    torch = installed_version("torch") or ""
    if "+cpu" in torch:
        build = "rm -r .venv; make setup TORCH_INDEX=https://download.pytorch.org/whl/cu130"
        return [], f"torch {torch} is a CPU build: install a CUDA build ({build})"
    return (present if wanted is None else select_gpus(wanted, present)), ""


def _nvml_gpus() -> list[Gpu]:
    """Return the GPUs in bus order."""
    library, gpus = nvml(), []
    for number in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(number)
        name, uuid = library.nvmlDeviceGetName(handle), library.nvmlDeviceGetUUID(handle)
        memory = ask(library.nvmlDeviceGetMemoryInfo, handle)  # None if shared with the host
        capability = ask(library.nvmlDeviceGetCudaComputeCapability, handle)
        total = None if memory is None else int(memory.total)
        gpus.append(Gpu(name, str(number), uuid, total, number, capability))
    return gpus


def select_gpus(wanted: str, present: list[Gpu]) -> list[Gpu]:
    """Return the GPUs that a CUDA_VISIBLE_DEVICES value names, in its order.

    CUDA silently stops at the first unknown name; here it is an error.
    """
    chosen: list[Gpu] = []
    for name in (part.strip() for part in wanted.split(",") if part.strip()):
        if name.isdigit():
            matches = [gpu for gpu in present if gpu.number == int(name)]
        else:
            matches = [gpu for gpu in present if gpu.uuid.lower().startswith(name.lower())]
            if name.upper().startswith("MIG-"):  # a slice of a GPU: CUDA resolves the name itself
                matches = [Gpu("MIG slice", name, name, None)]
        if len(matches) != 1 or any(gpu.uuid == matches[0].uuid for gpu in chosen):
            known = ", ".join(f"{gpu.number}={gpu.uuid}" for gpu in present)
            problem = f"{name!r} must name 1 GPU or MIG slice, once, but names {len(matches)} of {known}"
            raise UsageError("option-value", f"CUDA_VISIBLE_DEVICES={wanted!r}: {problem}")
        chosen.append(dataclasses.replace(matches[0], visible_as=name))
    return chosen


def _core_groups() -> list[list[int]]:
    """Return the logical CPUs of this process, grouped by physical core, in the order of packages and cores."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            place = tuple(int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            place = (0, cpu)  # unknown topology: treat every logical CPU as a core
        groups.setdefault(place, []).append(cpu)
    return [groups[place] for place in sorted(groups)]


def shares_of_cores(count: int) -> list[list[int]]:
    """Return the logical CPUs of `count` equal shares of the physical cores; empty lists if there are too few cores.

    The remainder is not used: with unequal shares one rank would be slower than the others.
    """
    groups = _core_groups()
    size = len(groups) // count
    parts = (groups[number * size : (number + 1) * size] for number in range(count))
    return [sorted(itertools.chain(*part)) for part in parts]


def physical_cores() -> int:
    """Return the number of physical cores that affinity and cgroup quota allow this process, at least 1."""
    cores, group = len(_core_groups()), control_group()
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # not a group, or "max"
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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
        "git_commit": git_commit(Path(__file__).parent) or os.environ.get("BERTBENCH_REVISION") or None,
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


def git_commit(folder: Path) -> str | None:
    """Return the commit of the checkout that a folder is in, with -dirty if files differ from it; None without git."""
    return _command(["git", "-C", str(folder.resolve()), "describe", "--always", "--dirty", "--abbrev=12"]) or None


def _command(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
