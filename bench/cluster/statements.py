"""The statement of each node before the start, its report at the end, and the verdict on the whole launch."""

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
    """The settings of one node, sent by its launch."""

    node_rank: int
    counts: tuple[int, ...]
    """Processes of every node, as given to this node."""
    max_restarts: int
    """Allowed restarts of the world, as given to this node."""
    host: str
    process: int
    device: str
    """cpu or cuda."""
    command: str = ""
    """Its command for messages, shortened and without secrets."""
    command_hash: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Statement | None":
        """Return the statement that `to_json` wrote, or None if it is not valid."""
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
    """Return why a node cannot join node 0 and the earlier nodes; empty if it can."""
    came = [first, *others]
    twin = next((one for one in came if one.node_rank == late.node_rank), None)
    if twin is not None:
        return (
            f"two nodes have --node-rank {late.node_rank}: host {twin.host} (process {twin.process}) and host "
            f"{late.host} (process {late.process}); give each node its own --node-rank, and each job its own "
            f"--master-port. {came_in_words(came)}"
        )
    if late.counts != first.counts:
        return (
            f"the nodes disagree on the number of processes: {first.name()} expects {in_words(first.counts)}, "
            f"{late.name()} expects {in_words(late.counts)}; give every node the same numbers. "
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
            f"{first.name()} runs on {first.device} and {late.name()} on {late.device}, but all nodes need the same "
            "kind of device: hide the GPUs of all nodes (CUDA_VISIBLE_DEVICES=), or fix those of the other. "
            f"{came_in_words([*came, late])}"
        )
    return ""


def absence(counts: tuple[int, ...], came: list[Statement], seconds: float) -> str:
    """Return a message about the nodes that did not join in time, and those that did."""
    absent = [rank for rank in range(len(counts)) if rank not in {one.node_rank for one in came}]
    missing = sum(counts[rank] for rank in absent)
    names = ", ".join(map(str, absent))
    return (
        f"node{'' if len(absent) == 1 else 's'} {names} did not join within {seconds:g} s: "
        f"{sum(counts) - missing} of {sum(counts)} processes have joined. {came_in_words(came)} Start the missing "
        "nodes with the same numbers, --master-addr and --master-port, or raise --join-timeout"
    )


def came_in_words(came: Iterable[Statement]) -> str:
    """Return 'Joined: node 0 (host a, 1 process), node 1 (host b, 2 processes).'."""
    parts = []
    for one in sorted(came, key=lambda one: one.node_rank):
        count = one.counts[one.node_rank]
        parts.append(f"node {one.node_rank} (host {one.host}, {count} process{'' if count == 1 else 'es'})")
    return f"Joined: {', '.join(parts)}."


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that failed."""

    rank: int
    exit_code: int
    """Exit code; negative for a signal, as in subprocess."""
    time: float
    """Time of the failure by the clock of its node: Unix time in s."""


@dataclass(frozen=True, slots=True)
class Report:
    """How the processes of one node ended."""

    ok: bool
    """Whether all of them succeeded."""
    failures: tuple[Failure, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Report":
        """Return the report that `to_json` wrote; a damaged report counts as a failure of that node."""
        try:
            failures = tuple(
                Failure(int(f["rank"]), int(f["exit_code"]), float(f["time"])) for f in content["failures"]
            )
            return cls(bool(content["ok"]), failures, str(content["error"]))
        except (KeyError, TypeError, ValueError):
            return cls(False, error="its report cannot be read")


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason to stop processes early."""

    asked: bool
    """Whether it is a request, which gives processes time to save; otherwise a failure."""
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the whole launch."""

    ok: bool
    """Whether every process of every node succeeded."""
    why: str = ""
    """Why it ended early, in words."""


def judge(
    nodes: Mapping[int, Statement], reports: Mapping[int, Report], lost: Mapping[int, str], asked: str | None
) -> Verdict:
    """Return the result of a launch.

    The cause is the failure that the others cannot have caused: first a lost node, then a rank killed by a signal
    (except the SIGTERM with which torchrun stops the rest), then the first failure by the clocks of the nodes.

    Args:
        nodes: statements by node rank.
        reports: reports by node rank.
        lost: why nodes were lost, by node rank.
        asked: origin of a stop request.
    """
    # If the launch of a node is killed, its ranks end too; failures on other nodes are consequences.
    for node in sorted(lost):
        if node not in reports:
            return Verdict(False, f"{nodes[node].name_with_ranks()} was lost: {lost[node]}")
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
    return Verdict(False, f"{', '.join(silent)} did not report a result") if silent else Verdict(True)


# Kinds of failures, the most likely cause first.
_KILLED, _FAILED, _ENDED_BY_OTHERS = range(3)


def restart_in_words(line: str, nodes: Mapping[int, Statement]) -> str:
    """Return 'restart 1 of 2: rank 2 on node 1 (host b) died by SIGKILL' for a line written by the rendezvous."""
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
