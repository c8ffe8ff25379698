"""How much memory a process may still take: that of the machine, or of the container it runs in."""

from contextlib import suppress
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the memory that can be taken without swapping or being ended for it; None where that is not known."""
    found = [size for size in (_of_machine(), _of_container()) if size is not None]
    return max(0, min(found)) if found else None


def _of_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in _MACHINE.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_container() -> int | None:
    """Of cgroup v2; what only caches files can be freed."""
    with suppress(OSError, ValueError, IndexError):
        limit = int((_CONTAINER / "memory.max").read_text(encoding="ascii"))
        used = int((_CONTAINER / "memory.current").read_text(encoding="ascii"))
        for line in (_CONTAINER / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1])
        return limit - used
    return None
