"""`bertbench compare A B`: compare two runs or two traces; exit code 1 on a regression, 4 if not conclusive."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from bench.cli.options import Tables
from bench.cli.result import Result, findings_result, markdown_into
from common.errors import InputError, UsageError
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions(Tables):
    """Compare B (new) with A (old): two run directories, two traces (files, folders of ranks, tars, profiled trials),
    or two speedruns (folders or their speedrun.json). Exit code 0: no regression. 1: B is slower by more than the
    threshold, or does not reach the target of a speedrun. 4: the measurements cannot decide for some configuration of a
    run, or between two speedruns.

    Examples:
        bertbench compare runs/main runs/change
        bertbench compare old.json.gz new.json.gz --threshold 0.1  # tolerate 10 %
        bertbench compare runs/speedrun runs/speedrun-bf16  # is the second a new record?
    """

    a: tyro.conf.Positional[Path]
    """Run directory, trace or speedrun to compare with (old)."""
    b: tyro.conf.Positional[Path]
    """Run directory, trace or speedrun to judge (new)."""
    threshold: float | None = None
    """Relative change of the step time that counts as a regression; default 0.02 (2 %) for runs, 0.05 for traces.
    Speedruns have none."""
    undecided_ok: bool = False
    """Runs and speedruns only: exit with 0 instead of 4 where the measurements cannot decide."""


UNDECIDED = 4
"""Exit code if the measurements cannot tell whether there is a regression."""
_VERDICTS = {0: "no regression", 1: "regression", UNDECIDED: "not conclusive"}
OPTIONS = {"compare A B": CompareOptions}


def run(options: CompareOptions) -> Result:
    """Compare; exit code 1 on a regression, UNDECIDED if that is not conclusive."""
    from records.speedrun import is_speedrun

    speedruns = any(map(is_speedrun, (options.a, options.b)))
    found = _speedruns(options) if speedruns else _runs_or_traces(options)
    with suppress(OSError):
        if options.a.samefile(options.b):
            same = f"{options.a} and {options.b} are the same records, so nothing differs"
            return replace(found, notes=[same, *found.notes])
    return found


def _runs_or_traces(options: CompareOptions) -> Result:
    from analysis.sources import is_run

    runs = [is_run(path) for path in (options.a, options.b)]
    if any(runs) and not all(runs):
        other = options.b if runs[0] else options.a
        if not os.path.lexists(other):  # of a name that is too long it says no, where Path raises
            raise InputError("path-missing", f"{other} does not exist: give two run directories, or two traces")
    for path, known in zip((options.a, options.b), runs, strict=True):
        if not known and path.name == "trials" and is_run(path.parent):
            raise InputError(
                "path-kind", f"{path} is the folder of trials of a run: give the run directory, {path.parent}"
            )
    return _runs(options) if all(runs) else _traces(options)


def _runs(options: CompareOptions) -> Result:
    if options.csv is not None:
        raise UsageError("option-not-applicable", "--csv is for traces; for two run directories use --json")
    from analysis.metrics.comparison.regression import THRESHOLD, compare_runs
    from analysis.render.result_tables import comparison_blocks

    threshold = THRESHOLD if options.threshold is None else options.threshold
    comparison = compare_runs(RunDirectory(options.a), RunDirectory(options.b), threshold)
    remedy = "give runs that measured the same configuration, or two profiled trials (RUN/trials/TRIAL)"
    if comparison.scripts:
        remedy = "measure both scripts with the same --name and the same number of ranks"
    nothing = InputError("run-mismatch", f"{options.a} and {options.b} have no configuration in common: {remedy}")
    undecided = comparison.undecided and not options.undecided_ok
    found = Result(
        document=comparison.to_json(),
        blocks=comparison_blocks(comparison),
        failure=None if comparison.rows else nothing,
        code=1 if comparison.regressed else UNDECIDED if undecided else 0,
    )
    return _with_markdown(found, options)


def _speedruns(options: CompareOptions) -> Result:
    from analysis.metrics.comparison.speedruns import compare_speedruns, load_speedrun
    from analysis.render.speedrun_tables import speedrun_comparison_blocks
    from records.speedrun import read_speedrun

    for name in ("threshold", "csv"):
        if getattr(options, name) is not None:
            raise UsageError(
                "option-not-applicable",
                f"--{name} is for runs and traces: two speedruns are decided by their seeds; use --json",
            )
    a, b = (load_speedrun(path, read_speedrun(path)) for path in (options.a, options.b))
    found = compare_speedruns(a, b)
    undecided = 0 if options.undecided_ok else UNDECIDED
    result = Result(
        document=found | {"a": a["summary"], "b": b["summary"]},
        blocks=speedrun_comparison_blocks(a, b, found),
        code={"faster": 0, "cannot decide": undecided}.get(found["verdict"], 1),
    )
    return _with_markdown(result, options)


def _with_markdown(found: Result, options: CompareOptions) -> Result:
    verdict = _VERDICTS[found.code] if found.failure is None else "nothing to compare"
    failure = markdown_into(options.markdown, f"bertbench compare: {verdict}", lambda: found.blocks)
    return replace(found, failure=found.failure or failure)


def _traces(options: CompareOptions) -> Result:
    from analysis.diagnose.explain import comparison_findings
    from analysis.metrics.comparison.traces import THRESHOLD, compare_traces
    from analysis.sources import is_run, open_sources, trial_of

    if options.undecided_ok:
        raise UsageError(
            "option-not-applicable",
            "--undecided-ok is for run directories: comparing two traces has no exit code 4",
        )
    # Trials of a run directory may hold a trace. Open the other path first: it is the one that does not fit.
    opened = {path: open_sources(path) for path in sorted((options.a, options.b), key=is_run)}
    sources = [opened[path] for path in (options.a, options.b)]
    for source in sources:
        if not source.timelines:
            raise InputError(
                "trace-without-work",
                f"{source.path} contains no trace with times ({', '.join(source.kinds)}): give two traces",
            )
    before, after = sources
    threshold = THRESHOLD if options.threshold is None else options.threshold
    found = compare_traces(
        before.timelines, after.timelines, threshold, trials=(trial_of(options.a), trial_of(options.b))
    )
    findings, code = comparison_findings(found), 1 if found.verdict == "slower" else 0
    return findings_result(
        findings,
        [*(f"differs: {difference}" for difference in found.differences), *before.problems, *after.problems],
        options,
        title=f"bertbench compare: {_VERDICTS[code]}",
        code=code,
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
