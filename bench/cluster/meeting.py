"""The launches of all nodes connect, agree on the job, and stay in contact until the end.

Node 0 listens, and the other nodes connect. Each node sends its settings; node 0 starts the job once all nodes have
joined and agree. Afterwards each node sends a heartbeat every second, and at the end the result of its processes. Node
0 tells all nodes when to stop and how the job ended. torchrun is not involved: its agents use a separate store.
"""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.cluster.statements import PROTOCOL, Report, Statement, Stop, Verdict, absence, judge, objection
from common.errors import Code, UsageError

BEAT_SECONDS = 1.0
# Seconds without a message after which a node counts as lost: its machine, its launch, or the network failed.
SILENCE_SECONDS = 20.0
# Seconds for the other nodes to stop and report after a failure; torchrun and the launches kill processes earlier.
REPORT_SECONDS = 25.0
_PARTING_SECONDS = 3.0
_OTHER_RELEASE = "it has an incompatible release of bertbench: install the same release on all nodes"
_WORDLESS = "its launch ended without a report"
_POLL_SECONDS = 0.05
# Longest message; a longer line does not come from a launch.
_MOST_BYTES = 2**20


class Line:
    """A connection to the launch of another node: JSON objects, one per line. No method blocks."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._incoming = b""
        self._outgoing = b""
        self._parting = False
        self.closed = False
        """Whether the connection is lost, or the other side is not a launch."""
        self.heard_at = time.monotonic()
        """Time of the last received bytes."""

    @property
    def own_address(self) -> str:
        """Address of this end of the connection."""
        return str(self._socket.getsockname()[0])

    def send(self, **message: Any) -> None:
        """Send a message; the next call sends what the network does not accept now."""
        self._outgoing += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Send pending bytes; return whether all are sent."""
        while self._outgoing and not self.closed:
            try:
                self._outgoing = self._outgoing[self._socket.send(self._outgoing) :]
            except BlockingIOError:
                return False
            except OSError:
                self.closed = True
        if self._parting and not self._outgoing:
            self._parting = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        return not self._outgoing

    def part(self) -> None:
        """Send nothing more; `receive` sets `closed` after the other side has read everything and closed."""
        self._parting = True
        self.flush()

    def receive(self) -> list[dict[str, Any]]:
        """Return the received messages."""
        while not self.closed:
            try:
                part = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            if not part:
                self.closed = True
                break
            self._incoming += part
            self.heard_at = time.monotonic()
            if len(self._incoming) > _MOST_BYTES:
                self.closed = True
        *lines, self._incoming = self._incoming.split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.closed = True
                break
            messages.append(message)
        return messages

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.close()


@dataclass(frozen=True, slots=True)
class Agreement:
    """The settings with which all nodes start."""

    run_id: str
    store_port: int
    """Port of node 0 for the store of torchrun's agents and the ranks."""
    nodes: dict[int, Statement]
    """Statements of all nodes, by node rank."""


