"""How much memory a process may still take: of the machine, and of the control groups (version 2) it runs in."""

from contextlib import suppress
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_FREED_ON_DEMAND = ("inactive_file", "active_file", "slab_reclaimable")


def control_group() -> Path:
    """Return the folder of the control group of this process."""
    lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines() if _OWN_GROUP.is_file() else []
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    return _GROUPS / own.lstrip("/")


def available_bytes() -> int:
    """Return the bytes that can be taken before the system ends the process; caches of files are free, swap is not."""
    rooms = [1024 * _table(_MACHINE)["MemAvailable:"]]
    group = control_group()
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max": no limit
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            cached = _table(folder / "memory.stat")
            rooms.append(limit - used + sum(cached.get(name, 0) for name in _FREED_ON_DEMAND))
    return max(0, min(rooms))


def _table(path: Path) -> dict[str, int]:
    rows = map(str.split, path.read_text(encoding="ascii").splitlines())
    return {row[0]: int(row[1]) for row in rows}
