"""What a notebook imports: a run or a trace as DataFrames, a loop as a trial. Loads neither pandas nor PyTorch."""

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
    """A run directory as tables, whose columns docs/reference/columns.md describes; unknown values are NaN or NA."""

    results: "pd.DataFrame"
    steps: "pd.DataFrame"
    """One row per step and rank; `measured` is inside the window."""
    telemetry: "pd.DataFrame"
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What `bertbench analyze` finds in a trace, a table of counters or a log."""

    kinds: tuple[str, ...]
    """Detected formats."""
    findings: "tuple[Finding, ...]"
    tables: "Mapping[str, pd.DataFrame]"
    advice: tuple[str, ...]
    """What to do, the largest gain first."""
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
        window = range(*(trial.row.get(end) or 0 for end in ("window_start", "window_stop")))
        for rank in trial.directory.ranks():
            rows = trial.directory.read_steps(rank)
            steps += [{**name, "rank": rank, **row, "measured": row["step"] in window} for row in rows]
        readings += [{**name, **row} for row in trial.directory.read_telemetry()]
    rank_column, measured_column = Column("rank", int, "", ""), Column("measured", bool, "", "")
    return Run(
        results=_frame([trial.row for trial in loaded], RESULTS),
        steps=_frame(steps, [RESULTS[0], rank_column, *STEPS, measured_column]),
        telemetry=_frame(readings, [RESULTS[0], Column("node", int, "", ""), *TELEMETRY]),
        problems=loaded.problems,
    )


def read_trace(path: str | Path, *others: str | Path, window: str = "steps") -> Trace:
    """Read and explain what a profiler recorded: paths of one source, as `bertbench analyze --window` does.

    Raises InputError.
    """
    from analysis.diagnose.profiles import analyze_paths

    found = analyze_paths([Path(one) for one in (path, *others)], window)
    tables = {finding.name: finding.table for finding in found.findings}
    advice = tuple(one.text for one in found.advice)
    return Trace(found.source.kinds, found.findings, tables, advice, found.source.problems)


def measure(name: str, out: str | Path = "runs/measure", device: str | None = None) -> "MeasuredLoop":
    """Measure a loop: `with bertbench.measure("name") as m:`, and `m.step()` at the end of each step.

    The block becomes a trial of the run directory `out`, a further round if the name was measured there before.
    `device` is cpu or cuda; None takes cuda if this process uses PyTorch on a GPU. Raises UsageError.
    """
    from bench.run.measured_loop import MeasuredLoop

    return MeasuredLoop(name, Path(out), device)


def _frame(rows: "Iterable[Mapping[str, Any]]", columns: "Iterable[Column]") -> "pd.DataFrame":
    import pandas as pd

    types = {int: "Int64", float: "float64", bool: "boolean"}  # nullable, except for floats: a notebook plots them
    frame = pd.DataFrame.from_records(rows, columns=[one.name for one in columns]).astype(object)
    return frame.astype({one.name: types.get(one.type, "object") for one in columns})
