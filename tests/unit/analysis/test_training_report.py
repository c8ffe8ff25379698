"""The training page: true figures, axes that agree, and damaged records."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.charts import values
from support.fake_run import EVALUATED, curve_row, write_events, write_training

from analysis.load import load_run
from analysis.render.figure import Figure
from analysis.render.page import Figures, Section, Text
from analysis.render.tables import Table
from analysis.render.training import training_part
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun, write_curve
from records.trial import Trial

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("pictures_of_one_pixel")]


@pytest.fixture
def attempt(tmp_path: Path) -> TrialDirectory:
    return write_training(tmp_path / "run")


def second_attempt(attempt: TrialDirectory, **fields: Any) -> TrialDirectory:
    other = Trial(kind="train", preset="tiny", round=1, training=(("steps", 40),), **fields)
    directory = run_of(attempt).run.trial(other.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, other.to_json())
    return directory


def run_of(attempt: TrialDirectory) -> TrainRun:
    return TrainRun(attempt.path.parents[1])


def part(attempt: TrialDirectory) -> SimpleNamespace:
    """Return what the page shows of a training: its answer, figures, tables and problems."""
    place = run_of(attempt)
    (answer,), (section,) = training_part(place, load_run(place.run))
    blocks = [*section.blocks, *(one for part in section.blocks if isinstance(part, Section) for one in part.blocks)]
    return SimpleNamespace(
        answer=answer,
        figures=[figure for block in blocks if isinstance(block, Figures) for figure in block.figures],
        tables=[block for block in blocks if isinstance(block, Table)],
        problems=[block.text for block in blocks if isinstance(block, Text)],
    )


def cards(attempt: TrialDirectory) -> dict[str, str]:
    return {card.label: card.value for card in part(attempt).answer.cards}


def drawn(attempt: TrialDirectory, name: str) -> Figure:
    (figure,) = [one for one in part(attempt).figures if one.name == name]
    return figure


def test_the_training_loss_is_a_median_of_several_steps_not_the_last_one(attempt: TrialDirectory) -> None:
    write_curve(
        run_of(attempt).curve_csv, [curve_row(step, step + 1, 5.0 if step < 39 else 500.0) for step in range(40)]
    )
    assert cards(attempt)["training loss"] == "5.000"
    write_curve(run_of(attempt).curve_csv, [curve_row(step, step + 1, math.nan) for step in range(40)])
    assert cards(attempt)["training loss"] == "not finite"


def test_losses_and_evaluations_share_the_axis_also_after_skipped_steps(attempt: TrialDirectory) -> None:
    write_curve(run_of(attempt).curve_csv, [curve_row(step, max(0, step - 9)) for step in range(40)])
    write_events(attempt, EVALUATED, EVALUATED | {"applied_steps": 30})
    write_record(run_of(attempt).state_json, {"loss": "MLM + NSP"})
    figure = drawn(attempt, "loss")
    assert part(attempt).problems == []
    trained, both = values(figure, "running median", 1), "held-out loss (MLM + NSP)"
    assert (trained[0], trained[-1]) == (0, 30)
    assert values(figure, both, 1) == [20, 30] and values(figure, both) == [3.5, 3.5], "the training loss's sum"
    assert values(figure, "held-out MLM loss") == [3.0, 3.0]


def test_each_attempt_is_a_row(attempt: TrialDirectory) -> None:
    assert part(attempt).answer.headline == "BERT-tiny was trained for 40 of 40 steps of 8 samples."
    directory = second_attempt(attempt, micro_batch_size=32)
    write_events(directory, {"event": "resumed", "path": "x", "applied_steps": 3, "new_phase": False})
    shown = part(attempt)
    assert shown.answer.sentences[0].startswith("The last attempt ended with status interrupted: ")
    (table,) = [table for table in shown.tables if table.name == "attempts"]
    assert [(row["from_step"], row["global_batch_size"]) for row in table.rows] == [(0, 8), (3, 32)]


def test_the_best_checkpoint_is_named(attempt: TrialDirectory) -> None:
    best = {"best_checkpoint": "step-0000020", "best_applied_steps": 20, "best_score": "mlm_accuracy",
            "best_value": 0.25}  # fmt: skip
    saved = {"event": "saved", "applied_steps": 40, "path": "step-0000040", "seconds": 0.1, "size_bytes": 9}
    write_events(attempt, EVALUATED, EVALUATED | {"applied_steps": 30, "mlm_accuracy": 0.2}, saved | best)
    found = part(attempt)
    assert "The best checkpoint is step-0000020: MLM accuracy 25.0 % after step 20." in found.answer.sentences
    (table,) = [table for table in found.tables if table.name == "evaluations"]
    assert [row["applied_steps"] for row in table.rows] == [20, 30] and found.problems == []
    write_events(attempt, EVALUATED, saved)
    assert not any("best" in sentence for sentence in part(attempt).answer.sentences)
