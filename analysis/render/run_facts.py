"""What ran and on what: the facts that the page of a run begins with, and its machine in detail."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.run import without_probes
from analysis.load import LoadedTrial
from analysis.render.result_tables import NOT_MEASURED


def facts(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return what ran and on what, as (name, value)."""
    shown = [trial for trial in trials if trial.trial.kind not in NOT_MEASURED] or list(trials)
    values = [trial.trial for trial in shown]
    rows = [dataclasses.asdict(value) for value in values]

    def listed(name: str) -> str:
        return ", ".join(str(value) for value in sorted({row[name] for row in rows}))

    tasks = ", ".join(sorted(set(map(wording.task, rows))))
    implementations = ", ".join(sorted({value.implementation for value in values}))
    strategies = ", ".join(sorted(set(map(wording.strategy, rows))))
    environment = next((trial.environment for trial in trials if trial.environment), {})
    ran = [
        ("model", f"BERT {listed('preset')}, sequences of {', '.join(sorted(set(map(wording.lengths, rows))))}, "
         f"{listed('precision')}"),
        ("task", f"{tasks}, data: {', '.join(sorted(set(map(wording.data, rows))))}"),
        ("implementations", f"{implementations} (strategy {strategies})"),
        ("swept", f"micro batch {listed('micro_batch_size')}; devices {listed('world_size')}"),
    ]  # fmt: skip
    if all(value.kind == "comm" for value in values):
        collectives = ", ".join(sorted({str(dict(value.collective).get("name")) for value in values}))
        ran = [("collectives", f"{collectives}, {listed('precision')}"), ("ranks", listed("world_size"))]
    elif all(value.kind == "measure" for value in values):
        commands = dict.fromkeys(" ".join(value.command) for value in values)
        ran = [*(("command", text) for text in commands), ("ranks", listed("world_size"))]
    libraries = environment.get("libraries") or {}
    names = [f"{name} {libraries[name]}" for name in ("torch", "transformers") if libraries.get(name)]
    names += [f"Python {environment['python']}"] if environment.get("python") else []
    names += [str(environment["system"])] if environment.get("system") else []
    software = ", ".join(names) or "not recorded"
    return [("machine", _machine(environment)), *ran, ("trials", _count(trials)), ("software", software)]


def _count(trials: Sequence[LoadedTrial]) -> str:
    """Return how many trials ended how, in how many rounds, and how many were probes."""
    others = without_probes(trials)
    tally = Counter(str(trial.row["status"]) for trial in others)
    ended = ", ".join(f"{count} {status}" for status, count in tally.items())
    rounds = len({trial.trial.round for trial in others if trial.trial.kind != "train"}) or 1
    words = [f"{len(others)} ({ended})", wording.counted(rounds, "round")] if others else ["only probes"]
    profiled = {_what(trial) for trial in trials if trial.trial.kind == "profile"}
    beside = Counter(_what(trial) in profiled for trial in trials if trial.trial.kind == "probe")
    for key, kind in ((False, "of the largest batch"), (True, "beside a profile")):
        words += [f"and {wording.counted(beside[key], 'probe')} {kind}"] if beside[key] else []
    return ", ".join(words)


def _what(trial: LoadedTrial) -> tuple[object, ...]:
    return (trial.key(), trial.trial.start_iteration, trial.trial.stop_iteration)


def _machine(environment: Mapping[str, Any]) -> str:
    cpu = environment.get("cpu") or {}
    gpus = Counter(str(gpu.get("name")) for gpu in environment.get("gpus") or [])
    parts = [f"{count} × {name}" for name, count in gpus.items()]  # noqa: RUF001
    parts.append(str(cpu.get("model") or environment.get("device_name") or "not recorded"))
    parts += [f"{cpu['physical_cores']} cores"] if cpu.get("physical_cores") else []
    parts += [wording.size(environment["memory_bytes"])] if environment.get("memory_bytes") else []
    return ", ".join(parts)


def environment(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return the machine in detail, from the first trial that recorded it, as (name, value)."""
    first = next((trial.environment for trial in trials if trial.environment), {})
    rows = [(name.replace("_", " "), _flat(name, value)) for name, value in first.items()
            if name not in ("schema_version", "topology") and value not in (None, {}, [])]  # fmt: skip
    ranks = next((trial.ranks for trial in trials if trial.ok and trial.ranks), {})
    record = ranks[min(ranks)] if ranks else {}
    if record.get("parameters"):
        rows.append(("parameters", wording.count(record["parameters"])))
    if record.get("seconds"):
        seconds = [f"{name.replace('_', ' ')} {wording.number(value)} s" for name, value in record["seconds"].items()]
        rows.append(("a trial's time (rank 0 of the first)", ", ".join(seconds)))
    optimizations = dict.fromkeys(str(trial.row["levers_on"]) for trial in trials if trial.row.get("levers_on"))
    return rows + [("optimizations", text) for text in optimizations]


def _flat(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return wording.size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if item is not None}
        return "; ".join(f"{key.replace('_', ' ')}: {_flat(key, item)}" for key, item in known.items())
    if isinstance(value, list | tuple):
        return ", ".join(_flat("", item) for item in value)
    return wording.number(value) if isinstance(value, float) else str(value)
