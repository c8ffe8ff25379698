"""The number of processes on each node, as given to one node."""

import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError, UsageError
from common.json_file import read_json

_LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes per node, in the order of the nodes' ranks."""

    counts: tuple[int, ...]
    node_rank: int
    hosts: tuple[str, ...] = ()
    """Names of the nodes if a file gave them; "" for this node if it is not in the file."""

    @property
    def here(self) -> int:
        """Number of processes on this node."""
        return self.counts[self.node_rank]

    @property
    def world_size(self) -> int:
        """Number of processes on all nodes."""
        return sum(self.counts)


def ranks_of_node(counts: tuple[int, ...], node_rank: int) -> range:
    """Return the ranks of a node."""
    first = sum(counts[:node_rank])
    return range(first, first + counts[node_rank])


def ranks_in_words(counts: tuple[int, ...], node_rank: int) -> str:
    """Return the ranks of a node as 'rank 0' or 'ranks 1 to 2'."""
    ranks = ranks_of_node(counts, node_rank)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def in_words(counts: tuple[int, ...]) -> str:
    """Return '1 + 2 = 3 processes on 2 nodes'."""
    if len(counts) == 1:
        return f"{counts[0]} {'process' if counts[0] == 1 else 'processes'} on 1 node"
    return f"{' + '.join(map(str, counts))} = {sum(counts)} processes on {len(counts)} nodes"


def read_layout(here: int | None, others: tuple[str, ...], node_rank: int | None, default_here: int) -> Layout:
    """Return the layout that the options describe.

    Args:
        here: processes on this node; None uses the number in the file, else `default_here`.
        others: processes on each other node in the order of their ranks, or one JSON file of host -> processes.
        node_rank: rank of this node; None uses its position in the file, else 0.
        default_here: number of GPUs on this node, or 1.
    """
    if here is not None and here < 1:
        raise UsageError(
            "option-value", f"--here-gpus {here} must be at least 1: to skip a node, leave it out on all nodes"
        )
    if len(others) == 1 and not _is_number(others[0]):
        return _from_file(Path(others[0]), here, node_rank, default_here)
    counts = [_count(word) for word in others]
    return _placed(here or default_here, counts, node_rank or 0, ())


def _placed(here: int, others: list[int], node_rank: int, names: tuple[str, ...]) -> Layout:
    if not 0 <= node_rank <= len(others):
        raise UsageError(
            "option-value",
            f"--node-rank {node_rank} is out of range for {len(others) + 1} node{'s'[: len(others)]}: give 0 to "
            f"{len(others)}, and one number in --other-gpus for each other node",
        )
    counts = (*others[:node_rank], here, *others[node_rank:])
    return Layout(counts, node_rank, (*names[:node_rank], "", *names[node_rank:]) if names else ())


def _is_number(word: str) -> bool:
    return word.lstrip("+-").isdigit()


def _count(word: str) -> int:
    if not _is_number(word) or int(word) < 1:
        raise UsageError(
            "option-value",
            f"--other-gpus {word}: give a number of at least 1 for each other node, or one JSON file such as "
            '{"node-a": 4, "node-b": 2}',
        )
    return int(word)


def _from_file(path: Path, here: int | None, node_rank: int | None, default_here: int) -> Layout:
    table = _read_table(path)
    known = own_names()
    own = [host for host in table if _is_own(host, known)]
    if len(own) > 1:
        raise InputError(
            "option-value", f"{path} names this node {len(own)} times ({', '.join(own)}): keep one of them"
        )
    names, counts = tuple(table), list(table.values())
    if not own:
        return _placed(here or default_here, counts, node_rank or 0, names)
    (name,) = own
    if here not in (None, table[name]):
        raise UsageError(
            "option-conflict",
            f"--here-gpus {here}, but {path} has {table[name]} for this node ({name}): omit --here-gpus, or change "
            "the file on every node",
        )
    place = names.index(name)
    if node_rank in (None, place):
        return Layout(tuple(counts), place, names)
    if name.lower() != _LOCALHOST:
        raise UsageError(
            "option-conflict",
            f"--node-rank {node_rank}, but {path} has this node ({name}) at position {place}: omit --node-rank, or "
            "change the file on every node",
        )
    assert node_rank is not None
    others = [count for host, count in table.items() if host != name]
    return _placed(table[name], others, node_rank, tuple(host for host in names if host != name))


def _read_table(path: Path) -> dict[str, int]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError("option-value", f"{path} names {', '.join(twice)} twice: keep one entry each")
        return dict(pairs)

    remedy = 'give the numbers of the other nodes, or a file of hosts such as {"node-a": 4, "node-b": 2}'
    content = read_json(path, "--other-gpus file", remedy, unique)
    if not content:
        raise InputError("file-format", f"{path} names no hosts: {remedy}")
    for host, count in content.items():
        if not host.strip():
            raise InputError(
                "option-value", f"{path} has a host without a name: give a name or an address for every node"
            )
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InputError(
                "option-value", f"{path}: {host!r} has {json.dumps(count)} processes: give a whole number of at least 1"
            )
    return content


def own_names() -> set[str]:
    """Return the names and addresses of this node, in lower case."""
    import psutil

    name = socket.gethostname()
    addresses = [address.address.partition("%")[0] for found in psutil.net_if_addrs().values() for address in found]
    return {word.lower() for word in (_LOCALHOST, name, socket.getfqdn(), *addresses) if word}


def _is_own(host: str, known: Iterable[str]) -> bool:
    """Return whether a name is in `known`; a short host name also matches its fully qualified form."""
    wanted = host.lower()
    if wanted in known:
        return True
    if wanted.replace(".", "").isdigit() or ":" in wanted:  # an address
        return False
    return "." not in wanted and any(wanted == name.partition(".")[0] for name in known if not name[0].isdigit())
