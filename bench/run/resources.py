"""What a rank may take of its machine and what it took: cores, memory, libraries."""

import errno
import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.memory import control_group
from records.trial import Trial

if TYPE_CHECKING:
    import torch


def take_share_of_cores(trial: Trial) -> None:
    """On a CPU a device is a rank with an equal share of the physical cores: keep this rank on its own ones."""
    if trial.device != "cpu":
        return
    from bench.machine.devices import shares_of_cores

    shares = shares_of_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if cores := shares[int(os.environ.get("LOCAL_RANK", "0"))]:
        os.sched_setaffinity(0, cores)


def limit_memory(trial: Trial) -> None:
    """Have memory beyond the limit refused, so that a trial runs out before the machine does.

    On a CPU the kernel refuses private memory, on a GPU the allocator device memory.
    """
    if trial.memory_limit_bytes is None:
        return
    if trial.device == "cuda":
        import torch

        local = int(os.environ.get("LOCAL_RANK", "0"))
        for device in range(torch.cuda.device_count()) if trial.strategy == "dp" else [local]:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, trial.memory_limit_bytes / total), device)
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (trial.memory_limit_bytes, hard))


def reset_used_memory(device: "torch.device | str") -> None:
    """Have `used_memory` of a GPU count from here on, without what the allocator keeps; a CPU's cannot be reset."""
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def used_memory(device: "torch.device | str") -> dict[str, Any]:
    """Return the most memory used so far, in bytes, and what is counted."""
    if str(device).startswith("cuda"):
        import torch

        return {
            "peak_memory_bytes": int(torch.cuda.max_memory_allocated(device)),
            "peak_memory_kind": "device allocator",
            "peak_reserved_bytes": int(torch.cuda.max_memory_reserved(device)),
        }
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_memory_bytes": 1024 * kibibytes, "peak_memory_kind": "resident set"}


def torch_versions() -> dict[str, str | None]:
    """Return the versions of torch and of the CUDA libraries that it uses."""
    import torch

    nccl = cudnn = None
    if torch.cuda.is_available():
        nccl, cudnn = ".".join(map(str, torch.cuda.nccl.version())), str(torch.backends.cudnn.version())
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda, "cudnn": cudnn, "nccl": nccl}


def oom_kill_count() -> int:
    """Return how often it has killed for lack of memory: in this cgroup where it counts, else in the machine."""
    for path in (control_group() / "memory.events", Path("/proc/vmstat")):
        try:
            counts = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


# What torch's CPU allocator, CUDA, cuBLAS, the C++ runtime, oneDNN, threads and loaded libraries say.
_WORDS = re.compile(
    "allocate memory|out of memory|bad_alloc|bad allocation|ALLOC_FAILED|can't start new thread|failed to map segment"
)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that memory was refused, on the host or on a device."""
    while error is not None:
        refused = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        if refused or type(error).__name__ == "OutOfMemoryError" or _WORDS.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
