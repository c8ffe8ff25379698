"""How often the kernel has killed a process for lack of memory. Linux."""

from pathlib import Path


def oom_kill_count() -> int:
    """Return how often it has killed for lack of memory: in this cgroup where it counts, else in the machine."""
    for path in (_cgroup_folder() / "memory.events", Path("/proc/vmstat")):
        try:
            counts = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _cgroup_folder() -> Path:
    """Return the folder of this process's own cgroup (version 2)."""
    try:
        (line,) = [row for row in Path("/proc/self/cgroup").read_text().splitlines() if row.startswith("0::")]
    except (OSError, ValueError):
        return Path("/sys/fs/cgroup")
    return Path("/sys/fs/cgroup") / line.removeprefix("0::").lstrip("/")
