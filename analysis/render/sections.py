"""The parts of a report between the answer and the pictures: facts, cautions, tables, environment."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.cautions import Caution
from analysis.wording import task_label

Row = Mapping[str, Any]

_MOST_NAMED = 3
NOT_MEASURED = ("profile", "probe", "comm", "components")


@dataclass(frozen=True, slots=True)
class CautionGroup:
    """One kind of doubt, and the trials it is about."""

    code: str
    messages: tuple[str, ...]
    """What was seen, each message once."""
    where: str
    """Which trials, in words; empty for the whole run."""
    remedy: str
    trials: int = 1


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the table of results: neither profiles nor probes of the largest batch, unless a run has no
    others; then its probes.
    """
    measured = [row for row in rows if row.get("kind") not in NOT_MEASURED]
    return measured or [row for row in rows if row.get("kind") != "profile"]


def _without_probes(trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    """Probes of the largest batch are meant to fail at last: the section of that search tells how."""
    return [trial for trial in trials if trial.trial.kind != "probe"]


def facts(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return what ran and on what, as (name, value)."""
    shown = [trial for trial in trials if trial.trial.kind not in NOT_MEASURED] or list(trials)
    values = [trial.trial for trial in shown]

    def listed(name: str) -> str:
        return ", ".join(str(value) for value in sorted({getattr(value, name) for value in values}))

    data = sorted({wording.data(dataclasses.asdict(value)) for value in values})
    tasks = sorted({task_label(value.task, value.task_options) for value in values})
    lengths = ", ".join(sorted({wording.lengths(dataclasses.asdict(value)) for value in values}))
    strategies = ", ".join(sorted({str(trial.row["strategy"]) for trial in shown}))
    others = _without_probes(trials)
    probes = _probes(trials)
    statuses = [str(trial.row["status"]) for trial in others]
    tally = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    first = next((trial.environment for trial in trials if trial.environment), {})
    if all(value.kind == "comm" for value in values):
        names = ", ".join(sorted({str(dict(value.collective).get("name")) for value in values}))
        measured = [("collectives", f"{names}, {listed('precision')}"), ("ranks", listed("world_size"))]
        return [("machine", _machine(first)), *measured, ("trials", tally), ("software", _software(first))]
    rounds = len({value.round for value in values if value.kind != "train"}) or 1
    return [
        ("machine", _machine(first)),
        ("model", f"BERT {listed('preset')}, sequences of {lengths}, {listed('precision')}"),
        ("task", f"{', '.join(tasks)}, data: {', '.join(data)}"),
        ("implementations", f"{listed('implementation')} (strategy {strategies})"),
        ("swept", f"micro batch {listed('micro_batch_size')}; devices {listed('world_size')}"),
        ("trials", _count(len(others), tally, rounds) + probes),
        ("software", _software(first)),
    ]


def _probes(trials: Sequence[LoadedTrial]) -> str:
    """How many trials are there to see what fits, or what a profiler costs; empty without any."""

    def what(trial: LoadedTrial) -> tuple[object, ...]:
        return (trial.key(), trial.trial.start_iteration, trial.trial.stop_iteration)

    profiled = {what(trial) for trial in trials if trial.trial.kind == "profile"}
    beside = [what(trial) in profiled for trial in trials if trial.trial.kind == "probe"]
    said = ""
    for count, kind in ((beside.count(False), "of the largest batch"), (beside.count(True), "beside a profile")):
        said += f", and {count} probe{'s' if count > 1 else ''} {kind}" if count else ""
    return said


def _count(trials: int, tally: str, rounds: int) -> str:
    return f"{trials} ({tally}), {rounds} round{'s' if rounds > 1 else ''}" if trials else "none but probes"


def _machine(environment: Mapping[str, Any]) -> str:
    cpu = environment.get("cpu") or {}
    gpus = [str(gpu.get("name")) for gpu in environment.get("gpus") or []]
    parts = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]  # noqa: RUF001
    cores = cpu.get("physical_cores")
    parts.append(str(cpu.get("model") or environment.get("device_name") or "not recorded"))
    if cores:
        parts.append(f"{cores} cores")
    if environment.get("memory_bytes"):
        parts.append(wording.size(environment["memory_bytes"]))
    return ", ".join(parts)


def _software(environment: Mapping[str, Any]) -> str:
    libraries = environment.get("libraries") or {}
    names = [f"{name} {libraries[name]}" for name in ("torch", "transformers") if libraries.get(name)]
    system = [str(environment[name]) for name in ("system",) if environment.get(name)]
    python = [f"Python {environment['python']}"] if environment.get("python") else []
    return ", ".join([*names, *python, *system]) or "not recorded"


def what_it_decides(trials: Sequence[LoadedTrial], ratios: Sequence[Row]) -> str:
    """Return what this run can and cannot decide, in two sentences at most; empty where nothing was compared."""
    measured = [row for row in ratios if row["throughput_ratio"] is not None]
    if not measured:
        return ""
    undecided = [row for row in measured if row["decided"] == "cannot decide"]
    if not undecided:
        return f"Repeated rounds decide every comparison with {ratios[0]['reference']} ({len(measured)})."
    if all(trial.trial.round == 0 for trial in trials):
        return (
            "One round was run. It decides how fast each trial was in its own process, and how precisely that median "
            "is known. It cannot decide whether two implementations differ by as much as is shown: a process can be "
            "fast or slow as a whole. Three interleaved rounds (--rounds 3) decide that."
        )
    return (
        f"{len(measured) - len(undecided)} of {len(measured)} comparisons with {ratios[0]['reference']} are decided; "
        "the others need three rounds per side, more rounds, or a quieter machine."
    )


def grouped_cautions(trials: Sequence[LoadedTrial], of_run: Sequence[Caution]) -> list[CautionGroup]:
    """Return the cautions of the run, then those of its trials, equal ones together, the most frequent first."""
    trials = sorted(_without_probes(trials), key=lambda trial: wording.order(trial.row))
    groups: dict[str, list[tuple[LoadedTrial, Row]]] = defaultdict(list)
    for trial in trials:
        for caution in trial.row.get("cautions") or []:
            groups[caution["code"]].append((trial, caution))
    found = [CautionGroup(item.code, (item.message,), "", item.remedy) for item in of_run]
    for code, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        named = [(short_name(trial), str(item["message"])) for trial, item in members]
        found.append(_group(code, named, str(members[0][1]["remedy"]), len(trials)))
    failed = [trial for trial in trials if trial.row["status"] != "ok"]
    if failed:
        messages = tuple(dict.fromkeys(f"{short_name(trial)}: {wording.status(trial.row)}" for trial in failed))
        again = "--retry-failed runs such trials again"
        if all(trial.trial.kind == "train" for trial in failed):
            again = "the same `bertbench train` resumes from the last checkpoint"
        remedy = f"more stands in log.txt of the trial's folder; {again}"
        found.append(CautionGroup("failed", messages[:_MOST_NAMED], "", remedy))
    return found


def _group(code: str, members: Sequence[tuple[str, str]], remedy: str, trials: int) -> CautionGroup:
    """One message for all trials it is true of, or each trial with its own."""
    names, messages = ([*dict.fromkeys(part)] for part in zip(*members, strict=True))
    left = len(members) - _MOST_NAMED
    more = f"and {left} more trial{'s' if left > 1 else ''}" if left > 0 else ""
    if len(messages) > 1:
        shown = tuple(f"{name}: {message}" for name, message in members[:_MOST_NAMED])
        return CautionGroup(code, shown, more, remedy, len(members))
    where = (
        "every trial" if len(members) == trials > 1 else "; ".join([*names[:_MOST_NAMED], *([more] if more else [])])
    )
    return CautionGroup(code, (messages[0],), where, remedy, len(members))


def failures(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return every trial that has no result, with its status and the whole reason."""
    left = [trial for trial in _without_probes(trials) if trial.row["status"] != "ok"]
    return [(short_name(trial), wording.status(trial.row)) for trial in left]


def short_name(trial: LoadedTrial) -> str:
    """Return what a trial is called beside others of its run."""
    row = trial.row
    if row["kind"] == "comm":
        return f"{row['collective'].get('name')} {row['precision']} on {wording.devices(row)}"
    profile = {"profile": "profile of ", "components": "parts of "}.get(row["kind"], "")
    return f"{profile}{wording.implementation(row)} {wording.place(row)}"


def environment(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return the machine in detail, from the first trial that recorded it, as (name, value)."""
    first = next((trial.environment for trial in trials if trial.environment), {})
    rows: list[tuple[str, str]] = []
    for name, value in first.items():
        if name in ("schema_version", "topology") or value in (None, {}, []):
            continue
        rows.append((name.replace("_", " "), _flat(name, value)))
    ranks = next((trial.ranks for trial in trials if trial.ok and trial.ranks), {})
    if ranks:
        record = ranks[min(ranks)]
        if record.get("parameters"):
            rows.append(("parameters", wording.count(record["parameters"])))
        seconds = record.get("seconds") or {}
        if seconds:
            named = [f"{name.replace('_', ' ')} {wording.number(value)} s" for name, value in seconds.items()]
            rows.append(("a trial's time (rank 0 of the first)", ", ".join(named)))
    return rows


def _flat(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return wording.size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(
            f"{key.replace('_', ' ')}: {_flat(key, item)}" for key, item in value.items() if item is not None
        )
    if isinstance(value, list | tuple):
        return ", ".join(_flat("", item) for item in value)
    return wording.number(value) if isinstance(value, float) else str(value)
