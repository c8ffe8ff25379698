"""The tables and facts of a run: what ran and on what, results, the largest batch, ranks, scaling, the machine."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.run import without_probes
from analysis.load import LoadedTrial
from analysis.render import tables
from analysis.wording import task_label

Row = Mapping[str, Any]

NOT_MEASURED = ("profile", "probe", "comm", "components")


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the table of results: neither profiles nor probes of the largest batch, unless a run has no
    others; then its probes.
    """
    measured = [row for row in rows if row.get("kind") not in NOT_MEASURED]
    return measured or [row for row in rows if row.get("kind") != "profile"]


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
    others = without_probes(trials)
    probes = _probes(trials)
    statuses = [str(trial.row["status"]) for trial in others]
    tally = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    first = next((trial.environment for trial in trials if trial.environment), {})
    if all(value.kind == "comm" for value in values):
        names = ", ".join(sorted({str(dict(value.collective).get("name")) for value in values}))
        measured = [("collectives", f"{names}, {listed('precision')}"), ("ranks", listed("world_size"))]
        return [("machine", _machine(first)), *measured, ("trials", tally), ("software", _software(first))]
    if all(value.kind == "measure" for value in values):
        commands = [("command", text) for text in dict.fromkeys(" ".join(value.command) for value in values)]
        measured = [*commands, ("ranks", listed("world_size"))]
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
    return f"{trials} ({tally}), {rounds} round{'s' if rounds > 1 else ''}" if trials else "only probes"


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
    return rows + [("optimizations", text) for text in dict.fromkeys(map(_optimizations, trials)) if text]


def _optimizations(trial: LoadedTrial) -> str:
    """Name the optimizations of our model that were on, and why others of the default had no effect."""
    on, left_out = trial.row.get("levers_on"), trial.row.get("levers_left_out") or {}
    reasons = "; ".join(f"{name} has no effect: {why}" for name, why in left_out.items())
    return f"{on}{f' ({reasons})' if reasons else ''}" if on else ""


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


# What searches in one folder may differ in besides, and the headings of these columns.
_SEARCHED = (
    ("task", "task"), ("data", "data"), ("grad_accum_steps", "micro-steps"), ("memory_limit_gib", "limit, GiB"),
)  # fmt: skip


def largest_tables(found: list[dict[str, Any]]) -> list[tables.Table]:
    """Return the table of what fits and what fails, one line per search; none where nothing was searched."""
    if not found:
        return []
    columns = [
        tables.plain("implementation", "implementation"),
        tables.Column("model", wording.model, wording.model, False),
        tables.recorded("world_size"),
        *([tables.Column("strategy", _strategy, _strategy, False)] if wording.names_strategies(found) else []),
        *(tables.plain(heading, name) for name, heading in _SEARCHED if len({row.get(name) for row in found}) > 1),
        tables.Column("largest batch that fits", lambda row: row["micro_batch_size"], _fits),
        tables.Column("fails at", lambda row: row.get("fails_at"), _fails_at),
        tables.Column("why the search ended", _why, _why, False),
        tables.Column("confirmed", _proved, _proved, False),
        tables.Column("sizes tried", _tried, _tried, False),
    ]
    return [tables.build("largest", columns, found)]


def _strategy(row: Row) -> str:
    return str(row.get("strategy") or "not recorded")


def _fits(row: Row) -> str:
    return wording.count(row["micro_batch_size"]) if row["micro_batch_size"] else "none"


def _fails_at(row: Row) -> str:
    return wording.count(row["fails_at"]) if row.get("fails_at") else "no size tried"


def _why(row: Row) -> str:
    return str(row.get("failure") or "not recorded").strip().rstrip(":")


def _proved(row: Row) -> str:
    proved = row.get("proved")
    return ("yes" if proved else "no") if isinstance(proved, bool) else "not recorded"


def _tried(row: Row) -> str:
    tried = row.get("tried")
    pairs = [item for item in tried if isinstance(item, list) and len(item) == 2] if isinstance(tried, list) else []
    return ", ".join(f"{size} {status}" for size, status in pairs) or "not recorded"
