"""How a launch ended: what every node reported, put into one sentence that all nodes show."""

import dataclasses
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.cluster.statement import Statement
from bench.run.processes import death_in_words


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
    return _ENDED_BY_OTHERS if -exit_code in (signal.SIGTERM, signal.SIGINT) else _KILLED


def _ending(exit_code: int) -> str:
    return f"ended with exit code {exit_code}" if exit_code >= 0 else death_in_words(-exit_code)
