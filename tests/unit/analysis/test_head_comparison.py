"""Heads held against each other: which evaluation of a training counts as the best."""

import json
from pathlib import Path

import pytest

from analysis.metrics.comparison.trainings import compare_heads
from analysis.render.tables import Table
from analysis.render.training_tables import head_summary, heads_blocks
from records.files import write_record
from records.training import TrainRun, events_jsonl, write_curve
from records.trial import Trial


def training(folder: Path) -> TrainRun:
    """A training of 3 updates, evaluated after each: accuracy is best after the 2nd, log loss after the 3rd."""
    run = TrainRun(folder)
    trial = Trial(kind="train", task="gap", training=(("steps", 3),))
    directory = run.run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    scores = [(0.5, 0.9, 40.0), (0.75, 0.6, 60.0), (0.75, 0.4, None)]
    events = [
        {"event": "evaluated", "time_ns": 1, "applied_steps": step + 1, "seconds": 1.0, "samples": 9,
         "accuracy": accuracy, "log_loss": loss, "gap_f1": gap_f1}
        for step, (accuracy, loss, gap_f1) in enumerate(scores)
    ]  # fmt: skip
    events_jsonl(directory).write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = [{"step": n, "applied_steps": n + 1, "samples": 4 * (n + 1), "loss": 1.0} for n in range(3)]
    write_curve(run.curve_csv, [{**row, "learning_rate": 0.1} for row in rows])
    write_record(run.state_json, {"finished": True, "status": "ok"})
    return run


@pytest.mark.parametrize(
    ("best_by", "higher_is_better", "epoch", "words"),
    [
        ("accuracy", True, 2.0, "accuracy"),  # the earliest of several, as the training has it
        ("log_loss", False, 3.0, "log loss"),
        ("gap_f1", True, 2.0, "GAP F1"),
    ],
)
def test_the_best_evaluation_is_the_one_whose_checkpoint_the_training_kept(
    tmp_path: Path, best_by: str, higher_is_better: bool, epoch: float, words: str
) -> None:
    (result,) = compare_heads({"mul": training(tmp_path / "mul")}, 4, best_by, higher_is_better)
    assert result.finished and result.best is not None and result.best["epoch"] == epoch
    assert [row["epoch"] for row in result.evaluations if row["best"]] == [epoch]
    assert head_summary(result)["best"]["scores"][best_by] == result.best["scores"][best_by]
    epochs, _, by = heads_blocks([result])
    assert isinstance(epochs, Table)
    assert [row[1].text for row in epochs.rows if row[-1].text == "best"] == [f"{epoch:.2f}"]
    assert by == f"best: by {words}"


def test_a_training_without_the_score_has_no_best_evaluation(tmp_path: Path) -> None:
    (result,) = compare_heads({"mul": training(tmp_path / "mul")}, 4, "matthews", True)
    assert result.best is None and len(result.evaluations) == 3