class Hub:
    """Node 0."""

    def __init__(self, listener: socket.socket | None, own: Statement, store_port: int) -> None:
        self._listener = listener
        if listener is not None:
            listener.setblocking(False)
        self._own = own
        self._store_port = store_port
        self._unknown: list[Line] = []
        self._lines: dict[int, Line] = {}
        self._nodes = {0: own}
        self._agreed = False
        self._reports: dict[int, Report] = {}
        self._lost: dict[int, str] = {}
        self._asked: str | None = None
        self._next_beat = 0.0
        self._stopped_at: float | None = None
        self.stop: Stop | None = None
        """The stop request, or None."""
        self.verdict: Verdict | None = None
        """The result of the job, None while it runs."""

    @property
    def own_address(self) -> str | None:
        """Address of this node to which another node connected; None without other nodes."""
        return next((line.own_address for line in self._lines.values()), None)

    def agree(self, seconds: float, told: Callable[[str], None]) -> Agreement:
        """Wait for all nodes and start the job.

        Args:
            seconds: how long to wait.
            told: called with a text for each node that joins or leaves.

        Raises:
            UsageError: the nodes disagree, or some do not join; all joined nodes get the same message.
        """
        deadline = time.monotonic() + seconds
        while len(self._nodes) < len(self._own.counts):
            self._accept()
            for line in list(self._unknown):
                for message in line.receive():
                    spoken = message.get("protocol")
                    if "statement" in message and isinstance(spoken, int) and spoken != PROTOCOL:
                        # Kept until the other side closes; otherwise a reset could precede the message.
                        line.send(refused=_OTHER_RELEASE, code="tool-version")
                        break
                    late = Statement.from_json(message.get("statement"))
                    if late is None or message.get("protocol") != PROTOCOL:
                        line.closed = True
                        break
                    self._admit(line, late)
                    told(f"{late.name()} has joined")
                if line.closed and line in self._unknown:
                    self._unknown.remove(line)
            for node, line in list(self._lines.items()):
                line.receive()
                if line.closed:  # it was stopped or timed out; another node may take its place
                    told(f"{self._nodes[node].name()} has left")
                    del self._lines[node], self._nodes[node]
            if time.monotonic() >= deadline:
                self._refuse("node-unreachable", absence(self._own.counts, list(self._nodes.values()), seconds))
            time.sleep(_POLL_SECONDS)
        agreement = Agreement(uuid.uuid4().hex, self._store_port, dict(self._nodes))
        statements = [one.to_json() for one in self._nodes.values()]
        self._agreed = True
        self._tell(go={"run_id": agreement.run_id, "store_port": self._store_port, "nodes": statements})
        return agreement

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            line = Line(connection)
            if self._agreed:
                names = ", ".join(one.name() for one in self._nodes.values())
                line.send(
                    refused=f"the job at this address and port already has all its nodes ({names}): "
                    "give each job its own --master-port on all of its nodes",
                    code="port-in-use",
                )
            self._unknown.append(line)

    def _admit(self, line: Line, late: Statement) -> None:
        others = [one for rank, one in self._nodes.items() if rank]
        problem = objection(self._own, others, late)
        if problem:
            line.send(refused=problem, code="nodes-disagree")
            self._refuse("nodes-disagree", problem)
        self._unknown.remove(line)
        self._lines[late.node_rank], self._nodes[late.node_rank] = line, late
        self._tell(came=[one.to_json() for one in self._nodes.values()])

    def _refuse(self, code: Code, problem: str) -> None:
        self._tell(refused=problem, code=code)
        self.close()
        raise UsageError(code, problem)

    def _tell(self, **message: Any) -> None:
        for line in self._lines.values():
            line.send(**message)

    def look(self) -> None:
        """Read messages, detect lost nodes, and decide whether to stop and how the job ended."""
        now = time.monotonic()
        self._accept()
        for late in list(self._unknown):  # refused; still read, since a reset could precede the message
            late.receive()
            if late.flush() and late.closed:
                self._unknown.remove(late)
        if now >= self._next_beat:
            self._tell(beat=True)
            self._next_beat = now + BEAT_SECONDS
        for node, line in self._lines.items():
            for message in line.receive():
                if "report" in message:
                    self._take(node, Report.from_json(message["report"]))
                if "asked" in message:
                    self._take_asked(str(message["asked"]))
            line.flush()
            if node in self._reports or node in self._lost:
                continue
            if line.closed:
                self._lose(node, _WORDLESS)
            elif now - line.heard_at > SILENCE_SECONDS:
                self._lose(node, _silent())
        self._decide(now)

    def ask(self, why: str) -> None:
        """Ask all nodes to stop."""
        self._take_asked(why)

    def report(self, report: Report) -> None:
        """Report how the processes of this node ended."""
        self._take(0, report)

    def _take_asked(self, why: str) -> None:
        self._asked = self._asked or why
        if self.stop is None:
            self._stop(Stop(True, why))

    def _take(self, node: int, report: Report) -> None:
        self._reports[node] = report
        if not report.ok and (self.stop is None or self.stop.asked):
            self._stop(Stop(False, f"{self._nodes[node].name()} failed"))

    def _lose(self, node: int, how: str) -> None:
        self._lost[node] = how
        if self.stop is None or self.stop.asked:
            self._stop(Stop(False, f"{self._nodes[node].name_with_ranks()} was lost: {how}"))

    def _stop(self, stop: Stop) -> None:
        self.stop = stop
        if not stop.asked:
            self._stopped_at = time.monotonic()
        self._tell(stop={"asked": stop.asked, "why": stop.why})

    def _decide(self, now: float) -> None:
        if self.verdict is not None or 0 not in self._reports:
            return
        late = self._stopped_at is not None and now - self._stopped_at > REPORT_SECONDS
        if late or all(node in self._reports or node in self._lost for node in self._nodes):
            self.verdict = judge(self._nodes, self._reports, self._lost, self._asked)
            self._tell(verdict={"ok": self.verdict.ok, "why": self.verdict.why})

    def close(self) -> None:
        """Close the connections after all messages are read, or after `_PARTING_SECONDS`."""
        deadline = time.monotonic() + _PARTING_SECONDS
        lines = [*self._lines.values(), *self._unknown]
        for line in lines:
            line.part()
        while time.monotonic() < deadline and not all(line.closed for line in lines):
            for line in lines:
                line.flush()
                line.receive()
            time.sleep(_POLL_SECONDS)
        for line in lines:
            line.close()
        if self._listener is not None:
            self._listener.close()


