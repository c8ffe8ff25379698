"""What a rank of a training does between joining the others and leaving them, and what rank 0 writes down meanwhile:
the loss curve, the events (also to the log), scalars for the loggers."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bench.implementations import OURS, TRAININGS
from bench.loggers import Loggers
from bench.run.clock import Row, StepClock
from bench.run.resources import used_memory
from bert.checkpoints.read import checkpoint_path
from bert.data.batch import BatchCounts
from bert.memory import parameter_count
from bert.model.config import model_config
from bert.parallel.base import Strategy
from bert.tasks import make_task
from bert.tasks.base import Evaluation
from bert.train.base_run import RunRequest
from bert.train.events import Best, Evaluated, Event, Progress, Resumed, RunOutcome, Saved, Warned
from bert.train.settings import TrainSettings
from common.registry import load
from common.scores import score
from records.files import LineWriter, RowWriter
from records.run import TrialDirectory
from records.schema import CURVE_COLUMNS, STEP_COLUMNS
from records.training import TrainRun, write_curve
from records.trial import Trial


def run_attempt(
    directory: TrialDirectory, trial: Trial, strategy: Strategy, should_stop: Callable[[], bool]
) -> dict[str, Any]:
    """Train until the run is complete or `should_stop` asks for a stop; return the rank's record.

    This attempt writes into `directory`; checkpoints, curve and scalars go to the run that it lies in.
    """
    run = TrainRun(directory.path.parent.parent)
    settings = TrainSettings.from_json(dict(trial.training))
    model_flops, record = _counted(settings, trial.implementation)
    recorder: TrainRecorder | None = None
    with ExitStack() as stack:
        write_row = stack.enter_context(RowWriter(directory.steps_csv(strategy.rank), STEP_COLUMNS)).write
        if strategy.rank == 0:
            recorder = stack.enter_context(closing(TrainRecorder(run, directory, settings, write_row)))
        clock = StepClock(trial.device, model_flops, recorder.row if recorder else write_row)
        report = recorder.report if recorder else lambda event: None
        run_training = load(TRAININGS, trial.implementation, "implementation of training runs")
        outcome: RunOutcome = run_training(RunRequest(settings, run.checkpoints, strategy, clock, should_stop, report))
    backend = dist.get_backend() if dist.is_initialized() else None
    unknown = dict.fromkeys(("mfu", "measured_peak_flops"), "a training run measures no peak")
    record |= {**used_memory(strategy.device), "backend": backend, "unknown": unknown}
    if recorder is None:
        return record
    if recorder.summary["evaluation"] is None and outcome.evaluation is not None:
        recorder.summary["evaluation"] = {"applied_steps": None, **_flat(outcome.evaluation)}
    record["outcome"] = {
        **recorder.summary,
        "best": _plain(outcome.best),
        "total_steps": settings.steps,
        **{name: getattr(outcome, name) for name in ("finished", "applied_steps", "skipped_steps", "samples_seen")},
        "checkpoint": None if outcome.checkpoint is None else outcome.checkpoint.name,
    }
    return record


def _counted(
    settings: TrainSettings, implementation: str
) -> tuple[Callable[[BatchCounts], float | None], dict[str, Any]]:
    """Return the FLOPs of a step by its batches, and what a rank records of its model, the number of parameters."""
    if settings.model:
        from bench.implementations.hugging_face import traced_model

        given = traced_model(settings, make_task(settings.task, settings.task_options), implementation)
        parameters = sum(weight.numel() for weight in given.on_meta.parameters())
        return given.model_flops, {"parameters": parameters, **given.record()}
    config = model_config(settings)
    # Only our vocabulary is padded.
    shape = config if implementation == OURS else config.replace(vocab_multiple=1)
    parameters = parameter_count(shape, settings.task, settings.task_options)
    return make_task(settings.task, settings.task_options).step(config).model_flops, {"parameters": parameters}


class TrainRecorder:
    """Takes the events of a training, and the rows of its step clock, on rank 0; hands scalars to the loggers.

    Steps that were made before, by an attempt that ended without saving them, leave the curve and TensorBoard when the
    first of them is made again. Raises SchemaError where the curve so far is damaged, and StorageError.
    """

    def __init__(
        self, run: TrainRun, directory: TrialDirectory, settings: TrainSettings, on_row: Callable[[Row], None]
    ) -> None:
        self._run, self._settings, self._on_row = run, settings, on_row
        self._events = LineWriter(directory.events_jsonl)
        self._curve: LineWriter | None = None
        self._step_ms: dict[int, float] = {}  # of steps that the loggers do not have yet
        self._clocked: list[float] = []  # times of the steps since the last progress, ms
        self._began: float | None = None  # time.monotonic()
        self._last: Progress | None = None
        self._shown: Progress | None = None
        self.summary: dict[str, Any] = {
            **dict.fromkeys(("first_step", "begun_from", "loss", "evaluation", "best")),
            "steps_made": 0,
            "samples": 0,
            "loss_parts": {},
            "logged_to": [],
        }
        """What this attempt did so far, in plain values."""
        self._loggers = Loggers(lambda message: self.report(Warned(message=message)))

    def row(self, row: Row) -> None:
        """Take a row of the step clock: how long a step took."""
        self._on_row(row)
        if self._began is None:
            self._began = time.monotonic() - row["step_time_ms"] / 1000
        self._step_ms[row["step"]] = row["step_time_ms"]
        self._clocked.append(row["step_time_ms"])

    def report(self, event: Event) -> None:
        """Take an event of bert.train."""
        match event:
            case Progress():
                self._progress(event)
            case Evaluated():
                self._evaluated(event)
            case Saved():
                self._show_progress()
                if self._curve is not None:
                    self._curve.sync()
                self._loggers.flush()
                self.summary["best"] = best = _plain(event.best)
                fields = {name: getattr(event, name) for name in ("applied_steps", "seconds", "size_bytes")}
                fields |= {f"best_{name}": value for name, value in (best or {}).items()}
                self._write("saved", path=event.path.name, **fields)
            case Resumed():
                fields = {**asdict(event), "path": str(event.path)}
                self.summary["begun_from"] = {name: fields[name] for name in ("path", "applied_steps", "changed")}
                self._write("resumed", **fields)
            case Warned():
                self._write("warned", message=event.message)

    def _progress(self, event: Progress) -> None:
        if self._curve is None:
            rows = self._run.read_curve()
            write_curve(self._run.curve_csv, [row for row in rows if row["step"] < event.step])
            self._curve = LineWriter(self._run.curve_csv, "a")
            self._open_loggers(event.applied_steps if event.applied else event.applied_steps + 1)
            self.summary["first_step"] = event.step
        # A checkpoint must never be ahead of the curve, whenever the process is killed.
        row = {**asdict(event), "samples": event.samples_seen}
        self._curve.line(",".join(str(row[name]) for name in CURVE_COLUMNS))
        step_ms, samples = self._step_ms.pop(event.step, None), self._settings.global_batch_size
        scalars = {
            "loss": event.loss,
            **event.parts,
            **{name: getattr(event, name) for name in ("learning_rate", "loss_scale", "fp8_saturated")},
            "percent_complete": 100 * event.applied_steps / self._settings.steps,
            "samples_per_second": samples / step_ms * 1000 if step_ms else None,
        }
        self._loggers.log(event.applied_steps, {f"train/{name}": value for name, value in scalars.items()})
        self.summary["steps_made"] += 1
        self.summary["samples"] += samples
        self.summary |= {**_finite({"loss": event.loss}), "loss_parts": _finite(event.parts)}
        self._last = event
        if (event.step + 1) % self._settings.log_every == 0:
            self._show_progress()

    def _show_progress(self) -> None:
        """Report the progress of the run once."""
        event = self._last
        if event is None or event is self._shown:
            return
        self._shown, clocked_ms = event, sum(self._clocked)
        rate = 1000 * len(self._clocked) * self._settings.global_batch_size / clocked_ms if clocked_ms else None
        self._clocked, left = [], None
        if self._began is not None:
            seconds = time.monotonic() - self._began
            left = seconds / self.summary["steps_made"] * max(0, self._settings.steps - event.applied_steps)
        own = ("step", "applied_steps", "learning_rate", "loss_scale", "fp8_saturated")
        self._write(
            "progress",
            **{name: getattr(event, name) for name in own},
            total_steps=self._settings.steps,
            **_finite({"loss": event.loss, "samples_per_second": rate, "seconds_left": left}),
        )

    def _evaluated(self, event: Evaluated) -> None:
        self._show_progress()
        scores = _flat(event.evaluation)
        self.summary["evaluation"] = {"applied_steps": event.applied_steps, **scores}
        if self._curve is None:  # a run that only evaluates makes no step
            self._open_loggers(event.applied_steps)
        headlines = {name: value for name, value in event.evaluation.values.items() if score(name).headline}
        self._loggers.log(event.applied_steps, {f"eval/{name}": value for name, value in headlines.items()})
        self._loggers.flush()
        fields = {"applied_steps": event.applied_steps, "seconds": event.seconds, "best": event.best}
        self._write("evaluated", **fields, **scores)

    def _open_loggers(self, first_step: int) -> None:
        opened = self._loggers.open(self._run, first_step, self._settings.to_json())
        self.summary["logged_to"] = list(opened)
        if run_ids := {name: run_id for name, run_id in opened.items() if run_id is not None}:
            self._write("logging", run_ids=run_ids)

    def _write(self, event: str, **fields: Any) -> None:
        self._events.line(json.dumps({"event": event, "time_ns": time.time_ns(), **fields}, allow_nan=False))
        text = ", ".join(f"{name} {value}" for name, value in fields.items())
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {event}: {text}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Write out what is held back, also when the training failed."""
        self._show_progress()
        self._loggers.close(finished=self._last is None or self._last.applied_steps >= self._settings.steps)
        self._events.close()
        if self._curve is not None:
            self._curve.sync()
            self._curve.close()


def _flat(evaluation: Evaluation) -> dict[str, Any]:
    return _finite({**evaluation.values, "samples": evaluation.samples, **evaluation.counts})


def _plain(best: Best | None) -> dict[str, Any] | None:
    if best is None:
        return None
    name = checkpoint_path(Path(), best.applied_steps).name
    return {"checkpoint": name, "applied_steps": best.applied_steps, "score": best.score, "value": best.value}


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """None for what is not finite: JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
