"""Pictures of SQuAD 2.0's no-answer scores: any numbers give a picture."""

from pathlib import Path

import numpy as np
import pytest

from analysis.render import squad_figures as figures

BEST = [figures.Best("exact match", 71.0, -0.5), figures.Best("F1", 75.0, 0.25)]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


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
def test_histograms_of_any_scores_are_drawn(
    with_answer: list[float], without_answer: list[float], tmp_path: Path
) -> None:
    assert is_picture(figures.draw_null_odds(tmp_path / "h.png", with_answer, without_answer, BEST, "$a$_b.json"))


@pytest.mark.parametrize("thresholds", [[0.5], [-1.0, 0.0, 2.5], [0.0, 1e6], [5.0, 6.0]], ids=str)
def test_scores_by_threshold_are_drawn(thresholds: list[float], tmp_path: Path) -> None:
    values = [50.0 + number for number, _ in enumerate(thresholds)]
    sweep = figures.Sweep(thresholds, values, [value + 3 for value in values])
    assert is_picture(figures.draw_scores_by_threshold(tmp_path / "t.png", sweep, BEST))


def test_curves_are_drawn_whatever_their_name(tmp_path: Path) -> None:
    curves = [
        figures.Curve("exact", [1.0, 0.5, 0.6], [0.0, 0.1, 0.7], 43.0),
        figures.Curve("oracle", [1.0, 1.0], [0.0, 1.0], 100.0),
        figures.Curve("_own", [1.0], [0.0], 0.0),
    ]
    assert is_picture(figures.draw_precision_recall(tmp_path / "p.png", curves, "predictions.json"))


def test_the_axis_holds_nearly_all_scores_and_probabilities_have_their_own() -> None:
    scores = np.concatenate([np.linspace(-5, 5, 995), [1e6] * 4, [-1e6]])
    low, high = figures._range(scores)
    assert -6 < low < -4.5 and 4.5 < high < 6
    assert figures._range(np.array([0.2, 0.3])) == (0.0, 1.0)
    assert figures._range(np.array([3.0])) == (2.0, 4.0)
