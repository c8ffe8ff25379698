"""Watch torchrun on this node and the launchers of the others until all have ended; find which failed first."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.launch.preflight import SILENCE_SECONDS, Node, NodeLostError, answer, leave, post, read
from bench.launch.torchrun import GRACE_SECONDS, KILLED, LOST, OK, STOPPED, Ending
from bench.run.processes import StopRequest, death_in_words, descendants, send

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_POLL_SECONDS = 0.1
_EXCHANGE_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(slots=True, kw_only=True)
class Watch:
    """A running launch, as one node sees it. Node 0 decides for all when it has failed, and how it ended."""

    node: Node
    """This node."""
    nodes: Sequence[Node]
    store: "TCPStore | None"
    """The store of node 0; None on one node."""
    child: "subprocess.Popen[bytes]"
    """torchrun on this node."""
    record: Path
    """Where it writes its Ending."""
    stop: StopRequest
    endings: dict[int, Ending] = field(default_factory=dict)
    """By rank of the node: on node 0 of all nodes, elsewhere of this node and of a lost node 0."""
    request: str | None = None
    """Who asked all ranks to stop."""
    failed: bool = False
    """Whether all ranks have to end because some failed."""
    verdict: Ending | None = None
    """How the launch ended."""
    beats: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Last sign of each other node, and when it was new."""
    signalled: set[int] = field(default_factory=set)
    kill_at: float | None = None

    def to_end(self) -> Ending:
        """Return how the launch ended. Raises KeyboardInterrupt on a second signal."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a killed rank or torchrun leaves becomes our child
        exchange_at = time.monotonic()
        try:
            while self.verdict is None:
                self._look()
                if self.store is None:
                    self.verdict = self._judge() if self.node.rank in self.endings else None
                elif time.monotonic() >= exchange_at:
                    exchange_at = time.monotonic() + _EXCHANGE_SECONDS
                    self._exchange(self.store)
                time.sleep(_POLL_SECONDS)
            return self.verdict
        finally:
            if self.verdict is None or self.verdict.kind != OK:
                send(descendants(os.getpid()), signal.SIGKILL)
            if self.store is not None:
                with suppress(NodeLostError):
                    answer(self._leave, self.store)

    def _look(self) -> None:
        """Look at the signals and processes of this node."""
        if self.stop.wanted() and self.request is None:
            self.request = f"stopped by {self.stop.why()} on {self.node.name}"
        if self.node.rank in self.endings:
            return
        code = self.child.poll()
        if code is None:
            if self.failed or self.request:
                self._end_ranks()
        elif self.record.exists():
            self.endings[self.node.rank] = msgspec.json.decode(self.record.read_bytes(), type=Ending)
        else:
            how = death_in_words(-code) if code < 0 else f"ended with exit code {code}"
            self.endings[self.node.rank] = Ending(STOPPED if self.kill_at else KILLED, f"torchrun {how}", time.time())

    def _end_ranks(self) -> None:
        """Send SIGTERM once to each rank; after a failure kill those that are left GRACE_SECONDS later."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            ranks = {child.pid for child in psutil.Process(self.child.pid).children()} - self.signalled
            send(sorted(ranks), signal.SIGTERM)
            self.signalled |= ranks
        if self.failed and self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE_SECONDS
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            send([self.child.pid, *descendants(self.child.pid)], signal.SIGKILL)

    def _exchange(self, store: "TCPStore") -> None:
        """Tell the others what happened here, and learn what happened there."""
        try:
            answer(self._write_and_read, store)
        except NodeLostError as error:
            self.store, self.failed = None, True
            self.endings[0] = Ending(LOST, f"lost ({error})")

    def _write_and_read(self, store: "TCPStore") -> None:
        rank = self.node.rank
        store.add(f"beat/{rank}", 1)
        self.request = read(store, "request", str) if self.request is None else post(store, "request", self.request)
        if rank in self.endings:
            post(store, f"ending/{rank}", self.endings[rank])
        if rank:
            self.failed, self.verdict = store.check(["failed"]), read(store, "verdict", Ending)
            return
        for other in self.nodes[1:]:
            ending = self.endings.get(other.rank) or self._ending_of(other, store)
            if ending is not None:
                self.endings[other.rank] = ending
        if not self.failed and any(ending.kind != OK for ending in self.endings.values()):
            self.failed = post(store, "failed", True)
        if len(self.endings) == len(self.nodes):
            self.verdict = post(store, "verdict", self._judge())

    def _ending_of(self, other: Node, store: "TCPStore") -> Ending | None:
        beat, now = store.add(f"beat/{other.rank}", 0), time.monotonic()
        if self.beats.get(other.rank, (-1, now))[0] != beat:
            self.beats[other.rank] = (beat, now)
        if now - self.beats[other.rank][1] > SILENCE_SECONDS:
            return Ending(LOST, f"lost (no sign of its launcher for {SILENCE_SECONDS:g} s)")
        return read(store, f"ending/{other.rank}", Ending)

    def _judge(self) -> Ending:
        """Return the ending that caused the others, with its node: a loss, a kill, or what failed first."""
        rank, first = min(self.endings.items(), key=lambda pair: (pair[1].kind, pair[1].time))
        if self.request is not None and first.kind > LOST:
            return Ending(first.kind, self.request)
        return first if first.kind == OK else Ending(first.kind, f"{self.nodes[rank].name}: {first.text}")

    def _leave(self, store: "TCPStore") -> None:
        post(store, f"ending/{self.node.rank}", Ending(STOPPED, "was ended by a second signal", time.time()))
        others = sum(ending.kind != LOST for ending in self.endings.values()) - 1
        leave(store, self.node, others)
