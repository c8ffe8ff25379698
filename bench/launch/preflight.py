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
POLL_SECONDS = 0.3
"""Between two looks at the store."""
# Seconds that node 0 keeps its store for nodes that have not read the end.
_LEAVE_SECONDS = 5.0

T = TypeVar("T")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node, and what its launcher was started with."""

    rank: int
    counts: tuple[int, ...]
    """Processes of every node."""
    device: str
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


def answer(call: Callable[..., T], *arguments: Any, seconds: float = SILENCE_SECONDS) -> T:
    """Return call(*arguments), which uses the store. Raises ConnectionError without an answer of node 0 in `seconds`.

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
        raise ConnectionError(str(error).partition("\n")[0] or f"no answer for {seconds:g} s") from error


def share(store: "TCPStore", key: str, kind: type[T], value: T | None) -> T | None:
    """Write a value, if any, unless the key has one; return the one that the key has, or None."""
    if value is not None:
        text = store.compare_set(key, "", msgspec.json.encode(value).decode())
    elif store.check([key]):
        text = store.get(key)
    else:
        return None
    return msgspec.json.decode(text, type=kind)


def leave(store: "TCPStore", node: Node, others: int) -> None:
    """End the use of the store; node 0, which hosts it, waits a little until so many others have left."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    store.add("left", 1 if node.rank else 0)
    while node.rank == 0 and store.add("left", 0) < others and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def meet(node: Node, address: str, port: int, seconds: float) -> "tuple[TCPStore, list[Node]]":
    """Return the store at the address and port of node 0, and the nodes by rank, once all have joined and agree.

    Raises UsageError, the same on all that have joined: one is missing after so many seconds, or started differently.
    """
    nodes: list[Node] = []
    refusal = None
    try:
        with socket.create_server(("", 0)) as server:
            node = msgspec.structs.replace(node, address=source_address(address), port=server.getsockname()[1])
        import_torch()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        deadline = time.monotonic() + seconds
        limit, is_master = timedelta(seconds=seconds), node.rank == 0
        store = answer(TCPStore, address, port, None, is_master, limit, False, seconds=seconds)
        try:
            while refusal is None and len(nodes) < len(node.counts):
                time.sleep(POLL_SECONDS)
                nodes, refusal = answer(_look, store, node, seconds if time.monotonic() >= deadline else None)
        except KeyboardInterrupt:  # this node may be started again while the others wait
            answer(store.delete_key, f"node/{node.rank}")
            raise
    except (OSError, UnicodeError) as error:
        raise UsageError(
            "node-unreachable",
            f"{node.name} cannot reach node 0 at {address}:{port} ({error}): start it with the same --master-port, "
            "which must be free there, and check --master-addr and the firewall",
        ) from error
    if refusal is not None:
        raise UsageError(refusal.code, refusal.text)
    return store, nodes


def _look(store: "TCPStore", node: Node, waited_seconds: float | None) -> tuple[list[Node], _Refusal | None]:
    """Return the nodes that have joined, this one too, and why they cannot start together, as all nodes read it."""
    ranks = range(len(node.counts))
    entries = [share(store, f"node/{rank}", Node, node if rank == node.rank else None) for rank in ranks]
    nodes = [entry for entry in entries if entry is not None]
    refusal = share(store, "refusal", _Refusal, objection(node, nodes, waited_seconds))
    if refusal is not None and node in nodes:  # no other one has its rank
        leave(store, node, len(nodes) - 1)
    return nodes, refusal


def objection(node: Node, nodes: Sequence[Node], waited_seconds: float | None) -> _Refusal | None:
    """Return why this node and those that joined cannot start; None where they agree and missing ones may come."""
    for other in nodes:
        if other.rank == node.rank and other != node:
            text = f"two nodes have --node-rank {node.rank}: " + " and ".join(
                f"host {one.host} (process {one.pid})" for one in (other, node)
            )
            return _Refusal("nodes-disagree", f"{text}; give each node its own, and each job its own --master-port")
        for what, first, second in (
            ("numbers of processes", in_words(nodes[0].counts), in_words(other.counts)),
            ("command", nodes[0].command, other.command),
            ("kind of device", nodes[0].device, other.device),
        ):
            if first != second:
                text = f"{nodes[0].name} has {first}, but {other.name} has {second}: give every node the same {what}"
                return _Refusal("nodes-disagree", text)
    missing = sorted(set(range(len(node.counts))) - {other.rank for other in nodes})
    if not missing or waited_seconds is None:
        return None
    text = (
        f"node {', '.join(map(str, missing))} did not join within {waited_seconds:g} s: "
        f"{sum(node.counts[other.rank] for other in nodes)} of {sum(node.counts)} processes are here, on "
        f"{', '.join(other.name for other in nodes)}; start it with the same numbers, --master-addr and --master-port"
    )
    return _Refusal("node-unreachable", text)


def source_address(peer: str) -> str:
    """Return the address of this node on the way to another one."""
    family, kind, _, _, place = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
