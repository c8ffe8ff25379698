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
from bench.launch.layout import interfaces
from bench.launch.preflight import POLL_SECONDS, SILENCE_SECONDS, Node, answer, leave, meet, share, source_address
from bench.launch.torchrun import GRACE_SECONDS, KILLED, LOST, OK, STOPPED, Ending
from bench.machine.devices import Devices
from bench.run.processes import StopRequest, end_guarded, end_in_words, send, start_guarded

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

# Silence after which a node is lost once another one has failed: probably because of it.
_SHORT_SILENCE_SECONDS = 6.0


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

    Return how the ranks of all nodes ended, and the signal that stopped this launcher. Raises UsageError from `meet`.
    """
    here = node.counts[node.rank]
    store, nodes, variables, words = None, [node], torchrun.environment(devices, here), [*torchrun.ONE_NODE]
    if len(node.counts) > 1:
        note(f"waiting for the other nodes at {address}:{port} (timeout {join_seconds:g} s)")
        store, nodes = meet(node, address, port, join_seconds)
        local = nodes[node.rank].address if node.rank else source_address(nodes[1].address)
        if local in interfaces():  # by default gloo often uses loopback
            variables = {"GLOO_SOCKET_IFNAME": interfaces()[local], **variables}
        words = [f"--nnodes={len(nodes)}", f"--node-rank={node.rank}"]  # a static rendezvous keeps their order
        words += [f"--master-addr={address}", f"--master-port={nodes[0].port}"]
    words += [f"--nproc-per-node={here}", "--no-python", *command]
    with tempfile.TemporaryDirectory(prefix="bertbench-launch-") as folder, StopRequest() as stop:
        record = Path(folder, "ending.json")
        child = start_guarded(torchrun.command(words, record), None, env=variables)
        return Watch(node, nodes, store, child, record, stop).to_end(), stop.signal


@dataclass(slots=True)
class Watch:
    """A running launch, as one node sees it."""

    node: Node
    nodes: Sequence[Node]
    store: "TCPStore | None"
    child: "subprocess.Popen[bytes]"
    """The guard of torchrun on this node."""
    record: Path
    """Where torchrun writes its Ending."""
    stop: StopRequest
    endings: dict[int, Ending] = field(default_factory=dict)
    """By rank of the node."""
    request: str | None = None
    """Who asked all ranks to stop."""
    beats: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Last sign of each node, and when it was new."""
    signalled: set[int] = field(default_factory=set)
    kill_at: float | None = None

    @property
    def failed(self) -> bool:
        """Whether all ranks have to end because some failed."""
        return any(ending.kind != OK for ending in self.endings.values())

    def to_end(self) -> Ending:
        """Return how the launch ended. Raises KeyboardInterrupt on a second signal."""
        try:
            while self.node.rank not in self.endings or (self.store and len(self.endings) < len(self.nodes)):
                time.sleep(POLL_SECONDS)
                self._look()
                try:
                    if self.store is not None:
                        answer(self._exchange, self.store)
                except ConnectionError as error:
                    self.store, self.endings[0] = None, Ending(LOST, f"lost ({error})")
            return self._verdict()
        finally:
            end_guarded(self.child)
            if self.store is not None:
                with suppress(ConnectionError):
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
            kind = STOPPED if self.kill_at else KILLED
            self.endings[self.node.rank] = Ending(kind, f"torchrun {end_in_words(code)}", time.time())
        elif self.failed or self.request:
            self._end_ranks()

    def _end_ranks(self) -> None:
        """Send SIGTERM once to each rank; after a failure kill those that are left GRACE_SECONDS later."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.child.pid).children()  # torchrun; the ranks are its children
            ranks = {rank.pid for one in below for rank in one.children()} - self.signalled
            send(ranks, signal.SIGTERM)
            self.signalled |= ranks
        if self.failed and self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE_SECONDS
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            end_guarded(self.child)

    def _exchange(self, store: "TCPStore") -> None:
        """Tell the others what happened here, and learn what happened there."""
        store.add(f"beat/{self.node.rank}", 1)
        self.request = share(store, "request", str, self.request)
        for rank in range(len(self.nodes)):
            known = self.endings.get(rank) or self._loss(rank, store)
            if ending := share(store, f"ending/{rank}", Ending, known):
                self.endings[rank] = ending

    def _loss(self, rank: int, store: "TCPStore") -> Ending | None:
        beat, now = store.add(f"beat/{rank}", 0), time.monotonic()
        last, since = self.beats.get(rank, (beat, now))
        self.beats[rank] = (beat, since if beat == last else now)
        silence = now - self.beats[rank][1]
        if silence <= (_SHORT_SILENCE_SECONDS if self.failed else SILENCE_SECONDS):
            return None
        return Ending(LOST, f"lost (no sign of its launcher for {silence:.0f} s)")

    def _verdict(self) -> Ending:
        """Return the ending that caused the others, with its node: a loss, a kill, or what failed first."""
        rank, first = min(self.endings.items(), key=lambda pair: (pair[1].kind, pair[1].time))
        if self.request is not None and first.kind > LOST:
            return Ending(first.kind, self.request)
        return first if first.kind == OK else Ending(first.kind, f"{self.nodes[rank].name}: {first.text}")

    def _leave(self, store: "TCPStore") -> None:
        share(store, f"ending/{self.node.rank}", Ending, Ending(STOPPED, "was ended by a second signal", time.time()))
        leave(store, self.node, sum(ending.kind != LOST for ending in self.endings.values()) - 1)
