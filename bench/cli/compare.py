"""`bertbench compare A B [C ...]`: two runs or traces, or runs over time; exit code 1 on a regression."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cli.options import Tables
from bench.cli.result import ALL_TABLES, Result, of_view
from common.errors import InputError, UsageError
from common.flags import Positional, flag
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
_VERDICTS = {0: "no regression", 1: "regression", UNDECIDED: "not conclusive"}
_REFUSED = {
    "three or more runs": (("csv", "undecided_ok"), "use --json"),
    "two run directories": (("csv",), "use --json"),
    "two traces": (("undecided_ok",), "comparing them has no exit code 4"),
}
"""Options that do not apply to what is compared, and why or what to use."""
OPTIONS = {"compare A B [C ...]": CompareOptions}


def run(options: CompareOptions) -> Result:
    """Compare; exit code 1 on a regression, UNDECIDED if that is not conclusive."""
    from analysis.run_views import compare, history

    if len(options.paths) < 2:
        raise UsageError("option-missing", "give two paths or more: bertbench compare --help")
    kind = _kind(options.paths)
    names, why = _REFUSED[kind]
    for name in names:
        if getattr(options, name) not in (None, False):
            raise UsageError("option-not-applicable", f"{flag(name)} does not apply to {kind}: {why}")
    a, b, *more = options.paths
    view = history(options.paths, options.threshold) if more else compare(a, b, options.threshold)
    code = {"regression": 1, "undecided": 0 if options.undecided_ok else UNDECIDED}.get(view.verdict, 0)
    verdict = "nothing to compare" if view.verdict == "nothing" else _VERDICTS[code]
    result = of_view(view, options, f"bertbench compare: {verdict}", ALL_TABLES, code)
    if view.verdict == "nothing":
        remedy = (
            "measure the same one, scripts with the same --name and number of ranks, or give two profiled trials "
            "(RUN/trials/TRIAL)"
        )
        text = f"{a} and {b} have no configuration in common: {remedy}"
        result = replace(result, failure=InputError("run-mismatch", text))
    with suppress(OSError):
        if not more and a.samefile(b):
            same = f"{a} and {b} are the same records, so nothing differs"
            return replace(result, notes=[same, *result.notes])
    return result


def _kind(paths: Sequence[Path]) -> str:
    """Return what is compared, a key of _REFUSED. Raises InputError for paths that are missing or do not fit."""
    if len(paths) > 2:
        for path in paths:
            if not path.exists():
                raise InputError("path-missing", f"{path} does not exist: give run directories")
        return "three or more runs"
    runs = [is_run(path) for path in paths]
    if any(runs) and not all(runs):
        other = paths[1] if runs[0] else paths[0]
        if not os.path.lexists(other):  # of a name that is too long it says no, where Path raises
            raise InputError("path-missing", f"{other} does not exist: give two run directories, or two traces")
    for path, known in zip(paths, runs, strict=True):
        if not known and path.name == "trials" and is_run(path.parent):
            raise InputError(
                "path-kind", f"{path} is the folder of trials of a run: give the run directory, {path.parent}"
            )
    return "two run directories" if all(runs) else "two traces"
