"""Figures of tasks' scores: SQuAD's no-answer scores, whatever they are."""

from pathlib import Path

import numpy as np
import pytest
from support.charts import titles, values

from analysis.render import figure as charts
from analysis.render import task_figures as figures

BEST = {"exact match": -0.5, "F1": 0.25}


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
    groups = [name for name in titles(figure) if "questions" in name]
    assert len(groups) == bool(with_answer) + bool(without_answer)
    assert all(sum(values(figure, name)) == pytest.approx(100, abs=0.1) for name in groups)
    assert charts.write_png(figure, tmp_path).is_file()


def test_curves_are_shown_whatever_their_name() -> None:
    curves = {"exact": ([1.0, 0.5, 0.6], [0.0, 0.1, 0.7], 43.0), "_own": ([1.0], [0.0], 0.0)}
    figure = figures.precision_recall_figure(curves, "predictions.json")
    names = ["exact match: 43.0 % average precision", "own: 0.0 % average precision"]
    assert list(titles(figure)) == names
    assert values(figure, names[0], 1) == [0, 10, 70] and values(figure, names[0]) == [100, 50, 60]


@pytest.mark.parametrize(
    ("scores", "low", "high"),
    [
        ([*np.linspace(-5, 5, 995), *[1e6] * 4, -1e6], (-6, -4.4), (4.4, 6)),
        ([0.2, 0.3], (0, 0.05), (0.95, 1)),
        ([3.0], (2, 2.1), (3.9, 4)),
    ],
    ids=["outliers", "probabilities", "one"],
)
def test_the_axis_holds_nearly_all_scores(
    scores: list[float], low: tuple[float, float], high: tuple[float, float]
) -> None:
    figure = figures.null_odds_figure(scores, [], {})
    (name,) = titles(figure)
    places = values(figure, name, 1)  # middles of the bars
    assert low[0] <= places[0] <= low[1] and high[0] <= places[-1] <= high[1]
