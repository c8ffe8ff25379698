"""How much memory a process may still take: that of the machine, of the control groups (v2) it runs in, or its own."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_PAGES = Path("/proc/self/statm")
# Limits of a process (`ulimit -v`, `ulimit -d`), and the place of what counts for each in _OWN_PAGES.
_OWN_LIMITS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))
_FREED_ON_DEMAND = ("inactive_file", "active_file", "slab_reclaimable")


def available_bytes() -> int | None:
    """Return the memory and swap that can be taken before the system ends the process; None where that is not known.

    What only caches files counts as free. Version 1 of control groups is not read.
    """
    machine = _table(_MACHINE)
    swap = machine.get("SwapFree", 0) * 1024
    found = [room for group in _groups() if (room := _room(group, swap)) is not None]
    if "MemAvailable" in machine:
        found.append(machine["MemAvailable"] * 1024 + swap)
    found += _own_rooms()
    return max(0, min(found)) if found else None


def _own_rooms() -> Iterator[int]:
    """What the process may still take by each of its own limits."""
    with suppress(OSError, ValueError, IndexError):
        pages = _OWN_PAGES.read_text(encoding="ascii").split()
        for limit, place in _OWN_LIMITS:
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                yield most - int(pages[place]) * resource.getpagesize()


def _table(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError, IndexError):
        lines = map(str.split, path.read_text(encoding="ascii").splitlines())
        return {words[0].rstrip(":"): int(words[1]) for words in lines}
    return {}


def control_group() -> Path:
    """Return the folder of the control group (version 2) of this process."""
    with suppress(OSError):
        for line in _OWN_GROUP.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("0::"):
                return _GROUPS / line.removeprefix("0::").lstrip("/")
    return _GROUPS


def _groups() -> Iterator[Path]:
    """The group of this process and those around it: each can have a limit."""
    group = control_group()
    yield from (one for one in (group, *group.parents) if one.is_relative_to(_GROUPS))


def _room(group: Path, swap: int) -> int | None:
    """What a group may still take of memory and of the machine's swap; None without a limit ("max")."""
    with suppress(OSError, ValueError):
        room = _number(group / "memory.max") - _number(group / "memory.current")
        cached = _table(group / "memory.stat")
        room += sum(cached.get(name, 0) for name in _FREED_ON_DEMAND)
        with suppress(OSError, ValueError):
            swap = max(0, min(swap, _number(group / "memory.swap.max") - _number(group / "memory.swap.current")))
        return room + swap
    return None


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
