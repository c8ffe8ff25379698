"""What a notebook imports: the tables of a run directory or a trace as DataFrames, and a loop recorded as a trial.

Importing it loads neither pandas nor PyTorch.
"""

from collections.abc import Iterable, Mapping
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
    """A run directory as tables. docs/reference/columns.md describes the columns; unknown values are NaN or NA.

    results has a row per trial, steps one per step and rank with `measured` (inside the window), telemetry one per
    sensor reading; problems name the trials that could not be read.
    """

    results: "pd.DataFrame"
    steps: "pd.DataFrame"
    telemetry: "pd.DataFrame"
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What `bertbench analyze` finds in a trace, a table of counters or a log.

    kinds are the detected formats, tables those of the findings by name, advice what to do, the largest gain first;
    problems name the files or parts that could not be read.
    """

    kinds: tuple[str, ...]
    findings: "tuple[Finding, ...]"
    tables: "Mapping[str, pd.DataFrame]"
    advice: tuple[str, ...]
    problems: tuple[str, ...]


def load_run(path: str | Path, price_per_hour: float | None = None) -> Run:
    """Read a run directory. `price_per_hour` is that of all devices of a trial, for its cost. Raises InputError."""
    from analysis import load
    from records.run import RunDirectory
    from records.schema import RESULTS, STEPS, TELEMETRY, Column

    loaded = load.load_run(RunDirectory(Path(path)), price_per_hour)
    steps: list[dict[str, Any]] = []
    readings: list[dict[str, Any]] = []
    for trial in loaded:
        if trial.row["status"] == load.DAMAGED:
            continue
        name = {"trial_id": trial.trial.trial_id}
        start, stop = (trial.row.get(end) for end in ("window_start", "window_stop"))
        for rank in trial.directory.ranks():
            for row in trial.directory.read_steps(rank):
                measured = start is not None and stop is not None and start <= row["step"] < stop
                steps.append({**name, "rank": rank, **row, "measured": measured})
        readings += [{**name, **row} for row in trial.directory.read_telemetry()]
    rank_column, measured_column = Column("rank", int, "", ""), Column("measured", bool, "", "")
    return Run(
        results=_frame([trial.row for trial in loaded], RESULTS),
        steps=_frame(steps, [RESULTS[0], rank_column, *STEPS, measured_column]),
        telemetry=_frame(readings, [RESULTS[0], Column("node", int, "", ""), *TELEMETRY]),
        problems=loaded.problems,
    )


def read_trace(path: str | Path, *others: str | Path, window: str = "steps") -> Trace:
    """Read and explain what a profiler recorded, as `bertbench analyze --window` does. Raises InputError.

    Args:
        path: a trace, a table of counters, a log, a folder of ranks, a tar or the folder of a profiled trial.
        others: further paths that are read with the first as one source.
        window: the part to analyze.
    """
    from analysis.diagnose.profiles import analyze_paths

    analyzed = analyze_paths([Path(one) for one in (path, *others)], window)
    tables = {finding.name: finding.table for finding in analyzed.findings}
    advice = tuple(one.text for one in analyzed.advice)
    return Trace(analyzed.source.kinds, analyzed.findings, tables, advice, analyzed.source.problems)


def measure(name: str, out: str | Path = "runs/measure", device: str | None = None) -> "MeasuredLoop":
    """Measure a loop: `with bertbench.measure("name") as m:`, and `m.step()` at the end of each step.

    The block becomes one trial of the run directory `out`, a further round if the name was measured there before. Step
    times, end of warm-up, median and interval are computed as for every trial. `device` is cpu or cuda; None takes cuda
    if this process uses PyTorch on a GPU. Raises UsageError.
    """
    from bench.run.measured_loop import MeasuredLoop

    return MeasuredLoop(name, Path(out), device)


def _frame(rows: Iterable[Mapping[str, Any]], columns: "Iterable[Column]") -> "pd.DataFrame":
    import pandas as pd

    rows = list(rows)
    types = {int: "Int64", float: "float64", bool: "boolean"}  # nullable, except for floats: a notebook plots them
    series = {one.name: ([row.get(one.name) for row in rows], types.get(one.type, "object")) for one in columns}
    return pd.DataFrame({name: pd.Series(values, dtype=kind) for name, (values, kind) in series.items()})
