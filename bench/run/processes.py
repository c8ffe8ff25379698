"""Child processes that never outlive their parent, how to end a whole tree of them, how they are asked to stop, and the
temporary folders that they leave. Linux."""

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
# What the kernel may take to end processes that were sent SIGKILL.
_DEATH_SECONDS = 5.0
# Environment variable: a word of one trial's own, which every process of it inherits, daemons of profilers included.
MARK_VARIABLE = "BERTBENCH_MARK"
# Environment variable: the harness's process id, for `main`.
HARNESS_VARIABLE = "BERTBENCH_HARNESS_PID"
# Environment variable: the process that the child must not outlive; that process sets it before it starts the child.
PARENT_VARIABLE = "BERTBENCH_PARENT_PID"
# Environment variable: set where a stop signal asks the ranks to save and end, instead of ending the processes.
STOP_VARIABLE = "BERTBENCH_STOPS_GRACEFULLY"

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Batch systems and shells that pass a signal on can deliver the same one twice.
_SAME_SIGNAL_SECONDS = 0.5

TRIAL_FOLDER = "bertbench-trial-"
"""Prefix of the temporary folders of a trial's processes."""
_LOCK = "lock"
# In front of the prefix, until the folder is locked.
_NEW = ".new-"
# One that is not locked this long after it was made never will be.
_YOUNG_SECONDS = 60.0


def die_with_parent(death_signal: int = signal.SIGKILL) -> None:
    """Have the kernel send `death_signal` to this process when its parent dies, however it dies (kill -9 included)."""
    if not sys.platform.startswith("linux"):
        return
    expected = int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != expected:  # it died before the request was made, while this process was starting
        os.kill(os.getpid(), death_signal)
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # for the children of this process


def hold_stop_signals() -> None:
    """Have STOP_SIGNALS wait, in this process and in those it starts, until one of them calls `listen_for_stop`.

    Batch systems send SIGTERM to every process of a job: one that came while a rank still imports must neither end
    the rank nor be lost, and the launcher of the ranks has to outlive them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def listen_for_stop() -> Callable[[], bool]:
    """Take STOP_SIGNALS, those held so far too, as a request; return a function that says whether there was one."""
    asked: list[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, frame: asked.append(received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return lambda: bool(asked)


def descendants(pid: int) -> list[int]:
    """Process ids of all children of `pid`, theirs, and so on; they may sit in sessions of their own."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def ranks_of(pids: list[int]) -> list[int]:
    """Return those of the processes that run a rank; launchers and tools would not survive every signal."""
    import psutil

    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            words = psutil.Process(pid).cmdline()
            if "bench.run.worker" in words and "bench.run.agent" not in words:
                found.append(pid)
    return found


def stopped_ranks(pids: list[int]) -> list[int]:
    """Return which ranks, of those that these processes run, a signal or a debugger has stopped."""
    import psutil

    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                found.append(int(process.environ().get("RANK", "0")))
    return sorted(found)


def send(pids: list[int], number: int) -> None:
    """Send a signal to every process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def death_in_words(number: int) -> str:
    """Return 'died by SIGKILL' for the number of a signal."""
    try:
        return f"died by {signal.Signals(number).name}"
    except ValueError:
        return f"died by signal {number}"


def end_tree(pid: int) -> None:
    """Kill `pid` and all its descendants, and wait until none is left, but no longer than _DEATH_SECONDS."""
    deadline = time.monotonic() + _DEATH_SECONDS
    known = {pid, *descendants(pid)}
    send([pid], signal.SIGSTOP)  # so that it starts nothing while its children are collected
    known |= set(descendants(pid))
    send(sorted(known), signal.SIGKILL)
    while time.monotonic() < deadline and any(_alive(member) for member in known):
        time.sleep(0.02)


def marked(mark: str, variable: str = MARK_VARIABLE) -> list[int]:
    """Return the processes, this one apart, that inherited `variable`=`mark`, wherever they are in the tree."""
    wanted = f"{variable}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def end_marked(mark: str, grace_seconds: float = 0.0) -> None:
    """Kill every marked process that does not end by itself within `grace_seconds`; return when none is left.

    A profiler's daemon is nobody's child: Nsight Systems' agent outlives a killed `nsys`.
    """
    deadline = time.monotonic() + grace_seconds
    while (left := _living(marked(mark))) and time.monotonic() < deadline:
        time.sleep(0.05)
    send(left, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_SECONDS
    while _living(left) and time.monotonic() < deadline:
        time.sleep(0.02)


class StopRequest:
    """Inside `with`, the first SIGTERM or Ctrl-C is a request, and a second one a KeyboardInterrupt."""

    def __init__(self) -> None:
        self._max_seconds: float | None = None
        self._began = time.monotonic()
        self._asked_at: float | None = None
        self._before: dict[int, Any] = {}
        self.signal: signal.Signals | None = None
        """What came, None where nothing did."""

    def __enter__(self) -> "StopRequest":
        """Listen."""
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        """Put back what listened before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: types.FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at, self.signal = now, signal.Signals(number)
        elif now - self._asked_at > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt

    def limit(self, max_seconds: float | None) -> None:
        """Ask for a stop this long after this object was made; None sets no limit."""
        self._max_seconds = max_seconds

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        return self._max_seconds is not None and time.monotonic() - self._began >= self._max_seconds

    def wanted(self) -> bool:
        """Whether a stop is asked for."""
        return self.signal is not None or self.out_of_time

    def why(self) -> str:
        """Return what asked for the stop, in words; empty where nothing here did."""
        if self.signal is not None:
            return self.signal.name
        return f"the limit of {self._max_seconds:g} s" if self.out_of_time else ""


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Give an empty folder, which is removed at the end; remove those of dead processes with the same prefix first."""
    clear_stale(prefix)
    folder = Path(tempfile.mkdtemp(prefix=f"{_NEW}{prefix}"))
    try:
        with (folder / _LOCK).open("w") as held:  # known across containers too, which process ids are not
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = folder.rename(folder.with_name(folder.name.removeprefix(_NEW)))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_stale(prefix: str) -> None:
    """Remove the folders with this prefix whose process, one of this user, is gone."""
    place = Path(tempfile.gettempdir())
    for folder in [*place.glob(f"{prefix}*"), *place.glob(f"{_NEW}{prefix}*")]:
        with contextlib.suppress(OSError):
            found = folder.lstat()
            is_young = time.time() - found.st_mtime < _YOUNG_SECONDS
            if found.st_uid != os.geteuid() or (is_young and folder.name.startswith(_NEW)):
                continue
            with (folder / _LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str]) -> int:
    """Run `argv`, a tool that starts daemons of its own; when the harness dies end every process of the trial.

    The harness starts wrapped trials through this process, since neither the tool nor its daemons die with the harness.
    """
    mark, harness = os.environ[MARK_VARIABLE], int(os.environ[HARNESS_VARIABLE])
    try:
        watched = os.pidfd_open(harness)
    except ProcessLookupError:
        return 1
    child = subprocess.Popen(argv)
    ended = os.pidfd_open(child.pid)
    readable, _, _ = select.select([watched, ended], [], [])  # a pidfd is readable when its process has ended
    if watched in readable:
        end_marked(mark)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _alive(pid)]


def _alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
