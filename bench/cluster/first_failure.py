"""Which rank of this node failed first, and an end of the others in bounded time.

torchrun gives the ranks that are left half a minute to end, and then cannot tell what it killed from what had failed
before. A rank that waits for a dead one inside NCCL ends by no signal but SIGKILL.
"""

import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.run.processes import send

_POLL_SECONDS = 0.05
# Signals with which torchrun and the launches end ranks that have not failed.
_ENDINGS = (signal.SIGTERM, signal.SIGINT)


class FirstFailure:
    """Watches the children of this process, which are ranks that torchrun starts and reaps in its main thread."""

    def __init__(self, grace_seconds: float, stopping: Path) -> None:
        """Kill ranks `grace_seconds` after one has failed, unless there is a file `stopping`: they may then save."""
        self._grace = grace_seconds
        self._stopping = stopping
        self._children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        self._lock = threading.Lock()
        self._ranks: dict[int, int] = {}
        self._failed: dict[int, tuple[int, float]] = {}

    def start(self) -> None:
        """Begin, in threads of their own."""
        threading.Thread(target=self._discover, daemon=True).start()

    def of(self, ranks: Iterable[int]) -> dict[str, Any] | None:
        """Return which of some ranks failed first: `rank`, `exit_code` as in subprocess, `time` in Unix s; or None."""
        with self._lock:
            found = [(when, rank, code) for rank, (code, when) in self._failed.items() if rank in ranks]
        if not found:
            return None
        when, rank, code = min(found)
        return {"rank": rank, "exit_code": code, "time": when}

    def missed(self, ranks: Iterable[int]) -> set[int]:
        """Return which of some ranks were gone before they could be seen, and so failed before all that were."""
        with self._lock:
            return set(ranks) - set(self._ranks.values())

    def first(self) -> dict[str, Any] | None:
        """Return what failed first of all ranks here, as `of` does; a rank that a signal killed before the others."""
        with self._lock:
            failed = dict(self._failed)
        killed = {rank for rank, (code, _) in failed.items() if code < 0 and -code not in _ENDINGS}
        return self.of(killed or failed)

    def _discover(self) -> None:
        while True:
            for pid in self._living():
                rank = _rank_of(pid) if pid not in self._ranks else None
                if rank is None:
                    continue
                with self._lock:
                    if rank in self._ranks.values():  # torchrun has started all of them anew
                        self._ranks, self._failed = {}, {}
                    self._ranks[pid] = rank
                threading.Thread(target=self._wait_for, args=(pid, rank), daemon=True).start()
            time.sleep(_POLL_SECONDS)

    def _wait_for(self, pid: int, rank: int) -> None:
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays for torchrun to reap
        except ChildProcessError:
            return
        if ended is None or ended.si_status == 0:
            return
        with self._lock:
            if pid not in self._ranks:
                return
            self._failed[rank] = (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status, time.time())
            others = [other for other in self._ranks if other != pid]
        time.sleep(self._grace)
        if not self._stopping.exists():
            send([other for other in others if other in self._living()], signal.SIGKILL)

    def _living(self) -> list[int]:
        return [int(word) for word in _read(self._children).split()]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _rank_of(pid: int) -> int | None:
    """The rank that a process is, None for other processes."""
    words = _read(Path(f"/proc/{pid}/environ")).split("\0")
    return next((int(word.removeprefix("RANK=")) for word in words if word.startswith("RANK=")), None)
