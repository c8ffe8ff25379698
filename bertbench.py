"""What a notebook imports: `load_run` and `read_trace` give the tables of a run directory or a trace as DataFrames,
`measure` records a loop as a trial.

Importing it loads neither pandas nor PyTorch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import BertbenchError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.diagnose.finding import Finding
    from bench.run.measured_loop import MeasuredLoop
    from records.schema import Column

__all__ = ["BertbenchError", "Run", "Trace", "load_run", "measure", "read_trace"]


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory as tables. docs/reference/columns.md describes the columns; unknown values are NaN or NA."""

    results: "pd.DataFrame"
    """One row per trial: the columns of results.csv, computed from the records."""
    steps: "pd.DataFrame"
    """One row per step and rank: trial_id, rank, the columns of step records, and `measured` (inside the window)."""
    telemetry: "pd.DataFrame"
    """One row per sensor reading: trial_id, node and the columns of telemetry."""
    problems: tuple[str, ...]
    """Trials that could not be read, one sentence each."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What `bertbench analyze` finds in a trace, a table of counters or a log."""

    kinds: tuple[str, ...]
    """Detected formats."""
    findings: "tuple[Finding, ...]"
    """Each has name, title, table (a DataFrame), sentence and advice."""
    tables: "Mapping[str, pd.DataFrame]"
    """The tables of the findings by name."""
    advice: tuple[str, ...]
    """What to do, the largest gain first."""
    problems: tuple[str, ...]
    """Files or parts that could not be read, one sentence each."""


def load_run(path: str | Path, price_per_hour: float | None = None) -> Run:
    """Read a run directory.

    Args:
        path: a folder written by bertbench, such as runs/bench.
        price_per_hour: price of all devices of a trial for one hour, for the cost column.

    Raises:
        InputError: no run directory, or one without readable trials.
        UsageError: price_per_hour is not above 0.
    """
    from analysis import load
    from records.run import RunDirectory
    from records.schema import RESULTS, STEPS, TELEMETRY, Column

    loaded = load.load_run(RunDirectory(Path(path)), price_per_hour)
    steps: list[dict[str, Any]] = []
    readings: list[dict[str, Any]] = []
    for trial in loaded:
        if trial.row["status"] == load.DAMAGED:
            continue
        own = {"trial_id": trial.trial.trial_id}
        start, stop = trial.row.get("window_start"), trial.row.get("window_stop")
        for rank in trial.directory.ranks():
            for row in trial.directory.read_steps(rank):
                measured = start is not None and stop is not None and start <= row["step"] < stop
                steps.append({**own, "rank": rank, **row, "measured": measured})
        readings += [{**own, **row} for row in trial.directory.read_telemetry()]
    trial_id = RESULTS[0]
    return Run(
        results=_frame([trial.row for trial in loaded], RESULTS),
        steps=_frame(steps, [trial_id, Column("rank", int, "", ""), *STEPS, Column("measured", bool, "", "")]),
        telemetry=_frame(readings, [trial_id, Column("node", int, "", ""), *TELEMETRY]),
        problems=loaded.problems,
    )


def read_trace(path: str | Path, *others: str | Path, window: str = "steps") -> Trace:
    """Read and explain what a profiler recorded, as `bertbench analyze` does.

    Args:
        path: a trace, a table of counters, a log, a folder of ranks, a tar or the folder of a profiled trial.
        others: further paths that are read with the first as one source.
        window: the part to analyze, as `bertbench analyze --window` takes it.

    Raises:
        InputError: a path does not exist or has nothing to analyze.
    """
    from analysis.diagnose.profiles import analyze_paths

    found = analyze_paths([Path(one) for one in (path, *others)], window)
    return Trace(
        kinds=found.source.kinds,
        findings=found.findings,
        tables={finding.name: finding.table for finding in found.findings},
        advice=tuple(advice.text for advice in found.advice),
        problems=found.source.problems,
    )


def measure(name: str, out: str | Path = "runs/measure", device: str | None = None) -> "MeasuredLoop":
    """Measure a loop: `with bertbench.measure("name") as m:`, and `m.step()` at the end of each step.

    The block becomes one trial of the run directory, a further round if the name was measured there before. Step times,
    end of warm-up, median and interval are computed as for every trial.

    Args:
        name: what tables call it.
        out: run directory.
        device: cpu or cuda; None takes cuda if this process uses PyTorch on a GPU.

    Raises:
        UsageError: an empty name, or a device that does not exist.
    """
    import dataclasses

    from bench.run.measured_loop import MeasuredLoop, used_device
    from bench.sweep.script import plan_script
    from common.registry import lookup
    from records.run import RunDirectory

    kind = device or used_device()
    lookup({"cpu": "", "cuda": ""}, kind, "device")
    run = RunDirectory(Path(out))
    trial = plan_script(run, ("bertbench.measure", name), name=name)
    return MeasuredLoop(run, dataclasses.replace(trial, device=kind))


def _frame(rows: Sequence[Mapping[str, Any]], columns: "Iterable[Column]") -> "pd.DataFrame":
    import pandas as pd

    types = {int: "Int64", float: "float64", bool: "boolean"}  # nullable, except for floats: a notebook plots them
    return pd.DataFrame(
        {
            column.name: pd.Series([row.get(column.name) for row in rows], dtype=types.get(column.type, "object"))
            for column in columns
        }
    )
