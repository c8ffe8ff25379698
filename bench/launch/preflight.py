"""The launchers of all nodes meet at a TCPStore of node 0 and compare what each was started with."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from bench.launch.layout import in_words
from bench.launch.torchrun import import_torch
from common.errors import Code, UsageError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

SILENCE_SECONDS = 20.0
"""Seconds without a sign of a node after which it counts as lost."""
_POLL_SECONDS = 0.3
# Seconds that node 0 keeps its store for nodes that have not read the end.
_LEAVE_SECONDS = 5.0

T = TypeVar("T")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node, and what its launcher was started with."""

    rank: int
    counts: tuple[int, ...]
    """Processes of every node."""
    device: str
    """cpu or cuda."""
    command: str
    host: str = msgspec.field(default_factory=socket.gethostname)
    pid: int = msgspec.field(default_factory=os.getpid)
    address: str = ""
    """Address of this node on the way to node 0."""
    port: int = 0
    """A free port; that of node 0 is for torchrun."""

    @property
    def name(self) -> str:
        """Return 'node 1 (host b)'."""
        return f"node {self.rank} (host {self.host})"


class _Refusal(msgspec.Struct, frozen=True):
    code: Code
    text: str


class NodeLostError(Exception):
    """Node 0 does not answer."""


def answer(call: Callable[..., T], *arguments: Any, seconds: float = SILENCE_SECONDS) -> T:
    """Return call(*arguments), which uses the store. Raises NodeLostError without an answer of node 0 in `seconds`.

    It is made in a thread, since calls of a TCPStore wait forever where a link is cut or another program listens.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return future.result(seconds)
    except (RuntimeError, TimeoutError) as error:  # RuntimeError: of torch.distributed
        raise NodeLostError(str(error).partition("\n")[0] or f"no answer for {seconds:g} s") from error


def read(store: "TCPStore", key: str, kind: type[T]) -> T | None:
    """Return a value of the store, or None."""
    return msgspec.json.decode(store.get(key), type=kind) if store.check([key]) else None


def post(store: "TCPStore", key: str, value: T) -> T:
    """Write a value unless there is one; return the one that is there."""
    return msgspec.json.decode(store.compare_set(key, "", msgspec.json.encode(value).decode()), type=type(value))


def leave(store: "TCPStore", node: Node, others: int) -> None:
    """End the use of the store; node 0, which hosts it, waits a little until so many others have left."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    store.add("left", 1 if node.rank else 0)
    while node.rank == 0 and store.add("left", 0) < others and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def meet(node: Node, address: str, port: int, seconds: float) -> "tuple[TCPStore, list[Node]]":
    """Wait up to so many seconds until all nodes have joined the store at the address and port of node 0, and agree.

    Raises:
        UsageError: node 0 cannot be reached, a node is missing, two have one rank, or they were started differently.
            All that have joined raise the same.

    Returns:
        The store, and the nodes by rank.
    """
    try:
        with socket.create_server(("", 0)) as server:
            node = msgspec.structs.replace(node, address=source_address(address), port=server.getsockname()[1])
        import_torch()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        deadline = time.monotonic() + seconds
        limit, is_master = timedelta(seconds=seconds), node.rank == 0
        store = answer(TCPStore, address, port, None, is_master, limit, False, seconds=seconds)
        nodes: list[Node] = []
        try:
            refusal = answer(_join, store, node)
            while refusal is None and len(nodes) < len(node.counts):
                time.sleep(_POLL_SECONDS)
                nodes, refusal = answer(_look, store, node, seconds if time.monotonic() >= deadline else None)
        except KeyboardInterrupt:  # this node may be started again while the others wait
            answer(store.delete_key, f"node/{node.rank}")
            raise
    except (OSError, UnicodeError, NodeLostError) as error:
        raise UsageError(
            "node-unreachable",
            f"{node.name} cannot reach node 0 at {address}:{port} ({error}): start it with the same --master-port, "
            "which must be free there, and check --master-addr and the firewall",
        ) from error
    if refusal is not None:
        raise UsageError(refusal.code, refusal.text)
    return store, nodes


def _join(store: "TCPStore", node: Node) -> _Refusal | None:
    """Write what this node was started with; return what is wrong where another one has its rank."""
    first = post(store, f"node/{node.rank}", node)
    if first == node:
        return None
    problem = (
        f"two nodes have --node-rank {node.rank}: host {first.host} (process {first.pid}) and host {node.host} "
        f"(process {node.pid}); give each node its own, and each job its own --master-port"
    )
    return post(store, "refusal", _Refusal("nodes-disagree", problem))


def _look(store: "TCPStore", node: Node, waited_seconds: float | None) -> tuple[list[Node], _Refusal | None]:
    """Return the nodes that have joined, and why they cannot start together, as all nodes read it."""
    entries = [read(store, f"node/{rank}", Node) for rank in range(len(node.counts))]
    nodes = [entry for entry in entries if entry is not None]
    refusal = read(store, "refusal", _Refusal) or objection(nodes, waited_seconds)
    if refusal is not None:
        refusal = post(store, "refusal", refusal)
        leave(store, node, len(nodes) - 1)
    return nodes, refusal


def objection(nodes: Sequence[Node], waited_seconds: float | None) -> _Refusal | None:
    """Return why these nodes cannot start together; None where they agree, and missing ones may still come."""
    first = nodes[0]
    for node in nodes[1:]:
        for what, mine, other in (
            ("numbers of processes", in_words(first.counts), in_words(node.counts)),
            ("command", first.command, node.command),
            ("kind of device", first.device, node.device),
        ):
            if mine != other:
                text = f"{first.name} has {mine}, but {node.name} has {other}: give every node the same {what}"
                return _Refusal("nodes-disagree", text)
    missing = sorted(set(range(len(first.counts))) - {node.rank for node in nodes})
    if not missing or waited_seconds is None:
        return None
    text = (
        f"node {', '.join(map(str, missing))} did not join within {waited_seconds:g} s: "
        f"{sum(first.counts[node.rank] for node in nodes)} of {sum(first.counts)} processes are here, on "
        f"{', '.join(node.name for node in nodes)}; start it with the same numbers, --master-addr and --master-port"
    )
    return _Refusal("node-unreachable", text)


def source_address(peer: str) -> str:
    """Return the address of this node on the way to another one."""
    family, kind, _, _, place = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
