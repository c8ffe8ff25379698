"""Training runs in processes of their own: killed and started again, and the same one by different strategies."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

from support.training_runs import Recorder, read_log, run, settings, start
from support.warm_processes import kill, wait

from bert.checkpoints.read import saved_steps
from bert.train.checkpoint import read

STEPS = 12


def job(place: Path, data: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Describe a run, for `training_runs.start`."""
    wanted = settings(data, **{"steps": STEPS, "save_every": 2, "grad_accum_steps": 2, **changes})
    return {"settings": wanted.to_json(), "folder": str(place / name), "log": str(place / f"{name}.jsonl")}


def finish(wanted: dict[str, Any], place: Path) -> None:
    """Make a run to its end."""
    codes = wait(start(wanted, place), place)
    errors = "".join(path.read_text() for path in [*place.glob("errors-*.txt"), *place.glob("log.error*")])
    assert codes == [0] * len(codes), f"exit codes {codes}: {errors[-3000:]}"


def losses(wanted: dict[str, Any]) -> list[tuple[int, str]]:
    """Step and loss, every bit of it, in the order they were made."""
    events = read_log(Path(wanted["log"]))
    return [(event["step"], float(event["loss"]).hex()) for event in events if event["event"] == "Progress"]


def kill_after(wanted: dict[str, Any], place: Path, reports: int, more_seconds: float) -> bool:
    """Start a run, and kill it some time after it has made so many reports; False: it had ended before."""
    log = Path(wanted["log"])
    target = len(read_log(log)) + reports
    processes = start(wanted, place)
    try:
        while len(read_log(log)) < target and any(process.is_alive() for process in processes):
            time.sleep(0.002)
        time.sleep(more_seconds)
        return any(process.is_alive() for process in processes)
    finally:
        kill(processes)


def survives(place: Path, data: Path, points: int, seed: int, steps: int = STEPS, **changes: Any) -> int:
    """Kill a run at random points until it has ended; hold its losses against an undisturbed one's."""
    whole, broken = (job(place, data, name, steps=steps, **changes) for name in ("whole", "broken"))
    finish(whole, place / "a")
    expected = dict(losses(whole))
    drawn = random.Random(seed)
    killed = 0
    for _ in range(points):
        killed += kill_after(broken, place / "b", drawn.randint(1, 2 * steps // points), drawn.uniform(0, 0.1))
        log = Path(broken["log"])
        log.write_text("".join(line + "\n" for line in log.read_text().split("\n")[:-1]))
        for step in saved_steps(Path(broken["folder"])):
            read(Path(broken["folder"]) / f"step-{step:07d}")  # whole, at every instant
    finish(broken, place / "b")
    found = losses(broken)
    assert set(found) == set(expected.items()), "also the steps that were made twice"
    assert len(expected) == steps
    return killed


SAVED = 3
COMMON: dict[str, Any] = {"micro_batch_size": 4, "dropout": 0.0, "steps": 6, "save_every": SAVED, "eval_every": 3}


def alone(data: Path, folder: Path, **changes: Any) -> Recorder:
    """Train in this process with strategy single, at the global batch that `pair` has."""
    heard = Recorder()
    wanted = settings(data, **{**COMMON, "grad_accum_steps": 4, **changes})
    run(wanted, folder, heard)
    return heard


def pair(data: Path, place: Path, strategy: str, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Train with two processes; return the events of the first."""
    fields = {**COMMON, "grad_accum_steps": 2, "world_size": 2, "strategy": strategy, **changes}
    log = place / "log"
    log.unlink(missing_ok=True)
    wanted = settings(data, **fields)
    finish({"settings": wanted.to_json(), "folder": str(folder), "log": str(log)}, place)
    return read_log(log)


def losses_of(events: list[dict[str, Any]]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events if event["event"] == "Progress"}


def only_first_checkpoint(folder: Path, copy: Path) -> Path:
    """Copy a run's folder as it was after SAVED updates."""
    copy.mkdir(parents=True)
    name = f"step-{SAVED:07d}"
    shutil.copytree(folder / name, copy / name)
    return copy
