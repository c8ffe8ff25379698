"""What a node says of itself before anything starts, and what several such statements come to."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.cluster.layout import in_words, ranks_in_words

PROTOCOL = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What one node was told, by its launch."""

    node_rank: int
    counts: tuple[int, ...]
    """Processes of every node, as it was told."""
    max_restarts: int
    """How often the world may be started anew, as it was told."""
    host: str
    process: int
    device: str
    """cpu or cuda."""
    command: str = ""
    """What it runs, for people: shortened, without secrets."""
    command_hash: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Statement | None":
        """Return the statement that `to_json` wrote, None where it is none."""
        if not isinstance(content, Mapping):
            return None
        counts = content.get("counts")
        numbers = [content.get(name) for name in ("node_rank", "max_restarts", "process")]
        words = [content.get(name) for name in ("host", "device", "command", "command_hash")]
        if not isinstance(counts, list | tuple) or not all(isinstance(one, int) and one > 0 for one in counts):
            return None
        if not all(isinstance(one, int) and one >= 0 for one in numbers) or not all(isinstance(w, str) for w in words):
            return None
        if content["node_rank"] >= len(counts):
            return None
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{**{name: content[name] for name in names}, "counts": tuple(counts)})

    def name(self) -> str:
        """Return 'node 1 (host b)'."""
        return f"node {self.node_rank} (host {self.host})"

    def name_with_ranks(self) -> str:
        """Return 'node 1 (host b, ranks 1 to 2)'."""
        return f"node {self.node_rank} (host {self.host}, {ranks_in_words(self.counts, self.node_rank)})"


def objection(first: Statement, others: Iterable[Statement], late: Statement) -> str:
    """Say why a node cannot join node 0 and those that came before it; nothing where it can."""
    came = [first, *others]
    twin = next((one for one in came if one.node_rank == late.node_rank), None)
    if twin is not None:
        return (
            f"two nodes say that they are node {late.node_rank}: host {twin.host} (process {twin.process}) and host "
            f"{late.host} (process {late.process}); give each node its own --node-rank, and each job its own "
            f"--master-port. {came_in_words(came)}"
        )
    if late.counts != first.counts:
        return (
            f"the nodes disagree on the processes: {first.name()} was started for {in_words(first.counts)}, "
            f"{late.name()} for {in_words(late.counts)}; give every node the same numbers. "
            f"{came_in_words([*came, late])}"
        )
    if late.max_restarts != first.max_restarts:
        return (
            f"the nodes disagree on --max-restarts: {first.name()} has {first.max_restarts}, {late.name()} has "
            f"{late.max_restarts}; give every node the same number. {came_in_words([*came, late])}"
        )
    if late.command_hash != first.command_hash:
        return (
            f"the nodes disagree on the command: {first.name()} runs `{first.command}`, {late.name()} runs "
            f"`{late.command}`; give every node the same command. {came_in_words([*came, late])}"
        )
    if late.device != first.device:
        return (
            f"{first.name()} runs on {first.device}, {late.name()} on {late.device}: GPUs and CPUs make no world; hide "
            f"the GPUs (CUDA_VISIBLE_DEVICES=) of all nodes, or mend those of the other. {came_in_words([*came, late])}"
        )
    return ""


def absence(counts: tuple[int, ...], came: list[Statement], seconds: float) -> str:
    """Say which nodes did not come in time, and which did."""
    absent = [rank for rank in range(len(counts)) if rank not in {one.node_rank for one in came}]
    missing = sum(counts[rank] for rank in absent)
    names = ", ".join(map(str, absent))
    return (
        f"node{'' if len(absent) == 1 else 's'} {names} did not come within {seconds:g} s: {sum(counts)} processes are "
        f"wanted, {sum(counts) - missing} have come. {came_in_words(came)} Start the absent ones with the same "
        "numbers, --master-addr and --master-port, or give more time with --join-timeout"
    )


def came_in_words(came: Iterable[Statement]) -> str:
    """Return 'Came: node 0 (host a, 1 process), node 1 (host b, 2 processes).'."""
    parts = []
    for one in sorted(came, key=lambda one: one.node_rank):
        count = one.counts[one.node_rank]
        parts.append(f"node {one.node_rank} (host {one.host}, {count} process{'' if count == 1 else 'es'})")
    return f"Came: {', '.join(parts)}."
