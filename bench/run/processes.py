"""Processes that leave none behind, and signals that ask for a stop. Run as a program, this file guards a command: it
ends every process of the command when the command has ended, or when the process that started the guard dies. Linux."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Seconds that daemons of a profiler have to end by themselves after its command.
_GRACE_SECONDS = 5.0
# Seconds that the kernel may take to end killed processes.
_DEATH_SECONDS = 5.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Batch systems and shells that pass a signal on can deliver the same one twice.
_SAME_SIGNAL_SECONDS = 0.5


def die_with_parent(death_signal: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send `death_signal` to this process when its parent dies; `parent` may have died before."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), death_signal)


def start_guarded(
    argv: Iterable[str], output: IO[bytes] | int | None, held: Iterable[int] = (), **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a guarded command with stdout and stderr in the file `output`; None leaves them.

    Its exit code is the command's, above 128 for a signal as in a shell. `end_guarded` ends it early. The signals
    `held`, which batch systems send to all processes, wait until one of them listens.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        return subprocess.Popen(
            # -E and -P keep out of the guard, which needs the standard library alone, PYTHONPATH and this folder.
            [sys.executable, "-E", "-P", __file__, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone
            **options,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_guarded(guard: "subprocess.Popen[bytes]") -> None:
    """Kill every process of a guarded command; return when none is left."""
    guard.send_signal(signal.SIGHUP)
    guard.wait()


def listen_for_stop() -> Callable[[], bool]:
    """Take STOP_SIGNALS, those held so far too, as a request; return a function that says whether there was one."""
    requests: list[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, frame: requests.append(received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return lambda: bool(requests)


def descendants(pid: int) -> list[int]:
    """Return the process ids of all children of `pid`, theirs, and so on, also those in other sessions."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to every process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_in_words(code: int) -> str:
    """Return 'died by SIGKILL' or 'ended with exit code 7' for an exit code of a process, a guard or a shell."""
    number = code - 128 if code > 128 else -code
    known = [one.name for one in signal.Signals if one == number]
    return f"died by {known[0]}" if known else f"ended with exit code {code}"


class StopRequest:
    """Inside `with`, the first SIGTERM or Ctrl-C is a request, and a second one a KeyboardInterrupt."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._requested_at = 0.0
        self._before: dict[int, Any] = {}
        self.signal: signal.Signals | None = None
        """What came, None where nothing did."""
        self.max_seconds: float | None = None
        """When to ask for a stop by itself, counted from the making of this object; None sets no limit."""

    def __enter__(self) -> "StopRequest":
        """Listen."""
        self._before = {number: signal.signal(number, self._take) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        """Put back what listened before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: types.FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self._requested_at, self.signal = now, signal.Signals(number)
        elif now - self._requested_at > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt

    def wanted(self) -> bool:
        """Whether a stop is requested."""
        return bool(self.why())

    def why(self) -> str:
        """Return what requested the stop, in words; empty where nothing here did."""
        if self.signal is not None:
            return self.signal.name
        is_late = self.max_seconds is not None and time.monotonic() - self._began >= self.max_seconds
        return f"the limit of {self.max_seconds:g} s" if is_late else ""


def _children() -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                yield int(stat.parent.name)


def _reap(grace_seconds: float) -> None:
    """Wait for all children and for their orphans, which become children too; kill those left after a while."""
    deadline = time.monotonic() + grace_seconds
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline + _DEATH_SECONDS:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            if time.monotonic() >= deadline:
                send(_children(), signal.SIGKILL)
            time.sleep(0.02)


def main(argv: list[str]) -> int:
    """Guard the command argv[1:] for the process argv[0], which is the parent; return the command's exit code."""
    code = 1
    # Daemons and other orphans become children of this process.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)  # the parent decides
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        die_with_parent(signal.SIGHUP, int(argv[0]))
        code = subprocess.Popen(argv[1:], preexec_fn=die_with_parent).wait()
        _reap(_GRACE_SECONDS)
    except KeyboardInterrupt:
        pass  # the end of the parent, or its wish
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _reap(0.0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
