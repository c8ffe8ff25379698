"""Cautions about a whole run and about its trials, each with what to do, and what the run can decide."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.load import LoadedRun, LoadedTrial, script_contents
from analysis.metrics import cautions
from analysis.metrics.cautions import Caution
from analysis.metrics.comparison.runs import Side, by_key, side_of
from records.files import read_record
from records.run import RunDirectory

Row = Mapping[str, Any]

_MOST_NAMED = 3


def reference(trials: Sequence[LoadedTrial]) -> Side:
    """Return what others are compared with: hf where it was measured, else another side than our defaults."""
    sides = sorted({side_of(trial) for trial in trials if trial.trial.kind == "throughput"})
    others = [side for side in sides if side != ("bertbench", "")]
    return ("hf", "") if ("hf", "") in sides or not others else others[0]


def caution_texts(trials: Sequence[LoadedTrial], of_run: Sequence[Caution] = ()) -> list[str]:
    """Return the cautions of the run, then those of trials that ended well, equal ones together, most frequent first.

    Each says what was seen, in which trials, and what to do. Trials that failed are named elsewhere.
    """
    trials = [trial for trial in without_probes(trials) if trial.row["status"] == "ok"]
    trials.sort(key=lambda trial: wording.order(trial.row))
    groups: dict[str, list[tuple[str, Row]]] = defaultdict(list)
    for trial in trials:
        for caution in trial.row.get("cautions") or []:
            groups[caution["code"]].append((trial_name(trial.row), caution))
    texts = [f"{caution.message}; {caution.remedy}" for caution in of_run]
    for members in sorted(groups.values(), key=len, reverse=True):
        (name, first), count = members[0], len(members)
        message, names = first["message"], [*dict.fromkeys(name for name, _ in members)]
        where = "every trial" if count == len(trials) > 1 else f"{count} of {len(trials)} trials"
        if len({caution["message"] for _, caution in members}) > 1:
            message, where = f"{name}: {message}", f"{wording.counted(count - 1, 'other trial')} affected"
        elif count <= _MOST_NAMED:
            where = "; ".join(names)
        texts.append(f"{message} ({where}); {first['remedy']}")
    return texts


def cautions_of_run(trials: LoadedRun, ratios: Sequence[Row], scaling: Sequence[Row]) -> list[Caution]:
    """Return the cautions about a run as a whole: its records, its machine, its scaling, too few rounds."""
    remedy = "remove that trial's folder, or restore its trial.json, and run the sweep again"
    listed = [Caution("damaged", problem, remedy) for problem in trials.problems]
    listed += mixed([trial.environment for trial in trials])
    listed += cautions.of_scaling(scaling)
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
    planned = read_record(run.sweep_json).get("trials", []) if run.sweep_json.exists() else []
    missing = sum(not run.trial(name).path.exists() for name in planned)
    message = f"{missing} of the {len(planned)} trials of the last command were not measured"
    remedy = "run the same command again"
    return [Caution("left_out", message, remedy)] if missing else []


def cautions_of_scripts(trials: Sequence[LoadedTrial]) -> list[Caution]:
    """Return a caution for each measured script that was edited between its rounds."""
    remedy = "give each version a --name or an --out of its own"
    contents = {
        trial_name(rounds[0].row): script_contents(rounds) for rounds in by_key(trials, kinds=("measure",)).values()
    }
    return [
        Caution("script_changed", f"{name} was edited between its rounds (SHA-256 {', '.join(hashes)})", remedy)
        for name, hashes in contents.items()
        if len(hashes) > 1
    ]


def failures(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return every trial that has no result, with its status and the whole reason."""
    left = [trial for trial in without_probes(trials) if trial.row["status"] != "ok"]
    return [(trial_name(trial.row), wording.status(trial.row)) for trial in left]


def trial_name(row: Row) -> str:
    """Name the trial of a row of results in a line about it."""
    if row["kind"] == "comm":
        return f"{row['collective'].get('name')} {row['precision']} on {wording.devices(row)}"
    profile = {"profile": "profile of ", "components": "parts of "}.get(row["kind"], "")
    return f"{profile}{wording.implementation(row)} {wording.place(row)}"


def without_probes(trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    """Return the trials without probes, whose last one is meant to fail; their search reports how."""
    return [trial for trial in trials if trial.trial.kind != "probe"]
