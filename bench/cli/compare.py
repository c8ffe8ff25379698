"""`bertbench compare A B [C ...]`: two runs or traces, or runs over time; exit code 1 on a regression."""

from dataclasses import dataclass, replace
from pathlib import Path

from bench.cli.options import Tables
from bench.cli.result import ALL_TABLES, Result, of_view
from common.errors import InputError, UsageError
from common.flags import Positional
from records.run import is_run


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions(Tables):
    """Compare B (new) with A (old): two run directories or two traces (files, folders of ranks, tars, profiled trials).
    Three or more run directories are ordered by time, each measurement compared with the previous one on the same kind
    of machine.

    Exit code 0: no regression. 1: B (of more runs, the newest) is slower by more than the threshold. 4: the
    measurements cannot decide for some configuration of two runs.

    Examples:
        bertbench compare runs/main runs/change
        bertbench compare old.json.gz new.json.gz --threshold 0.1  # tolerate 10 %
        bertbench compare runs/nightly/*  # what became slower, with which commit or version
    """

    paths: Positional[tuple[Path, ...]]
    """Run directories or traces: the old one, then the new one; three or more runs in any order."""
    threshold: float | None = None
    """Relative change of the step time that counts as a regression; default 0.02 (2 %) for runs, 0.05 for traces."""
    undecided_ok: bool = False
    """Two runs only: exit with 0 instead of 4 where the measurements cannot decide."""


UNDECIDED = 4
"""Exit code if the measurements cannot tell whether there is a regression."""
_VERDICTS = {"regression": "regression", "undecided": "not conclusive", "nothing": "nothing to compare"}
OPTIONS = {"compare A B [C ...]": CompareOptions}


def run(options: CompareOptions) -> Result:
    """Compare; exit code 1 on a regression, UNDECIDED if that is not conclusive."""
    from analysis.run_views import compare, history

    if len(options.paths) < 2:
        raise UsageError("option-missing", "give two paths or more: bertbench compare --help")
    a, b, *more = options.paths
    if options.csv is not None and (more or is_run(a)):
        raise UsageError("option-not-applicable", "--csv does not apply to run directories: use --json or --markdown")
    view = history(options.paths, options.threshold) if more else compare(a, b, options.threshold)
    code = {"regression": 1, "undecided": 0 if options.undecided_ok else UNDECIDED}.get(view.verdict, 0)
    verdict = _VERDICTS.get(view.verdict if code or view.verdict == "nothing" else "", "no regression")
    result = of_view(view, options, f"bertbench compare: {verdict}", ALL_TABLES, code)
    if view.verdict != "nothing":
        return result
    problem = f"{a} and {b} have no configuration in common: measure the same one, scripts with the same --name"
    return replace(result, failure=InputError("run-mismatch", problem))
