"""Parts from one process to another without a copy: through memory that has a descriptor but no name. Imports no torch.

A worker writes its columns into an anonymous file (memfd_create(2)); the parent opens that by way of /proc/PID/fd and
maps it. Nothing is left behind, however either process ends, and the size of /dev/shm does not matter.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class SharedFile:
    """An anonymous file of a process that is still there."""

    process: int
    descriptor: int

    @property
    def path(self) -> Path:
        """Where another process of the same user opens it while its owner lives."""
        return Path(f"/proc/{self.process}/fd/{self.descriptor}")

    def is_lost(self) -> bool:
        """Return whether its owner has ended, also where nobody has taken note of that yet."""
        try:
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"


def is_possible() -> bool:
    """Return whether this system has anonymous files that other processes can open."""
    if not hasattr(os, "memfd_create"):
        return False
    try:
        descriptor = os.memfd_create("bertbench")
    except OSError:
        return False
    try:
        return SharedFile(os.getpid(), descriptor).path.exists()
    finally:
        os.close(descriptor)


def new_file() -> tuple[SharedFile, BinaryIO]:
    """Return an anonymous file of this process, and it opened for writing; it stays until the process ends.

    Raises:
        OSError: there is no descriptor left.
    """
    descriptor = os.memfd_create("bertbench-part")
    return SharedFile(os.getpid(), descriptor), os.fdopen(descriptor, "wb", closefd=False)
