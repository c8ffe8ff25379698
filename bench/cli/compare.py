"""`bertbench compare A B [C ...]`: two runs, traces or trainings, or runs over time; exit code 1 on a regression."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from bench.cli.options import Tables
from bench.cli.result import Result, findings_result, markdown_into
from common.errors import InputError, UsageError
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions(Tables):
    """Compare B (new) with A (old): two run directories, two traces (files, folders of ranks, tars, profiled trials),
    or two folders of trainings (or their trainings.json). Three or more run directories are ordered by time, each
    measurement compared with the previous one on the same kind of machine.

    Exit code 0: no regression. 1: B (of more runs, the newest) is slower by more than the threshold, or misses the
    target of trainings. 4: the measurements cannot decide for some configuration of two runs or variant of trainings.

    Examples:
        bertbench compare runs/main runs/change
        bertbench compare old.json.gz new.json.gz --threshold 0.1  # tolerate 10 %
        bertbench compare runs/nightly/*  # what became slower, with which commit or version
    """

    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="A B [C ...]")]
    """Run directories, traces or trainings: the old one, then the new one; three or more runs in any order."""
    threshold: float | None = None
    """Relative change of the step time that counts as a regression; default 0.02 (2 %) for runs, 0.05 for traces."""
    undecided_ok: bool = False
    """Two runs or folders of trainings only: exit with 0 instead of 4 where the measurements cannot decide."""


UNDECIDED = 4
"""Exit code if the measurements cannot tell whether there is a regression."""
_VERDICTS = {0: "no regression", 1: "regression", UNDECIDED: "not conclusive"}
OPTIONS = {"compare A B [C ...]": CompareOptions}


def run(options: CompareOptions) -> Result:
    """Compare; exit code 1 on a regression, UNDECIDED if that is not conclusive."""
    from records.trainings import is_trainings

    if len(options.paths) < 2:
        raise UsageError("option-missing", "give two paths or more: bertbench compare --help")
    if len(options.paths) > 2:
        return _history(options)
    compare = _trainings if any(map(is_trainings, options.paths)) else _runs_or_traces
    result = compare(options, *options.paths)
    with suppress(OSError):
        if options.paths[0].samefile(options.paths[1]):
            same = f"{options.paths[0]} and {options.paths[1]} are the same records, so nothing differs"
            return replace(result, notes=[same, *result.notes])
    return result


def _history(options: CompareOptions) -> Result:
    from analysis.metrics.comparison.history import history_of
    from analysis.metrics.comparison.ratio import THRESHOLD
    from analysis.render.comparison_tables import history_blocks

    for name in ("csv", "undecided_ok"):
        if getattr(options, name):
            text = f"--{name.replace('_', '-')} does not apply to three or more runs: use --json"
            raise UsageError("option-not-applicable", text)
    for path in options.paths:
        if not path.exists():
            raise InputError("path-missing", f"{path} does not exist: give run directories")
    runs = [RunDirectory(path) for path in dict.fromkeys(path.resolve() for path in options.paths)]
    history = history_of(runs, THRESHOLD if options.threshold is None else options.threshold)
    result = Result(
        document=history.to_json(),
        blocks=history_blocks(history),
        problems=history.problems,
        code=1 if history.regressed else 0,
    )
    return _with_markdown(result, options)


def _runs_or_traces(options: CompareOptions, a: Path, b: Path) -> Result:
    from analysis.open import is_run

    runs = [is_run(path) for path in (a, b)]
    if any(runs) and not all(runs):
        other = b if runs[0] else a
        if not os.path.lexists(other):  # of a name that is too long it says no, where Path raises
            raise InputError("path-missing", f"{other} does not exist: give two run directories, or two traces")
    for path, known in zip((a, b), runs, strict=True):
        if not known and path.name == "trials" and is_run(path.parent):
            raise InputError(
                "path-kind", f"{path} is the folder of trials of a run: give the run directory, {path.parent}"
            )
    return _runs(options, a, b) if all(runs) else _traces(options, a, b)


def _runs(options: CompareOptions, a: Path, b: Path) -> Result:
    if options.csv is not None:
        raise UsageError("option-not-applicable", "--csv is for traces; for two run directories use --json")
    from analysis.metrics.comparison.ratio import THRESHOLD
    from analysis.metrics.comparison.runs import compare_runs
    from analysis.render.result_tables import comparison_blocks

    threshold = THRESHOLD if options.threshold is None else options.threshold
    comparison = compare_runs(RunDirectory(a), RunDirectory(b), threshold)
    nothing = InputError(
        "run-mismatch",
        f"{a} and {b} have no configuration in common: measure the same one, scripts with the same --name and number "
        "of ranks, or give two profiled trials (RUN/trials/TRIAL)",
    )
    undecided = comparison.undecided and not options.undecided_ok
    result = Result(
        document=comparison.to_json(),
        blocks=comparison_blocks(comparison),
        failure=None if comparison.rows else nothing,
        code=1 if comparison.regressed else UNDECIDED if undecided else 0,
    )
    return _with_markdown(result, options)


def _trainings(options: CompareOptions, a: Path, b: Path) -> Result:
    if options.csv is not None:
        raise UsageError("option-not-applicable", "--csv is for traces; for trainings use --json")
    from analysis.metrics.comparison.ratio import THRESHOLD
    from analysis.metrics.comparison.trainings import compare_trainings
    from analysis.render.comparison_tables import trainings_comparison_blocks
    from records.trainings import read_trainings

    threshold = THRESHOLD if options.threshold is None else options.threshold
    comparison = compare_trainings(read_trainings(a), read_trainings(b), threshold)
    undecided = comparison.undecided and not options.undecided_ok
    result = Result(
        document=comparison.to_json(),
        blocks=trainings_comparison_blocks(comparison),
        failure=None if comparison.rows else InputError("run-mismatch", f"{a} and {b} have no variant in common"),
        code=1 if comparison.regressed else UNDECIDED if undecided else 0,
    )
    return _with_markdown(result, options)


def _with_markdown(result: Result, options: CompareOptions) -> Result:
    verdict = _VERDICTS[result.code] if result.failure is None else "nothing to compare"
    failure = markdown_into(options.markdown, f"bertbench compare: {verdict}", lambda: result.blocks)
    return replace(result, failure=result.failure or failure)


def _traces(options: CompareOptions, a: Path, b: Path) -> Result:
    from analysis.diagnose.explain import comparison_findings
    from analysis.metrics.comparison.traces import THRESHOLD, compare_traces
    from analysis.open import is_run, open_sources, trial_of

    if options.undecided_ok:
        raise UsageError(
            "option-not-applicable",
            "--undecided-ok is for two runs: comparing traces has no exit code 4",
        )
    # Trials of a run directory may hold a trace. Open the other path first: it is the one that does not fit.
    opened = {path: open_sources(path) for path in sorted((a, b), key=is_run)}
    sources = [opened[path] for path in (a, b)]
    for source in sources:
        if not source.timelines:
            raise InputError(
                "trace-without-work",
                f"{source.path} contains no trace with times ({', '.join(source.kinds)}): give two traces",
            )
    before, after = sources
    threshold = THRESHOLD if options.threshold is None else options.threshold
    comparison = compare_traces(before.timelines, after.timelines, threshold, trials=(trial_of(a), trial_of(b)))
    findings, code = comparison_findings(comparison), 1 if comparison.verdict == "slower" else 0
    return findings_result(
        findings,
        [*(f"differs: {difference}" for difference in comparison.differences), *before.problems, *after.problems],
        options,
        title=f"bertbench compare: {_VERDICTS[code]}",
        code=code,
        a=str(a),
        b=str(b),
        per=comparison.per,
        before_ms=comparison.before_ms,
        after_ms=comparison.after_ms,
        ratio=comparison.ratio,
        verdict=comparison.verdict,
        threshold=comparison.threshold,
        differences=list(comparison.differences),
    )
