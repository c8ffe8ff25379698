"""Watch torchrun on this node and the launchers of the others until all have ended; find which failed first."""

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.launch import torchrun
from bench.launch.preflight import SILENCE_SECONDS, Node, NodeLostError, answer, leave, meet, post, read, source_address
from bench.launch.torchrun import GRACE_SECONDS, KILLED, LOST, OK, STOPPED, Ending
from bench.machine.devices import Devices
from bench.run.processes import StopRequest, death_in_words, end_guarded, send, start_guarded

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

# Silence after which a node is lost once another one has failed: probably because of it.
_SHORT_SILENCE_SECONDS = 6.0
_POLL_SECONDS = 0.1
_EXCHANGE_SECONDS = 0.5


def launch(
    node: Node,
    command: Sequence[str],
    devices: Devices,
    address: str,
    port: int,
    join_seconds: float,
    note: Callable[[str], None],
) -> tuple[Ending, signal.Signals | None]:
    """Run torchrun on this node once all nodes have met at the address and port of node 0 and agree.

    Returns:
        How the ranks of all nodes ended, and the signal that stopped this launcher, if any.

    Raises:
        UsageError: the nodes cannot start together.
    """
    store, nodes, variables = None, [node], torchrun.environment(devices, node.counts[node.rank])
    if len(node.counts) > 1:
        note(f"waiting for the other nodes at {address}:{port} (timeout {join_seconds:g} s)")
        store, nodes = meet(node, address, port, join_seconds)
        local = nodes[node.rank].address if node.rank else source_address(nodes[1].address)
        variables = {**torchrun.gloo_interface(local), **variables}
    words = [*torchrun.options(node.counts, node.rank, address, nodes[0].port), "--no-python", *command]
    with tempfile.TemporaryDirectory(prefix="bertbench-launch-") as folder, StopRequest() as stop:
        record = Path(folder, "ending.json")
        child = start_guarded(torchrun.command(words, record), None, env=variables)
        watch = Watch(node=node, nodes=nodes, store=store, child=child, record=record, stop=stop)
        return watch.to_end(), stop.signal


@dataclass(slots=True, kw_only=True)
class Watch:
    """A running launch, as one node sees it."""

    node: Node
    """This node."""
    nodes: Sequence[Node]
    store: "TCPStore | None"
    """The store of node 0; None on one node."""
    child: "subprocess.Popen[bytes]"
    """The guard of torchrun on this node."""
    record: Path
    """Where it writes its Ending."""
    stop: StopRequest
    endings: dict[int, Ending] = field(default_factory=dict)
    """By rank of the node."""
    request: str | None = None
    """Who asked all ranks to stop."""
    beats: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Last sign of each other node, and when it was new."""
    signalled: set[int] = field(default_factory=set)
    kill_at: float | None = None

    @property
    def failed(self) -> bool:
        """Whether all ranks have to end because some failed."""
        return any(ending.kind != OK for ending in self.endings.values())

    def to_end(self) -> Ending:
        """Return how the launch ended. Raises KeyboardInterrupt on a second signal."""
        exchange_at = time.monotonic()
        try:
            while self.node.rank not in self.endings or (self.store and len(self.endings) < len(self.nodes)):
                self._look()
                if self.store is not None and time.monotonic() >= exchange_at:
                    exchange_at = time.monotonic() + _EXCHANGE_SECONDS
                    self._exchange(self.store)
                time.sleep(_POLL_SECONDS)
            return self._verdict()
        finally:
            end_guarded(self.child)
            if self.store is not None:
                with suppress(NodeLostError):
                    answer(self._leave, self.store)

    def _look(self) -> None:
        """Look at the signals and processes of this node."""
        if self.stop.wanted() and self.request is None:
            self.request = f"stopped by {self.stop.why()} on {self.node.name}"
        if self.node.rank in self.endings:
            return
        if self.record.exists():
            self.endings[self.node.rank] = msgspec.json.decode(self.record.read_bytes(), type=Ending)
        elif (code := self.child.poll()) is not None:
            how = death_in_words(code - 128) if code > 128 else f"ended with exit code {code}"
            self.endings[self.node.rank] = Ending(STOPPED if self.kill_at else KILLED, f"torchrun {how}", time.time())
        elif self.failed or self.request:
            self._end_ranks()

    def _end_ranks(self) -> None:
        """Send SIGTERM once to each rank; after a failure kill those that are left GRACE_SECONDS later."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.child.pid).children()  # torchrun; the ranks are its children
            ranks = {rank.pid for one in below for rank in one.children()} - self.signalled
            send(sorted(ranks), signal.SIGTERM)
            self.signalled |= ranks
        if self.failed and self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE_SECONDS
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            end_guarded(self.child)

    def _exchange(self, store: "TCPStore") -> None:
        """Tell the others what happened here, and learn what happened there."""
        try:
            answer(self._write_and_read, store)
        except NodeLostError as error:
            self.store = None
            self.endings[0] = Ending(LOST, f"lost ({error})")

    def _write_and_read(self, store: "TCPStore") -> None:
        rank = self.node.rank
        store.add(f"beat/{rank}", 1)
        self.request = read(store, "request", str) if self.request is None else post(store, "request", self.request)
        if rank in self.endings:
            self.endings[rank] = post(store, f"ending/{rank}", self.endings[rank])
        for other in self.nodes:
            if other.rank != rank and other.rank not in self.endings:
                ending = read(store, f"ending/{other.rank}", Ending) or self._loss_of(other, store)
                self.endings |= {} if ending is None else {other.rank: ending}

    def _loss_of(self, other: Node, store: "TCPStore") -> Ending | None:
        beat, now = store.add(f"beat/{other.rank}", 0), time.monotonic()
        if self.beats.get(other.rank, (-1, now))[0] != beat:
            self.beats[other.rank] = (beat, now)
        silence = now - self.beats[other.rank][1]
        if silence <= (_SHORT_SILENCE_SECONDS if self.failed else SILENCE_SECONDS):
            return None
        lost = Ending(LOST, f"lost (no sign of its launcher for {silence:.0f} s)")
        return post(store, f"ending/{other.rank}", lost)

    def _verdict(self) -> Ending:
        """Return the ending that caused the others, with its node: a loss, a kill, or what failed first."""
        rank, first = min(self.endings.items(), key=lambda pair: (pair[1].kind, pair[1].time))
        if self.request is not None and first.kind > LOST:
            return Ending(first.kind, self.request)
        return first if first.kind == OK else Ending(first.kind, f"{self.nodes[rank].name}: {first.text}")

    def _leave(self, store: "TCPStore") -> None:
        post(store, f"ending/{self.node.rank}", Ending(STOPPED, "was ended by a second signal", time.time()))
        leave(store, self.node, sum(ending.kind != LOST for ending in self.endings.values()) - 1)
