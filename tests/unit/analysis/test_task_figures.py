"""Figures of tasks' scores: SQuAD's no-answer scores, whatever they are."""

from pathlib import Path

import numpy as np
import pytest

from analysis.render import task_figures as figures
from analysis.render.figure import Line
from analysis.render.png import write_png

BEST = [figures.Best("exact match", 71.0, -0.5), figures.Best("F1", 75.0, 0.25)]


@pytest.mark.parametrize(
    ("with_answer", "without_answer"),
    [
        (np.linspace(-8, 4, 200).tolist(), np.linspace(-3, 9, 150).tolist()),
        ([0.1, 0.2, 0.9], [1.0]),
        ([0.0], []),
        ([], [-3.0, -3.0]),
        ([1e6] + [float(n) for n in range(300)], [-1e300]),
    ],
    ids=["scores", "probabilities", "one", "all equal", "far out"],
)
def test_histograms_of_any_scores_hold_every_question(
    with_answer: list[float], without_answer: list[float], tmp_path: Path
) -> None:
    figure = figures.null_odds_figure(with_answer, without_answer, BEST, "$a$_b.json")
    bars = [one for one in figure.panels[0].series if isinstance(one, figures.Bars)]
    assert [sum(one.end) for one in bars] == pytest.approx([100] * (bool(with_answer) + bool(without_answer)))
    assert write_png(figure, tmp_path).is_file()


@pytest.mark.parametrize("thresholds", [[0.5], [-1.0, 0.0, 2.5], [0.0, 1e6], [5.0, 6.0]], ids=str)
def test_scores_hold_from_their_threshold_on_and_the_best_are_on_the_axis(thresholds: list[float]) -> None:
    values = [50.0 + number for number, _ in enumerate(thresholds)]
    sweep = figures.Sweep(thresholds, values, [value + 3 for value in values])
    (panel,) = figures.thresholds_figure(sweep, BEST).panels
    exact, f1, *best = (one for one in panel.series if isinstance(one, Line))
    assert exact.x == tuple(thresholds) and f1.y[0] == exact.y[0] + 3 and exact.step == f1.step == "after"
    assert panel.x.low is not None and panel.x.high is not None
    assert all(panel.x.low <= one.x[0] <= panel.x.high for one in best) and [one.y for one in best] == [(71,), (75,)]


def test_curves_are_shown_whatever_their_name() -> None:
    curves = [
        figures.Curve("exact", [1.0, 0.5, 0.6], [0.0, 0.1, 0.7], 43.0),
        figures.Curve("oracle", [1.0, 1.0], [0.0, 1.0], 100.0),
        figures.Curve("_own", [1.0], [0.0], 0.0),
    ]
    series = figures.precision_recall_figure(curves, "predictions.json").panels[0].series
    lines = {one.name: one for one in series if isinstance(one, Line) and one.step}
    assert [*lines] == [f"{name} average precision" for name in
                        ("exact match: 43.0 %", "every answer right: 100.0 %", "_own: 0.0 %")]  # fmt: skip
    exact = lines["exact match: 43.0 % average precision"]
    assert exact.x == pytest.approx((0, 10, 70)) and exact.y == pytest.approx((100, 50, 60))


def test_the_axis_holds_nearly_all_scores_and_probabilities_have_their_own() -> None:
    scores = np.concatenate([np.linspace(-5, 5, 995), [1e6] * 4, [-1e6]])
    low, high = figures._range(scores)
    assert -6 < low < -4.5 and 4.5 < high < 6
    assert figures._range(np.array([0.2, 0.3])) == (0.0, 1.0)
    assert figures._range(np.array([3.0])) == (2.0, 4.0)
