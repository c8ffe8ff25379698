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
from analysis.metrics.comparison.within_run import Side, side_of
from common.errors import InputError
from records.documents import Request, read_document
from records.run import RunDirectory

Row = Mapping[str, Any]

_MOST_NAMED = 3


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


def reference(trials: Sequence[LoadedTrial]) -> Side:
    """Return what others are compared with: hf where it was measured, else another side than our defaults."""
    sides = sorted({side_of(trial) for trial in trials if trial.trial.kind == "throughput"})
    others = [side for side in sides if side != ("bertbench", "")]
    return ("hf", "") if ("hf", "") in sides or not others else others[0]


def grouped_cautions(trials: Sequence[LoadedTrial], of_run: Sequence[Caution]) -> list[CautionGroup]:
    """Return the cautions of the run, then those of its trials, equal ones together, the most frequent first."""
    trials = sorted(without_probes(trials), key=lambda trial: wording.order(trial.row))
    groups: dict[str, list[tuple[str, Row]]] = defaultdict(list)
    for trial in trials:
        for caution in trial.row.get("cautions") or []:
            groups[caution["code"]].append((trial_name(trial), caution))
    listed = [CautionGroup(item.code, (item.message,), "", item.remedy) for item in of_run]
    for code, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        messages = [*dict.fromkeys(str(caution["message"]) for _, caution in members)]
        names = [*dict.fromkeys(name for name, _ in members)]
        where = "every trial" if len(members) == len(trials) > 1 else f"{len(members)} of {len(trials)} trials"
        if len(messages) > 1:
            messages = [f"{name}: {caution['message']}" for name, caution in members[:_MOST_NAMED]]
        elif len(members) <= _MOST_NAMED:
            where = "; ".join(names)
        remedy = str(members[0][1]["remedy"])
        listed.append(CautionGroup(code, tuple(messages), where, remedy, len(members)))
    failed = [trial for trial in trials if trial.row["status"] != "ok"]
    if failed:
        lines = tuple(dict.fromkeys(f"{trial_name(trial)}: {wording.status(trial.row)}" for trial in failed))
        kinds = {trial.trial.kind for trial in failed}
        again = {"train": "the same `bertbench train` resumes", "measure": "`bertbench measure` runs the script again"}
        remedy = again[kinds.pop()] if len(kinds) == 1 and kinds <= again.keys() else "--retry-failed runs them again"
        listed.append(CautionGroup("failed", lines[:_MOST_NAMED], "", f"see log.txt in the trial's folder; {remedy}"))
    return listed


def cautions_of_run(trials: LoadedRun, ratios: Sequence[Row], scaling: Sequence[Row]) -> list[Caution]:
    """Return the cautions about a run as a whole: its records, its machine, its scaling, too few rounds."""
    remedy = "remove that trial's folder, or restore its trial.json, and run the sweep again"
    listed = [Caution("damaged", problem, remedy) for problem in trials.problems]
    listed += mixed([trial.environment for trial in trials])
    listed += cautions.of_scaling(scaling)
    listed += cautions.of_profiles([trial.row for trial in trials if trial.trial.kind == "profile"])
    listed += cautions_of_scripts(trials)
    listed += _left_out(trials) if trials else []
    undecided = [row for row in ratios if row["throughput_ratio"] is not None and row["decided"] == "cannot decide"]
    fewest = min((min(row["rounds"], row["reference_rounds"]) for row in undecided), default=3)
    if fewest < 3:
        code, rounds = ("one_round" if fewest == 1 else "few_rounds"), wording.counted(fewest, "round")
        message = f"implementations were measured in {rounds}: a process can be slow or fast as a whole"
        listed.append(Caution(code, message, "run again with --rounds 3 or more: rounds are added to the same run"))
    return listed


def mixed(environments: Sequence[Mapping[str, Any]]) -> list[Caution]:
    """Return the caution of trials that were not all measured on one machine with one software, by env.json of each."""
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    for environment in environments:
        values = {"device": environment.get("device_name"), "commit of this suite": environment.get("git_commit")}
        values |= {name: (environment.get("libraries") or {}).get(name) for name in ("torch", "transformers")}
        for name, value in values.items():
            seen[name] |= {} if value is None else {str(value): None}
    differing = [f"{name} ({', '.join(values)})" for name, values in seen.items() if len(values) > 1]
    message = f"trials that are compared here differ in {'; '.join(differing)}"
    remedy = "measure all trials again on one machine with one software (a new --out)"
    return [Caution("mixed", message, remedy)] if differing else []


def _left_out(trials: Sequence[LoadedTrial]) -> list[Caution]:
    run = RunDirectory(trials[0].directory.path.parents[1])
    with contextlib.suppress(InputError):
        planned = read_document(run.sweep_json, Request).get("trials", [])
        missing = sum(not run.trial(name).path.exists() for name in planned)
        message = f"{missing} of the {len(planned)} trials of the last command were not measured"
        remedy = "run the same command again, with a larger time budget if it has one"
        return [Caution("left_out", message, remedy)] if missing else []
    return []


def cautions_of_scripts(trials: Sequence[LoadedTrial]) -> list[Caution]:
    """Return a caution for each measured script that was edited between its rounds."""
    listed = []
    for rounds in by_key(trials, kind="measure").values():
        contents = script_contents(rounds)
        if len(contents) > 1:
            message = f"{trial_name(rounds[0])} was edited between its rounds (SHA-256 {', '.join(contents)})"
            listed.append(Caution("script_changed", message, "give each version a --name or an --out of its own"))
    return listed


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
    return f"{profile}{wording.implementation_or_input(row)} {wording.place(row)}"


def without_probes(trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    """Return the trials without probes, whose last one is meant to fail; their search reports how."""
    return [trial for trial in trials if trial.trial.kind != "probe"]
