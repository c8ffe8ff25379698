"""Small training runs on shards written for them, in this process or with a process per rank that a test can kill."""

import dataclasses
import json
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from support.warm_processes import start_world

PREDICTIONS, SEQ_LEN = 4, 32


def shards(folder: Path, seq_len: int = SEQ_LEN, seed: int = 0, sizes: tuple[int, int, int] = (48, 40, 20)) -> Path:
    """Write two training shards and a test shard."""
    from support.pretraining_shards import write_folder

    return write_folder(folder, seq_len, PREDICTIONS, seed, sizes)


def settings(data: Path | str, **changes: Any) -> Any:
    """Return settings of a model of two layers that trains in milliseconds per step."""
    from support.pretraining_shards import PIECES

    from bert.train.settings import make_settings

    values: dict[str, Any] = {
        "preset": "tiny", "strategy": "single", "precision": "fp32", "padding": "longest", "step": "fast",
        "data": str(data), "seq_len": SEQ_LEN, "max_predictions": PREDICTIONS,
        "vocab_size": len(PIECES), "micro_batch_size": 4, "grad_accum_steps": 1, "world_size": 1,
        "learning_rate": 2e-3, "warmup": 0.25, "steps": 8, "save_every": 3, "log_every": 1, **changes,
    }  # fmt: skip
    values.setdefault(
        "global_batch_size", values["micro_batch_size"] * values["grad_accum_steps"] * values["world_size"]
    )
    return make_settings(values)


class Recorder:
    """Takes a run's events; asks it to stop after an update, or fails there as a crash would."""

    def __init__(self, stop_after: int | None = None, crash_after: int | None = None) -> None:
        self.events: list[Any] = []
        self.stop_after, self.crash_after = stop_after, crash_after

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        last = self.progress[-1].applied_steps if self.progress else 0
        if self.crash_after is not None and last >= self.crash_after:
            raise KeyboardInterrupt

    @property
    def progress(self) -> list[Any]:
        return self.of("Progress")

    def of(self, name: str) -> list[Any]:
        return [event for event in self.events if type(event).__name__ == name]

    @property
    def losses(self) -> dict[int, str]:
        """Loss by step, every bit of it."""
        return {event.step: event.loss.hex() for event in self.progress}

    @property
    def warnings(self) -> str:
        return "\n".join(event.message for event in self.of("Warned"))

    def should_stop(self) -> bool:
        return (
            self.stop_after is not None and bool(self.progress) and (self.progress[-1].applied_steps >= self.stop_after)
        )


def run(wanted: Any, folder: Path, recorder: Recorder | None = None, strategy: Any = None) -> Any:
    """Make a run in this process; return its outcome."""
    from bert.observer import Observer
    from bert.parallel.base import SingleStrategy
    from bert.train.base_run import RunRequest
    from bert.train.run import run_training

    heard = recorder or Recorder()
    return run_training(RunRequest(wanted, folder, strategy or SingleStrategy(), Observer(), heard.should_stop, heard))


def start(job: dict[str, Any], place: Path) -> list[BaseProcess]:
    """Start one process per rank of a run described by `job`; its events go to job["log"].

    The job has `settings`, `folder` and `log`, where the first rank writes a line of JSON per event.
    """
    return start_world(be_rank, job, ranks=job["settings"]["world_size"], place=place)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the events written so far; a line that was cut off by a kill is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line]


def be_rank(job: dict[str, Any]) -> int:
    """Train as one rank of `job`; return the exit code."""
    import torch

    from bert.observer import Observer
    from bert.parallel import make_strategy
    from bert.train.base_run import RunRequest
    from bert.train.run import run_training
    from bert.train.settings import TrainSettings
    from common.errors import BertbenchError

    torch.set_num_threads(1)
    wanted = TrainSettings.from_json(job["settings"])
    strategy = make_strategy(wanted.strategy, wanted.strategy_options)
    strategy.setup("cpu")
    stop_file = Path(job["log"] + ".stop")
    code = 0
    with Path(job["log"]).open("a") as log:

        def report(event: Any) -> None:
            content = {"event": type(event).__name__, **dataclasses.asdict(event)}
            log.write(json.dumps(content, default=str) + "\n")
            log.flush()

        try:
            run_training(RunRequest(wanted, Path(job["folder"]), strategy, Observer(), stop_file.exists, report))
        except BertbenchError as error:
            Path(f"{job['log']}.error-{strategy.rank}").write_text(f"{type(error).__name__}: {error}")
            code = 3
    strategy.teardown()
    return code
