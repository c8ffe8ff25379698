"""Runs that go on otherwise than they were begun: another batch, other ranks, the other phase."""

import shutil
from pathlib import Path

from support.process_runs import finish, job, kill_after, losses
from support.training_runs import read_log


def test_another_batch_size_and_number_of_ranks_go_on_exactly_when_interrupted_again(
    data: Path, tmp_path: Path
) -> None:
    finish(job(tmp_path, data, "whole", steps=4), tmp_path / "a")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    changes = {"world_size": 2, "strategy": "ddp", "grad_accum_steps": 3, "micro_batch_size": 2, "steps": 10}
    whole, parts = job(tmp_path, data, "whole", **changes), job(tmp_path, data, "parts", **changes)
    finish(whole, tmp_path / "b")
    kill_after(parts, tmp_path / "c", 7, 0.0)  # two warnings, then the events up to the first checkpoint and a step
    finish(parts, tmp_path / "c")
    after = {(step, loss) for step, loss in losses(whole) if step >= 4}
    assert len(after) == 6 and {(step, loss) for step, loss in losses(parts) if step >= 4} == after
    changed = [event["changed"] for event in read_log(Path(parts["log"])) if event["event"] == "Resumed"]
    assert changed[0]["global_batch_size"] == [8, 12] and changed[0]["world_size"] == [1, 2] and changed[-1] == {}
