"""What a rank may take of its machine and what it took: cores, memory, libraries."""

import os
import resource
import sys
from pathlib import Path
from typing import Any

from common.memory import control_group
from records.trial import Trial


def take_share_of_cores(trial: Trial) -> None:
    """On a CPU a device is a rank with an equal share of the physical cores: keep this rank on its own ones."""
    if trial.device != "cpu" or not hasattr(os, "sched_setaffinity"):
        return
    from bench.machine.devices import shares_of_cores

    shares = shares_of_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    cores = shares[int(os.environ.get("LOCAL_RANK", "0"))]
    if cores:
        os.sched_setaffinity(0, cores)


def limit_memory(trial: Trial) -> None:
    """Have memory beyond the limit refused, so that a trial runs out before the machine does.

    On a CPU the kernel refuses private memory, on a GPU the allocator device memory.
    """
    if trial.memory_limit_bytes is None:
        return
    if trial.device == "cuda":
        import torch

        visible = range(torch.cuda.device_count())
        local = int(os.environ.get("LOCAL_RANK", "0"))
        # The strategy refuses a missing device; dp has them all.
        for device in visible if trial.strategy == "dp" else visible[local : local + 1]:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, trial.memory_limit_bytes / total), device)
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (trial.memory_limit_bytes, hard))


def under_memory_limit() -> str:
    """Return the memory limit of this process (ulimit -d, -v) as a possible cause of a death; "" without a limit."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    least = min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)
    return "" if least is None else f" with at most {least / 2**20:,.0f} MiB of memory (ulimit), which may be the cause"


def reset_used_memory(device: Any) -> None:
    """Have `used_memory` of a GPU count from here on, without what the allocator keeps; a CPU's cannot be reset."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def used_memory(device: Any) -> dict[str, Any]:
    """Return the most memory used so far, in bytes, and what is counted."""
    if device.type == "cuda":
        import torch

        return {
            "peak_memory_bytes": int(torch.cuda.max_memory_allocated(device)),
            "peak_memory_kind": "device allocator",
            "peak_reserved_bytes": int(torch.cuda.max_memory_reserved(device)),
        }
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_memory_bytes": peak * unit, "peak_memory_kind": "resident set"}


def backend() -> str | None:
    """Return what the ranks talk through; None for one that joined no process group."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    return str(dist.get_backend())


def torch_versions() -> dict[str, str | None]:
    """Return the versions of torch and of the CUDA libraries that it uses."""
    import torch

    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "nccl": nccl,
    }


def oom_kill_count() -> int:
    """Return how often it has killed for lack of memory: in this cgroup where it counts, else in the machine."""
    for path in (control_group() / "memory.events", Path("/proc/vmstat")):
        try:
            counts = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0
