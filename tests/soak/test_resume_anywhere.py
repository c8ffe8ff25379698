"""Killed at twenty random points, half saved checkpoints among them, and resumed: one process and two."""

from pathlib import Path

import pytest
from support import training_runs
from support.killed_runs import survives

POINTS, STEPS = 20, 40


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("strategy", "ranks", "precision", "optimizer"), [("single", 1, "fp16", "adamw"), ("ddp", 2, "fp32", "lamb")]
)
def test_killed_at_twenty_random_points_the_losses_are_identical(
    tmp_path: Path, strategy: str, ranks: int, precision: str, optimizer: str
) -> None:
    data = training_runs.shards(tmp_path / "data")
    killed = survives(
        tmp_path, data, POINTS, seed=10 + ranks, steps=STEPS, strategy=strategy, world_size=ranks, precision=precision,
        optimizer=optimizer, save_every=1,
    )  # fmt: skip
    assert killed >= POINTS // 2
