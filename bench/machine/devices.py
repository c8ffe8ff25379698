"""Find the devices of a run: GPUs in CUDA_VISIBLE_DEVICES (numbers, UUIDs, MIG names), else CPU cores."""

import dataclasses
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from common.errors import UsageError
from common.memory import available_bytes


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG slice."""

    name: str
    """Product name; empty if NVML is unavailable."""
    visible_as: str
    """Its name in CUDA_VISIBLE_DEVICES: a number, GPU-<uuid> or MIG-<uuid>."""
    uuid: str
    """UUID; empty if NVML is unavailable."""
    memory_bytes: int | None
    """Its own memory; None if NVML does not report it."""
    number: int | None = None
    """Number of the GPU in the order of the bus, for a slice that of its GPU; None if NVML is unavailable."""

    @property
    def is_mig(self) -> bool:
        """Return whether this is a MIG slice."""
        return self.visible_as.upper().startswith("MIG-") or self.uuid.upper().startswith("MIG-")


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
        if self.kind == "cpu" or any(gpu.is_mig for gpu in self.gpus):
            return (1,)
        sizes = [1]
        while sizes[-1] * 2 <= self.count:
            sizes.append(sizes[-1] * 2)
        return tuple(sizes if sizes[-1] == self.count else [*sizes, self.count])

    def environment(self, world_size: int) -> dict[str, str]:
        """Return the environment variables that show a child process only the first `world_size` devices.

        Raises:
            UsageError: there are fewer devices.
        """
        if world_size > self.count:
            raise UsageError(
                "device-missing",
                f"{world_size} devices were requested, but this node has {self.count} "
                f"({'GPUs' if self.kind == 'cuda' else 'CPU cores'}): use --devices {self.count} or fewer"
                + (f" ({self.note})" if self.note else ""),
            )
        if self.kind == "cpu":
            return {"CUDA_VISIBLE_DEVICES": ""}
        if world_size > 1 and any(gpu.is_mig for gpu in self.gpus[:world_size]):
            raise UsageError(
                "device-unsupported",
                f"{world_size} MIG slices were requested, but a process sees only one and NCCL cannot connect them: "
                "use --devices 1, or whole GPUs",
            )
        names = ",".join(gpu.visible_as for gpu in self.gpus[:world_size])
        # By default CUDA numbers GPUs by speed and NVML by bus; this makes them agree.
        return {"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def find_devices(kind: str = "auto") -> Devices:
    """Return the devices that this process may use. `kind` is auto, cpu or cuda."""
    cores = physical_cores()
    if kind == "cpu":
        return Devices("cpu", (), cores, "the CPU was requested")
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None and wanted.strip() in ("", "-1", "NoDevFiles", "void"):
        note = f"CUDA_VISIBLE_DEVICES={wanted!r} hides every GPU"
    else:
        found = _nvml_gpus()
        if not isinstance(found, str) and found and "+cpu" in _torch_version():
            found = (
                f"torch {_torch_version()} is a CPU build: install a CUDA build "
                "(make clean setup TORCH_INDEX=https://download.pytorch.org/whl/cu130)"
            )
        if isinstance(found, str):
            note = found
        else:
            gpus = found if wanted is None else select_gpus(wanted, found)
            if gpus:
                return Devices("cuda", tuple(gpus), cores)
            note = "NVML reports no GPU"
    if kind == "cuda":
        raise UsageError(
            "device-missing", f"--device cuda needs a GPU, but {note}: run `bertbench doctor` for the remedy"
        )
    return Devices("cpu", (), cores, note)


def free_memory_share(ranks: int) -> int:
    """Return the bytes per rank if `ranks` share 80 % of the free memory of this machine and its container."""
    import psutil

    machine, container = psutil.virtual_memory().available, available_bytes()
    return int(0.8 * min(machine, machine if container is None else container) / ranks)


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
            if not matches and name.upper().startswith("MIG-"):
                # NVML may not list MIG slices (no permission); CUDA resolves the name itself.
                matches = [Gpu("MIG slice", name, name, None)]
        if len(matches) != 1:
            known = ", ".join(f"{gpu.number}={gpu.uuid or gpu.name}" for gpu in present) or "none"
            divided = f"is a GPU of {len(matches)} MIG slices, of which a process can use one: give its name"
            several = divided if name.isdigit() else "matches several GPUs"
            what = several if matches else "matches no GPU of this node"
            raise UsageError(
                "option-value" if matches else "device-missing",
                f"CUDA_VISIBLE_DEVICES={wanted!r}: {name!r} {what}; available: {known}",
            )
        gpu = matches[0]
        if any(gpu.uuid and gpu.uuid == other.uuid for other in chosen):
            raise UsageError("option-value", f"CUDA_VISIBLE_DEVICES={wanted!r} names {name!r} twice: remove one")
        # Numbers identify GPUs only. MIG slices are given by name, so that sensors and training use the same slice.
        chosen.append(dataclasses.replace(gpu, visible_as=gpu.uuid if gpu.is_mig else name))
    return chosen


def core_groups() -> list[list[int]]:
    """Return the logical CPUs of this process, grouped by physical core, in the order of packages and cores.

    A group holds all hyper-threads of one core, so that shares made of whole groups never share a core.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            place = tuple(int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            place = (0, cpu)  # unknown topology: treat every logical CPU as a core
        groups.setdefault((place[0], place[1]), []).append(cpu)
    return [groups[place] for place in sorted(groups)]


def shares_of_cores(count: int) -> list[list[int]]:
    """Return the logical CPUs of `count` equal shares of the physical cores; empty lists if there are too few cores.

    The remainder is not used: with unequal shares one rank would be slower than the others.
    """
    groups = core_groups()
    size = len(groups) // count
    parts = [groups[number * size : (number + 1) * size] for number in range(count)]
    return [sorted(cpu for group in part for cpu in group) for part in parts]


def physical_cores() -> int:
    """Return the number of physical cores that affinity and cgroup quota allow this process, at least 1."""
    cores = len(core_groups())
    return max(1, min(cores, _cgroup_cores() or cores))


def _cgroup_cores() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _nvml_gpus() -> list[Gpu] | str:
    """Return the GPUs, including MIG slices, in bus order, or the reason why NVML is unavailable."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return "the package nvidia-ml-py is not installed"
    except Exception as error:
        return f"NVML is unavailable ({error}): no NVIDIA driver, or the container was started without GPUs"
    try:
        gpus: list[Gpu] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.extend(_mig_slices(pynvml, handle, index) or [_describe(pynvml, handle, index)])
        # Beside slices CUDA's numbers are not those of the bus.
        mixed = any(gpu.is_mig for gpu in gpus)
        return gpus if mixed else [dataclasses.replace(gpu, visible_as=str(gpu.number)) for gpu in gpus]
    except pynvml.NVMLError as error:
        return f"NVML failed while listing GPUs ({error})"


def _describe(pynvml: Any, handle: Any, number: int) -> Gpu:
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # a GPU that shares the memory of its host, or a slice of another user
        memory = None
    return Gpu(_text(pynvml.nvmlDeviceGetName(handle)), uuid, uuid, memory, number)


def _mig_slices(pynvml: Any, handle: Any, number: int) -> list[Gpu]:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return []
    slices = []
    for index in range(count):
        try:
            slices.append(_describe(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index), number))
        except pynvml.NVMLError:
            continue
    return slices


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
