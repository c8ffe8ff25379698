"""What a comparison of heads found, as a table of the terminal and as JSON."""

from collections.abc import Sequence
from typing import Any

from analysis.metrics.comparison.trainings import HeadResult
from common.scores import score


def comparison_text(results: Sequence[HeadResult], majority: float | None = None) -> str:
    """Return one line for each evaluation of each head, and one for the best of each with the time it took; and
    by which score it is the best.

    Args:
        results: of analysis.metrics.comparison.trainings.
        majority: accuracy of always answering what is most frequent, a fraction.
    """
    lines = [f"{'head':<10}{'epoch':>7}{'training loss':>15}{'validation loss':>17}{'accuracy':>11}"]
    for result in results:
        for row in result.evaluations:
            lines.append(
                f"{result.head:<10}{row['epoch']:>7.2f}{_number(row['training_loss']):>15}"
                f"{_number(row['log_loss']):>17}{_percent(row['accuracy']):>11}{'  best' * row['best']}"
            )
    lines += ["", f"{'head':<10}{'accuracy':>11}{'at epoch':>10}{'time':>10}{'samples/s':>11}  status"]
    for result in results:
        best, rate = result.best, result.training["samples_per_second"]
        seconds = "-" if result.seconds is None else f"{result.seconds:,.1f} s"
        lines.append(
            f"{result.head:<10}{_percent(None if best is None else best['accuracy']):>11}"
            f"{'-' if best is None else format(best['epoch'], '.2f'):>10}{seconds:>10}"
            f"{'-' if rate is None else format(rate, ',.1f'):>11}  {result.training['status']}"
        )
    if majority is not None:
        lines.append(f"{'(majority)':<10}{_percent(majority):>11}")
    lines += [f"best: by {by}" for by in dict.fromkeys(score(result.best_by).label for result in results)]
    return "\n".join(lines)


def summary(result: HeadResult) -> dict[str, Any]:
    """Return what is told of a head as a whole, plain JSON values."""
    training = result.training
    names = ("status", "step_seconds", "loop_seconds", "epoch_seconds", "samples_per_second", "parameters", "reason")
    return {
        "head": result.head,
        **{name: training[name] for name in names},
        "best": None if result.best is None else dict(result.best),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
