"""What each node states before anything starts and reports at the end, and what all of that comes to, in words."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.cluster.layout import in_words, ranks_in_words
from bench.run.processes import STOP_SIGNALS, death_in_words

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


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that failed."""

    rank: int
    exit_code: int
    """What it ended with; negative for a signal, as in subprocess."""
    time: float
    """When, by the clock of its node: Unix time in s."""


@dataclass(frozen=True, slots=True)
class Report:
    """How the processes of one node ended."""

    ok: bool
    """Whether all of them ended well."""
    failures: tuple[Failure, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Report":
        """Return the report that `to_json` wrote; damage is a failure of that node."""
        try:
            failures = tuple(
                Failure(int(f["rank"]), int(f["exit_code"]), float(f["time"])) for f in content["failures"]
            )
            return cls(bool(content["ok"]), failures, str(content["error"]))
        except (KeyError, TypeError, ValueError):
            return cls(False, error="its report cannot be read")


@dataclass(frozen=True, slots=True)
class Stop:
    """Why processes are to be ended before their end."""

    asked: bool
    """Whether somebody asked for it: processes may take their time. Otherwise something failed."""
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the whole launch ended."""

    ok: bool
    """Whether every process of every node ended well."""
    why: str = ""
    """What ended it before, in words."""


def judge(
    nodes: Mapping[int, Statement], reports: Mapping[int, Report], lost: Mapping[int, str], asked: str | None
) -> Verdict:
    """Say how a launch ended.

    The cause is what the other failures cannot have caused: a node that is gone, then a rank that a signal ended (not
    the SIGTERM with which torchrun ends the rest), then whichever failed first by the clocks of the nodes.

    Args:
        nodes: by rank of the node.
        reports: of those that reported.
        lost: how those that are gone went.
        asked: who asked for a stop.
    """
    # A node whose launch was killed takes its ranks along: that is the cause, whatever the others met then.
    for node in sorted(lost):
        if node not in reports:
            return Verdict(False, f"{nodes[node].name_with_ranks()} is gone: {lost[node]}")
    failures = [(node, failure) for node, report in reports.items() for failure in report.failures]
    for kind in (_KILLED, _FAILED, _ENDED_BY_OTHERS) if asked is None else (_KILLED,):
        if fitting := [pair for pair in failures if _kind(pair[1].exit_code) == kind]:
            node, first = min(fitting, key=lambda pair: pair[1].time)
            restarts = nodes[node].max_restarts
            after = (
                f", after {restarts} restart{'' if restarts == 1 else 's'} of the world"
                if restarts and asked is None
                else ""
            )
            return Verdict(False, f"{failure_in_words(nodes[node], first)}{after}")
    if asked is not None:
        return Verdict(all(report.ok for report in reports.values()), asked)
    for node, report in sorted(reports.items()):
        if not report.ok:
            return Verdict(False, f"{nodes[node].name_with_ranks()}: {report.error or 'its launch failed'}")
    silent = [nodes[node].name_with_ranks() for node in sorted(nodes) if node not in reports]
    return Verdict(False, f"{', '.join(silent)} did not say how it ended") if silent else Verdict(True)


# What may have caused the other failures, the likeliest first.
_KILLED, _FAILED, _ENDED_BY_OTHERS = range(3)


def restart_in_words(line: str, nodes: Mapping[int, Statement]) -> str:
    """Return 'restart 1 of 2: rank 2 on node 1 (host b) died by SIGKILL' from a line that the rendezvous wrote."""
    content = json.loads(line)
    found = {int(node): [one] for node, one in content["failures"].items() if one is not None}
    reports = {node: Report.from_json({"ok": False, "failures": ones, "error": ""}) for node, ones in found.items()}
    failures = [(node, failure) for node, report in reports.items() for failure in report.failures]
    most = next(iter(nodes.values())).max_restarts
    begun = f"restart {content['round']} of {most}"
    if not failures:
        return f"{begun}: a node's processes ended"
    node, first = min(failures, key=lambda pair: (_kind(pair[1].exit_code), pair[1].time))
    return f"{begun}: {failure_in_words(nodes[node], first)}"


def failure_in_words(node: Statement, failure: Failure) -> str:
    """Return 'rank 2 on node 1 (host b) died by SIGKILL'."""
    return f"rank {failure.rank} on {node.name()} {_ending(failure.exit_code)}"


def _kind(exit_code: int) -> int:
    if exit_code >= 0:
        return _FAILED
    return _ENDED_BY_OTHERS if -exit_code in STOP_SIGNALS else _KILLED


def _ending(exit_code: int) -> str:
    return f"ended with exit code {exit_code}" if exit_code >= 0 else death_in_words(-exit_code)
