"""Cautions about a whole run and about its trials, each with what to do, and what the run can decide."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import wording
from analysis.load import LoadedRun, LoadedTrial, script_contents
from analysis.metrics import cautions
from analysis.metrics.cautions import Caution
from analysis.metrics.comparison.ratio import by_key
from common.errors import InputError
from records.documents import Request, read_document
from records.run import RunDirectory

Row = Mapping[str, Any]

_MOST_NAMED = 3
_NEARLY_ALL = 0.8
"""A caution about at least this share of the trials is shown once for the run, with an example."""


@dataclass(frozen=True, slots=True)
class CautionGroup:
    """One kind of caution, and its trials."""

    code: str
    messages: tuple[str, ...]
    """What was seen, each message once."""
    where: str
    """Which trials, in words; empty for the whole run."""
    remedy: str
    trials: int = 1


def reference(trials: Sequence[LoadedTrial]) -> str:
    """Return what others are compared with: hf where it was measured, else another implementation than ours."""
    names = sorted({str(trial.row["implementation"]) for trial in trials if trial.trial.kind == "throughput"})
    others = [name for name in names if name != "bertbench"]
    return "hf" if "hf" in names or not others else others[0]


def what_it_decides(trials: Sequence[LoadedTrial], ratios: Sequence[Row]) -> str:
    """Return which comparisons are conclusive, in one sentence; empty where nothing was compared, or in one round."""
    measured = [row for row in ratios if row["throughput_ratio"] is not None]
    if not measured:
        return ""
    undecided = [row for row in measured if row["decided"] == "cannot decide"]
    if not undecided:
        return f"Every comparison with {ratios[0]['reference']} is conclusive ({len(measured)})."
    if all(trial.trial.round == 0 for trial in trials):  # the caution about one round says it
        return ""
    known = len(measured) - len(undecided)
    others = "the other needs" if len(undecided) == 1 else "the others need"
    return (
        f"{known} of {len(measured)} comparisons with {ratios[0]['reference']} {'is' if known == 1 else 'are'} "
        f"conclusive; {others if known else 'they need'} at least three rounds per side or a quieter machine."
    )


def grouped_cautions(trials: Sequence[LoadedTrial], of_run: Sequence[Caution]) -> list[CautionGroup]:
    """Return the cautions of the run, then those of its trials, equal ones together, the most frequent first."""
    trials = sorted(without_probes(trials), key=lambda trial: wording.order(trial.row))
    groups: dict[str, list[tuple[LoadedTrial, Row]]] = defaultdict(list)
    for trial in trials:
        for caution in trial.row.get("cautions") or []:
            groups[caution["code"]].append((trial, caution))
    found = [CautionGroup(item.code, (item.message,), "", item.remedy) for item in of_run]
    for code, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        named = [(trial_name(trial), str(item["message"])) for trial, item in members]
        found.append(_group(code, named, str(members[0][1]["remedy"]), len(trials)))
    failed = [trial for trial in trials if trial.row["status"] != "ok"]
    if failed:
        messages = tuple(dict.fromkeys(f"{trial_name(trial)}: {wording.status(trial.row)}" for trial in failed))
        again = "--retry-failed runs failed trials again"
        if all(trial.trial.kind == "train" for trial in failed):
            again = "the same `bertbench train` resumes from the last checkpoint"
        elif all(trial.trial.kind == "measure" for trial in failed):
            again = "the next `bertbench measure` runs the script again"
        remedy = f"see log.txt in the trial's folder; {again}"
        found.append(CautionGroup("failed", messages[:_MOST_NAMED], "", remedy))
    return found


def _group(code: str, members: Sequence[tuple[str, str]], remedy: str, trials: int) -> CautionGroup:
    names, messages = ([*dict.fromkeys(part)] for part in zip(*members, strict=True))
    if len(messages) > 1 and trials > _MOST_NAMED and len(members) >= _NEARLY_ALL * trials:
        where = "every trial" if len(members) == trials else f"{len(members)} of {trials} trials"
        return CautionGroup(code, (f"for example {members[0][0]}: {members[0][1]}",), where, remedy, len(members))
    left = len(members) - _MOST_NAMED
    more = f"and {left} more trial{'s' if left > 1 else ''}" if left > 0 else ""
    if len(messages) > 1:
        shown = tuple(f"{name}: {message}" for name, message in members[:_MOST_NAMED])
        return CautionGroup(code, shown, more, remedy, len(members))
    where = (
        "every trial" if len(members) == trials > 1 else "; ".join([*names[:_MOST_NAMED], *([more] if more else [])])
    )
    return CautionGroup(code, (messages[0],), where, remedy, len(members))


def cautions_of_run(trials: LoadedRun, ratios: Sequence[Row], scaling: Sequence[Row]) -> list[Caution]:
    """Return the cautions about a run as a whole: its records, its machine, its scaling, too few rounds."""
    found = [cautions.damaged(problem) for problem in trials.problems]
    found += cautions.of_run([trial.environment for trial in trials])
    found += cautions.of_scaling(scaling)
    found += cautions.of_profiles([trial.row for trial in trials if trial.trial.kind == "profile"])
    found += cautions_of_scripts(trials)
    found += _left_out(trials) if trials else []
    undecided = [row for row in ratios if row["throughput_ratio"] is not None and row["decided"] == "cannot decide"]
    rounds = [min(row["rounds"], row["reference_rounds"]) for row in undecided]
    fewest = min(rounds, default=3)
    return [*found, cautions.one_round(fewest)] if fewest < 3 else found


def _left_out(trials: Sequence[LoadedTrial]) -> list[Caution]:
    run = RunDirectory(trials[0].directory.path.parents[1])
    with contextlib.suppress(InputError):
        planned = read_document(run.sweep_json, Request).get("trials", [])
        missing = sum(not run.trial(name).path.exists() for name in planned)
        return [cautions.left_out(missing, len(planned))] if missing else []
    return []


def cautions_of_scripts(trials: Sequence[LoadedTrial]) -> list[Caution]:
    """Return a caution for each measured script that was edited between its rounds."""
    groups = by_key(trials, kind="measure").values()
    return [
        caution for rounds in groups for caution in cautions.of_script(trial_name(rounds[0]), script_contents(rounds))
    ]


def failures(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return every trial that has no result, with its status and the whole reason."""
    left = [trial for trial in without_probes(trials) if trial.row["status"] != "ok"]
    return [(trial_name(trial), wording.status(trial.row)) for trial in left]


def trial_name(trial: LoadedTrial) -> str:
    """Name a trial in a line about it."""
    row = trial.row
    if row["kind"] == "comm":
        return f"{row['collective'].get('name')} {row['precision']} on {wording.devices(row)}"
    profile = {"profile": "profile of ", "components": "parts of "}.get(row["kind"], "")
    return f"{profile}{wording.implementation(row)} {wording.place(row)}"


def without_probes(trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    """Return the trials without probes, whose last one is meant to fail; their search reports how."""
    return [trial for trial in trials if trial.trial.kind != "probe"]
