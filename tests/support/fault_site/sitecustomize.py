"""Ends a process of a fault campaign right before one of its file operations; counts them where nothing is to end.

Every Python process of a call that has this folder on its PYTHONPATH loads it. The variables it reads are described in
support.faults. Standard library only.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")
_ROLES = {"bench.launch.torchrun": "launcher", "bench.run.worker": "rank", "--multiprocessing-fork": "worker"}


def _role() -> str:
    words = sys.orig_argv
    if any("resource_tracker" in word for word in words):
        return ""
    return next((role for word, role in _ROLES.items() if word in words), "main")


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _is_change(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    if event not in _CHANGES and not (event == "open" and _writes(arguments)):
        return False
    path = arguments[0]
    inside = isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(folder)
    # Whole trees are removed by names relative to an open folder.
    return inside or (event in ("os.remove", "os.rmdir") and arguments[1] not in (None, -1))


def _kill_all(mark: bytes) -> None:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes() and int(place.name) != os.getpid():
                os.kill(int(place.name), signal.SIGKILL)
        except OSError:
            continue


def _arm() -> None:
    role, folder = _role(), os.environ.get("FAULT_FOLDER", "")
    if not folder or not role:
        return
    trace = os.environ.get("FAULT_TRACE")
    wanted, _, number = os.environ.get("FAULT_OPERATION", "").partition(":")
    if trace is None and wanted != role:
        return
    made = 0
    busy = False

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal made, busy
        if busy or not (event == "open" or event.startswith("os.")) or not _is_change(event, arguments, folder):
            return
        busy = True
        made += 1
        if trace is not None:
            handle = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(handle, f"{role}:{made}\n".encode())
            os.close(handle)
        elif made == int(number):
            if os.environ["FAULT_SCOPE"] == "all":
                _kill_all(f"FAULT_MARK={os.environ['FAULT_MARK']}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        busy = False

    sys.addaudithook(look)


_arm()
