"""The questions that a command asks of a run of the harness: what it measured, what is fastest, what is conclusive."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.answer import advice_of_profiles, complete_answers, points, script_answer, winners
from analysis.diagnose.run import cautions_of_scripts, reference
from analysis.load import CIRCUMSTANCES, CONFIGURATION, LoadedTrial, load_run, measurement
from analysis.metrics.communication.collectives import fitted_links, link_rows
from analysis.metrics.comparison.runs import Side, input_ratios, ratios_of, side_of, synthetic_gaps
from analysis.render.result_tables import (
    answer_lines,
    caution_lines,
    collectives_table,
    input_tables,
    light_blocks,
    links_table,
    results_blocks,
)
from analysis.views import View
from common.errors import UsageError
from records.run import RunDirectory

Row = Mapping[str, Any]


def throughput(
    run: RunDirectory, trial_ids: Collection[str], rows: Sequence[Row], price_per_hour: float | None = None
) -> View:
    """Return the throughput of trials, compared with everything else that their run measured.

    Args:
        run: the run directory.
        trial_ids: the trials of the command.
        rows: their rows of results.csv.
        price_per_hour: price of the machine, for the cost columns.
    """
    trials = load_run(run, price_per_hour)
    ratios, gaps = ratios_of(trials, reference(trials)), synthetic_gaps(trials)
    asked = [trial for trial in trials if trial.trial.trial_id in trial_ids]
    # Of input alone that an earlier call measured here, what belongs to a training of this call.
    settings = {measurement(trial.row) for trial in asked if trial.trial.kind == "input"}
    beside = [trial for trial in trials if trial.trial.kind == "input" or trial.trial.trial_id in trial_ids]
    settings |= {measurement(row) for row in input_ratios(beside) if not row["reason"]}
    inputs = [row for row in input_ratios(trials) if measurement(row) in settings]
    best = points(asked)
    answers = complete_answers(trials, best, ratios, str(run.path), advice_of_profiles(trials, best))
    shown = [trial.row for trial in asked if trial.row.get("status") is not None]
    return View(
        document={
            "run": str(run.path),
            "rows": rows,
            "ratios": ratios,
            "input": inputs,
            "real_against_synthetic": gaps,
            "answers": [answer.to_json() for answer in answers],
        },
        blocks=[
            *answer_lines(answers),
            *results_blocks(shown, ratios),
            *input_tables(inputs, gaps),
            *caution_lines(asked),
        ],
    )


def script(run: RunDirectory, trial_id: str) -> View:
    """Return what a measured script came to; the document has the cautions about all of its rounds."""
    trials = load_run(run)
    measured = [trial for trial in trials if trial.trial.trial_id == trial_id]
    answer = script_answer(measured)
    of_rounds = cautions_of_scripts([one for one in trials if measurement(one.row) == measurement(measured[0].row)])
    return View(
        document={"cautions": [dataclasses.asdict(one) for one in of_rounds]},
        blocks=[
            answer.headline,
            *answer.sentences,
            *results_blocks([trial.row for trial in measured]),
            *caution_lines(measured, of_rounds),
        ],
    )


def collectives(run: RunDirectory, trial_ids: Collection[str]) -> View:
    """Return collectives by message size and the lines fitted to them; the verdict is "wrong" for wrong results."""
    loaded = [trial for trial in load_run(run) if trial.trial.trial_id in trial_ids]
    measured = [trial for trial in loaded if trial.row["status"] == "ok"]
    links = fitted_links(measured)
    failed = [trial for trial in loaded if trial.row["status"] != "ok"]
    return View(
        document={
            "run": str(run.path),
            "rows": [row for trial in measured for row in trial.row["by_size"]],
            "fits": link_rows(links),
            "failed": [{name: trial.row[name] for name in ("trial_id", "status", "reason")} for trial in failed],
        },
        blocks=[
            *(collectives_table(trial.row["by_size"]) for trial in measured),
            *([links_table(links)] if links else []),
        ],
        verdict="wrong" if any(trial.row["wrong"] for trial in measured) else "",
    )


def speed_of_light(run: RunDirectory, trial_id: str) -> View:
    """Return a step broken down, and draw it into the folder of its trial. Raises UsageError where there is none."""
    from analysis.render.figure import write_png
    from analysis.render.run_figures import waterfall_figure

    folder = run.trial(trial_id).path
    trial = next((one for one in load_run(run) if one.trial.trial_id == trial_id), None)
    if trial is None or trial.row["status"] != "ok":
        reason = trial.row["reason"] if trial else "its records cannot be read"
        raise UsageError("run-incomplete", f"{folder} cannot be shown ({reason}): give another --out")
    picture = str(write_png(waterfall_figure(trial.row), folder))
    return View(document={"run": str(run.path), "picture": picture, **trial.row}, blocks=light_blocks(trial))


def fastest(trials: Sequence[LoadedTrial]) -> Sequence[LoadedTrial]:
    """Return the rounds of the fastest configuration of the model measured most; none where none was measured."""
    best = winners(points(trials))
    return best[0].best.trials if best else ()


def rate_interval(trials: Sequence[LoadedTrial]) -> tuple[float, float]:
    """Return the 95 % interval of the samples/s of one configuration over its rounds."""
    (whole,) = points(trials)
    return whole.rate.low, whole.rate.high


def decisions(trials: Sequence[LoadedTrial], against: str) -> Iterator[tuple[Row, str, LoadedTrial, LoadedTrial]]:
    """Compare the fastest configuration of each model with an implementation at its default optimizations.

    Yields:
        The row of runs.ratios_of, the comparison in one sentence, and a trial of each side, that of `against` last; if
        that is the fastest, its first competitor is the other side.
    """
    last = (against, "")
    ratios = ratios_of(trials, last)
    for winner in winners(points(trials)):
        best = winner.best.row
        rows = [row for row in ratios if _same_place(row, best)]
        first = side_of(winner.best.trials[0])
        if first != last:
            rows = [row for row in rows if (row["implementation"], row["levers"]) == first]
        if rows:
            sides = ((rows[0]["implementation"], rows[0]["levers"]), last)
            one, other = (_side(trials, best, side) for side in sides)
            yield rows[0], _sentence(rows[0]), one, other


def _same_place(one: Row, other: Row) -> bool:
    names = {*CONFIGURATION, *CIRCUMSTANCES} - {"implementation", "levers"}
    return all(one.get(name) == other.get(name) for name in names)


def _side(trials: Sequence[LoadedTrial], best: Row, side: Side) -> LoadedTrial:
    return next(one for one in trials if side_of(one) == side and _same_place(one.row, best))


def _sentence(row: Row) -> str:
    where = f"micro batch {row['micro_batch_size']} on {wording.counted(row['world_size'], 'device')}"
    names = f"{wording.implementation(row)} / {wording.reference(row)} at {where}"
    if row["throughput_ratio"] is None:
        return f"{names}: not conclusive, {row['reason']}"
    span = wording.interval(row["throughput_ratio_low"], row["throughput_ratio_high"], lambda x: f"{x:.2f}")
    ratio = f"{names}: {row['throughput_ratio']:.2f} x ({span}; rounds: {row['rounds']} and {row['reference_rounds']})"
    verdict = {"yes": "conclusive: they differ", "no": "conclusive: they are within 5 % of each other"}
    return f"{ratio}, {verdict.get(row['decided'], 'not conclusive yet: ' + row['reason'])}"
