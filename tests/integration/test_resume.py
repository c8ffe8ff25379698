"""Real processes that are killed and started again: one, and two over gloo."""

import time
from pathlib import Path

import pytest
from support.process_runs import STEPS, finish, job, kill_after, losses, survives
from support.training_runs import read_log, start
from support.warm_processes import wait

from common.locks import locked

POINTS = 3


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("ddp", 2)])
def test_killed_at_random_points_and_resumed_the_losses_are_identical(
    data: Path, tmp_path: Path, strategy: str, ranks: int
) -> None:
    assert survives(tmp_path, data, POINTS, seed=ranks, strategy=strategy, world_size=ranks)


def test_three_ranks_add_up_in_the_same_order_after_a_resume(data: Path, tmp_path: Path) -> None:
    changes = {"world_size": 3, "strategy": "ddp", "grad_accum_steps": 1, "steps": 8, "save_every": 3}
    whole, parts = job(tmp_path, data, "whole", **changes), job(tmp_path, data, "parts", **changes)
    finish(whole, tmp_path / "a")
    kill_after(parts, tmp_path / "b", 5, 0.0)
    finish(parts, tmp_path / "b")
    assert [event["applied_steps"] for event in read_log(Path(parts["log"])) if event["event"] == "Resumed"] != []
    assert set(losses(parts)) == set(losses(whole))


def test_a_stop_asked_of_any_rank_stops_all_at_one_step_and_goes_on_exactly(data: Path, tmp_path: Path) -> None:
    changes = {"world_size": 2, "strategy": "ddp", "save_every": 100, "precision": "bf16", "eval_every": 5}
    whole, parts = job(tmp_path, data, "whole", **changes), job(tmp_path, data, "parts", **changes)
    finish(whole, tmp_path / "a")
    processes = start(parts, tmp_path / "b")
    log, stop = Path(parts["log"]), Path(parts["log"] + ".stop")
    while len(losses(parts)) < 3 and all(process.is_alive() for process in processes):
        time.sleep(0.002)
    stop.touch()
    assert wait(processes, tmp_path / "b") == [0, 0]
    stop.unlink()
    saved = [event["applied_steps"] for event in read_log(log) if event["event"] == "Saved"]
    assert len(saved) == 1 and 3 <= saved[0] <= STEPS
    finish(parts, tmp_path / "b")
    assert losses(parts) == losses(whole)


def test_a_failure_on_one_rank_is_raised_on_all(data: Path, tmp_path: Path) -> None:
    wanted = job(tmp_path, data, "run", world_size=2, strategy="ddp", steps=4)
    finish(wanted, tmp_path / "a")
    wanted = job(tmp_path, data, "run", world_size=2, strategy="ddp", steps=6, seed=1)
    assert wait(start(wanted, tmp_path / "a"), tmp_path / "a") == [3, 3]
    messages = [Path(f"{wanted['log']}.error-{rank}").read_text() for rank in range(2)]
    assert all("--seed 42" in message and "--seed 1" in message for message in messages)
    held = job(tmp_path, data, "run", world_size=2, strategy="ddp", steps=6)
    with locked(Path(held["folder"]), "x", "y"):
        assert wait(start(held, tmp_path / "a"), tmp_path / "a") == [3, 3]
    messages = [Path(f"{wanted['log']}.error-{rank}").read_text() for rank in range(2)]
    assert all(message.startswith("LockedError") for message in messages)
