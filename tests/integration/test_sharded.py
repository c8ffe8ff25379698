"""Strategy fsdp on two gloo ranks: the losses of one, exact resume, checkpoints that every strategy reads."""

from pathlib import Path

import pytest
from support import training_runs
from support.process_runs import SAVED, alone, losses_of, only_first_checkpoint, pair


def test_sharded_ranks_train_as_one_and_their_checkpoints_go_on_alone(tmp_path: Path) -> None:
    data = training_runs.shards(tmp_path / "data")
    reference = alone(data, tmp_path / "alone")
    whole = pair(data, tmp_path / "a", "fsdp", tmp_path / "sharded")
    expected = {event.step: event.loss for event in reference.progress}
    assert losses_of(whole) == pytest.approx(expected, rel=1e-5)
    scores = [event["evaluation"]["values"]["mlm_loss"] for event in whole if event["event"] == "Evaluated"]
    assert scores == pytest.approx([e.evaluation.values["mlm_loss"] for e in reference.of("Evaluated")], rel=1e-4)
    # Interrupted after the first checkpoint: the same again, bit by bit, and alone up to rounding.
    copy = only_first_checkpoint(tmp_path / "sharded", tmp_path / "interrupted")
    after = {step: loss for step, loss in losses_of(whole).items() if step >= SAVED}
    assert losses_of(pair(data, tmp_path / "b", "fsdp", copy)) == after
    single = alone(data, only_first_checkpoint(tmp_path / "sharded", tmp_path / "on alone"))
    assert {event.step: event.loss for event in single.progress} == pytest.approx(after, rel=1e-5)
    assert "strategy single instead of fsdp" in single.warnings
