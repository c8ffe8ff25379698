"""Child processes that never outlive their parent, and how to end a whole tree of them. Linux."""

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
# Environment variable: the process whose death a child must not outlive, told by itself before it starts the child.
PARENT_VARIABLE = "BERTBENCH_PARENT_PID"


def die_with_parent(death_signal: int = signal.SIGKILL) -> None:
    """Have the kernel send `death_signal` to this process when its parent dies, however it dies (kill -9 included)."""
    if not sys.platform.startswith("linux"):
        return
    expected = int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != expected:  # it died before the request was made, while this process was starting
        os.kill(os.getpid(), death_signal)
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # for the children of this process


def descendants(pid: int) -> list[int]:
    """Process ids of all children of `pid`, theirs, and so on; they may sit in sessions of their own."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send(pids: list[int], number: int) -> None:
    """Send a signal to every process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_tree(pid: int, grace_seconds: float = 5.0) -> None:
    """Kill `pid` and all its descendants, and wait until none is left (at most `grace_seconds`)."""
    deadline = time.monotonic() + grace_seconds
    known = {pid, *descendants(pid)}
    send([pid], signal.SIGSTOP)  # so that it starts nothing while its children are collected
    known |= set(descendants(pid))
    send(sorted(known), signal.SIGKILL)
    while time.monotonic() < deadline and any(_alive(member) for member in known):
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