class Spoke:
    """Any other node."""

    def __init__(self, address: str, port: int, own: Statement) -> None:
        self._place = (address, port)
        self._own = own
        self._line: Line | None = None
        self._hub = f"node 0 at {address}:{port}"
        self._came: list[Statement] = []
        self._next_beat = 0.0
        self._reported: Report | None = None
        self._asked: str | None = None
        self.stop: Stop | None = None
        """The stop request, or None."""
        self.verdict: Verdict | None = None
        """The result of the job, None while it runs."""

    @property
    def own_address(self) -> str | None:
        """Address of this node as node 0 sees it."""
        return None if self._line is None else self._line.own_address

    def agree(self, seconds: float, told: Callable[[str], None]) -> Agreement:
        """Connect to node 0, send the settings of this node, and wait for the start.

        Raises:
            UsageError: node 0 does not answer or refuses, or other nodes do not join.
        """
        deadline = time.monotonic() + seconds
        problem = "no connection was tried"
        while time.monotonic() < deadline:
            if self._line is None:
                problem = self._call(min(2.0, max(0.1, deadline - time.monotonic()))) or problem
                time.sleep(_POLL_SECONDS if self._line else 0.2)
                continue
            for message in self._line.receive():
                if "refused" in message:
                    self.close()
                    raise UsageError(message["code"], f"{self._hub} refused this node: {message['refused']}")
                if "came" in message:
                    self._came = _statements(message["came"])
                go = _go(message.get("go"))
                if go is not None:
                    self._hub = go.nodes[0].name()
                    return go
            if self._line.closed:
                problem, self._line = "it closed the connection before all nodes joined", None
            time.sleep(_POLL_SECONDS)
        came = self._came
        self.close()
        if came:
            raise UsageError("node-unreachable", absence(self._own.counts, came, seconds))
        raise UsageError(
            "node-unreachable",
            f"{self._hub} did not answer this node ({self._own.name()}) within {seconds:g} s: {problem}. Check that "
            "`bertbench launch --node-rank 0` runs there with the same --master-port, that --master-addr is its "
            f"address, and that no firewall blocks the port. {_alone(self._own)}",
        )

    def _call(self, seconds: float) -> str:
        try:
            connection = socket.create_connection(self._place, timeout=seconds)
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        self._line = Line(connection)
        self._line.send(statement=self._own.to_json(), protocol=PROTOCOL)
        return "another program answers there"

    def look(self) -> None:
        """Send a heartbeat and read the messages of node 0."""
        assert self._line is not None
        now = time.monotonic()
        if now >= self._next_beat:
            self._line.send(beat=True)
            self._next_beat = now + BEAT_SECONDS
        for message in self._line.receive():
            if "stop" in message:
                self.stop = Stop(bool(message["stop"]["asked"]), str(message["stop"]["why"]))
            if "verdict" in message:
                self.verdict = Verdict(bool(message["verdict"]["ok"]), str(message["verdict"]["why"]))
        self._line.flush()
        if self.verdict is None and (self._line.closed or now - self._line.heard_at > SILENCE_SECONDS):
            how = _WORDLESS if self._line.closed else _silent()
            self.stop = Stop(False, f"{self._hub} was lost: {how}")
            if self._reported is not None:
                self.verdict = Verdict(False, self.stop.why)

    def ask(self, why: str) -> None:
        """Ask all nodes to stop."""
        assert self._line is not None
        self._line.send(asked=why)
        self.stop = self.stop or Stop(True, why)

    def report(self, report: Report) -> None:
        """Report how the processes of this node ended."""
        assert self._line is not None
        self._reported = report
        self._line.send(report=report.to_json())

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.flush()
            self._line.close()


def _silent() -> str:
    return f"no message for {SILENCE_SECONDS:g} s, so its machine or the network has failed"


def _alone(own: Statement) -> str:
    return f"The job needs {sum(own.counts)} processes; only the {own.counts[own.node_rank]} of this node have joined."


def _statements(content: Any) -> list[Statement]:
    found = map(Statement.from_json, content if isinstance(content, list) else [])
    return [one for one in found if one is not None]


def _go(content: Any) -> Agreement | None:
    """Return the settings of node 0, or None if the message is not valid."""
    if not isinstance(content, dict) or not isinstance(content.get("store_port"), int):
        return None
    nodes = {one.node_rank: one for one in _statements(content.get("nodes"))}
    return Agreement(str(content.get("run_id")), content["store_port"], nodes) if 0 in nodes else None
