"""`bertbench compare A B`: two runs or two traces against each other; exit code 1 on a regression, 4 if undecided."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from bench.cli.options import Tables
from bench.cli.result import Result, findings_result
from common.errors import InputError, UsageError
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions(Tables):
    """Hold B (new) against A (old): two run directories, or two traces (files, folders of ranks, tars, profiled
    trials). Exit code 1 when B is slower beyond the threshold, 4 when no regression was found but of a configuration
    of the runs it cannot be decided whether it is one. --csv and --rows are about the tables of traces.
    """

    a: tyro.conf.Positional[Path]
    """Run directory or trace to compare with (old)."""
    b: tyro.conf.Positional[Path]
    """Run directory or trace to judge (new)."""
    threshold: float | None = None
    """Relative change of the step time that counts; 0.02 (2 %) of runs, 0.05 of traces."""
    undecided_ok: bool = False
    """Of runs: exit code 0, not 4, where it cannot be decided."""


UNDECIDED = 4
"""Exit code where the measurements cannot tell whether there is a regression."""
OPTIONS = {"compare A B": CompareOptions}


def run(options: CompareOptions) -> Result:
    """Compare; exit code 1 on a regression, UNDECIDED where that is open."""
    from analysis.sources import is_run

    runs = [is_run(path) for path in (options.a, options.b)]
    if any(runs) and not all(runs):
        other = options.b if runs[0] else options.a
        if not os.path.lexists(other):  # of a name that is too long it says no, where Path raises
            raise InputError("path-missing", f"{other} does not exist: give two run directories, or two traces")
    for path, known in zip((options.a, options.b), runs, strict=True):
        if not known and path.name == "trials" and is_run(path.parent):
            raise InputError("path-kind", f"{path} holds the trials of a run: give the run directory, {path.parent}")
    found = _runs(options) if all(runs) else _traces(options)
    with suppress(OSError):
        if options.a.samefile(options.b):
            same = f"{options.a} and {options.b} are the same records: what differs between them is nothing"
            return replace(found, notes=[same, *found.notes])
    return found


def _runs(options: CompareOptions) -> Result:
    if options.csv is not None:
        raise UsageError(
            "option-not-applicable", "--csv is for traces: of two run directories --json prints every value"
        )
    from analysis.metrics.comparison.regression import THRESHOLD, as_mapping, compare_runs
    from analysis.render.result_tables import comparison_blocks

    threshold = THRESHOLD if options.threshold is None else options.threshold
    comparison = compare_runs(RunDirectory(options.a), RunDirectory(options.b), threshold)
    nothing = InputError(
        "run-mismatch",
        f"nothing of {options.a} and {options.b} could be compared: give runs that measured the same "
        "configuration, or two profiled trials (RUN/trials/TRIAL)",
    )
    undecided = comparison.undecided and not options.undecided_ok
    return Result(
        document=as_mapping(comparison),
        blocks=comparison_blocks(comparison),
        failure=None if comparison.rows else nothing,
        code=1 if comparison.regressed else UNDECIDED if undecided else 0,
    )


def _traces(options: CompareOptions) -> Result:
    from analysis.diagnose.explain import comparison_findings
    from analysis.metrics.comparison.traces import THRESHOLD, compare_traces
    from analysis.sources import is_run, open_sources, trial_of

    if options.undecided_ok:
        raise UsageError(
            "option-not-applicable",
            "--undecided-ok is for run directories: a comparison of two traces has no exit code 4",
        )
    # Beside a run directory, whose trials may hold a trace, what is none is looked at first: it is what does not fit.
    opened = {path: open_sources(path) for path in sorted((options.a, options.b), key=is_run)}
    sources = [opened[path] for path in (options.a, options.b)]
    for source in sources:
        if not source.timelines:
            raise InputError(
                "trace-without-work",
                f"{source.path} holds no trace with times ({', '.join(source.kinds)}): give two traces",
            )
    before, after = sources
    threshold = THRESHOLD if options.threshold is None else options.threshold
    found = compare_traces(
        before.timelines, after.timelines, threshold, trials=(trial_of(options.a), trial_of(options.b))
    )
    return findings_result(
        comparison_findings(found),
        [*(f"differs: {difference}" for difference in found.differences), *before.problems, *after.problems],
        options,
        code=1 if found.verdict == "slower" else 0,
        a=str(options.a),
        b=str(options.b),
        per=found.per,
        before_ms=found.before_ms,
        after_ms=found.after_ms,
        ratio=found.ratio,
        verdict=found.verdict,
        threshold=found.threshold,
        differences=list(found.differences),
    )
