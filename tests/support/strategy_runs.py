"""The same training by different strategies, on two gloo ranks and alone: losses, checkpoints, resume."""

import shutil
from pathlib import Path
from typing import Any

from support import training_runs
from support.killed_runs import finish
from support.training_runs import Recorder, read_log

STEPS, SAVED = 6, 3
COMMON: dict[str, Any] = {"micro_batch_size": 4, "dropout": 0.0, "steps": STEPS, "save_every": SAVED, "eval_every": 3}


def alone(data: Path, folder: Path, **changes: Any) -> Recorder:
    """Train in this process with strategy single, at the global batch that `pair` has."""
    heard = Recorder()
    wanted = training_runs.settings(data, **{**COMMON, "grad_accum_steps": 4, **changes})
    training_runs.run(wanted, folder, heard)
    return heard


def pair(data: Path, place: Path, strategy: str, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Train with two processes; return the events of the first."""
    fields = {**COMMON, "grad_accum_steps": 2, "world_size": 2, "strategy": strategy, **changes}
    log = place / "log"
    log.unlink(missing_ok=True)
    wanted = training_runs.settings(data, **fields)
    finish({"settings": wanted.to_json(), "folder": str(folder), "log": str(log)}, place)
    return read_log(log)


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events if event["event"] == "Progress"}


def only_first_checkpoint(folder: Path, copy: Path) -> Path:
    """Copy a run's folder as it was after SAVED updates."""
    copy.mkdir(parents=True)
    name = f"step-{SAVED:07d}"
    shutil.copytree(folder / name, copy / name)
    return copy
