"""Run torchrun as a child of a launch; its agent on this node joins the others as the launches agreed.

This module watches the ranks itself. torchrun gives the remaining ranks 30 s to exit, and afterwards cannot distinguish
ranks that it killed from ranks that failed. A rank that waits inside NCCL for a dead one reacts only to SIGKILL.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.cluster import GRACE_SECONDS, STOPPING_VARIABLE
from bench.run import agent
from bench.run.processes import STOP_SIGNALS, send
from records.files import read_record, write_record

_POLL_SECONDS = 0.05


class FirstFailure:
    """Watches the children of this process: the ranks that torchrun starts and reaps in its main thread."""

    def __init__(self, grace_seconds: float, stopping: Path) -> None:
        """Kill ranks `grace_seconds` after the first failure, unless the file `stopping` exists: then they may save."""
        self._grace = grace_seconds
        self._stopping = stopping
        self._children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        self._lock = threading.Lock()
        self._ranks: dict[int, int] = {}
        self._failed: dict[int, tuple[int, float]] = {}

    def start(self) -> None:
        """Start to watch, in separate threads."""
        threading.Thread(target=self._discover, daemon=True).start()

    def of(self, ranks: Iterable[int]) -> dict[str, Any] | None:
        """Return the first failure among `ranks`: `rank`, `exit_code` as in subprocess, `time` in Unix s; or None."""
        with self._lock:
            found = [(when, rank, code) for rank, (code, when) in self._failed.items() if rank in ranks]
        if not found:
            return None
        when, rank, code = min(found)
        return {"rank": rank, "exit_code": code, "time": when}

    def missed(self, ranks: Iterable[int]) -> set[int]:
        """Return the ranks that ended before they were seen, and so failed before all others."""
        with self._lock:
            return set(ranks) - set(self._ranks.values())

    def first(self) -> dict[str, Any] | None:
        """Return the first failure of all ranks here, as `of` does; ranks killed by a signal come first."""
        with self._lock:
            failed = dict(self._failed)
        killed = {rank for rank, (code, _) in failed.items() if code < 0 and -code not in STOP_SIGNALS}
        return self.of(killed or failed)

    def _discover(self) -> None:
        while True:
            for pid in self._living():
                rank = _rank_of(pid) if pid not in self._ranks else None
                if rank is None:
                    continue
                with self._lock:
                    if rank in self._ranks.values():  # torchrun has restarted all ranks
                        self._ranks, self._failed = {}, {}
                    self._ranks[pid] = rank
                threading.Thread(target=self._wait_for, args=(pid, rank), daemon=True).start()
            time.sleep(_POLL_SECONDS)

    def _wait_for(self, pid: int, rank: int) -> None:
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # torchrun reaps it
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
    """Return the rank of a process, None for other processes."""
    words = _read(Path(f"/proc/{pid}/environ")).split("\0")
    return next((int(word.removeprefix("RANK=")) for word in words if word.startswith("RANK=")), None)


def main(argv: list[str]) -> int:
    """Run torchrun with argv[1:]; write the first failed rank, or another error, to argv[0]."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    from bench.cluster import rendezvous

    result, stopping = Path(argv[0]), Path(os.environ[STOPPING_VARIABLE])
    first = FirstFailure(GRACE_SECONDS, stopping)
    rendezvous.register(first.first)
    first.start()
    # The launches report failed ranks in one line with the host; the loggers would repeat it.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        code = agent.supervise(result, lambda: agent.torchrun(argv[1:]))
    except Exception as error:
        text = "" if stopping.exists() else f"{type(error).__name__}: {error}"
        cause = first.first() if isinstance(error, RendezvousStateError) else None
        write_record(result, {"failures": [] if cause is None else [cause], "error": text})
        if text and not isinstance(error, RendezvousStateError):
            sys.excepthook(*sys.exc_info())
        return 1
    if code:
        failures = read_record(result)["failures"]
        ranks = [failure["rank"] for failure in failures]
        missed, cause = first.missed(ranks), first.of(ranks)
        if missed:
            failures = [failure for failure in failures if failure["rank"] in missed]
        elif cause is not None:
            failures = [cause]
        write_record(result, {"failures": failures})
    return code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # threads of the store must not keep the process alive
