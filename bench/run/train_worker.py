"""What a rank of a training does between joining the others and leaving them, and what rank 0 writes down meanwhile:
the loss curve, the events, scalars for the loggers, lines in the log."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from bench.implementations import OURS, TRAININGS
from bench.loggers import Loggers
from bench.run.clock import StepClock
from bench.run.recorder import step_writer
from bert.data.batch import BatchCounts
from bert.model.config import model_config
from bert.model.memory import parameter_count
from bert.parallel.base import Strategy
from bert.speed.registry import left_out_text
from bert.tasks import make_task, task_step
from bert.tasks.base import Evaluation
from bert.train.base_run import RunRequest
from bert.train.checkpoint import checkpoint_path
from bert.train.events import (
    Best,
    Evaluated,
    Event,
    Optimized,
    Progress,
    Resumed,
    RunOutcome,
    Saved,
    Warned,
)
from bert.train.settings import TrainSettings
from common.atomic import storage_errors
from common.registry import load
from common.scores import evaluation_text, score
from records.run import TrialDirectory
from records.training import TrainRun, curve_fields, events_jsonl, write_curve
from records.trial import Trial

RunTraining = Callable[[RunRequest], RunOutcome]


def run_attempt(
    directory: TrialDirectory, trial: Trial, strategy: Strategy, should_stop: Callable[[], bool]
) -> dict[str, Any]:
    """Train until the run is complete or a stop is asked for; return the rank's record.

    Args:
        directory: where this attempt writes; checkpoints, curve and scalars go to the run that it lies in.
        trial: its configuration.
        strategy: set up.
        should_stop: whether this rank was asked to stop.
    """
    run = TrainRun(directory.path.parent.parent)
    settings = TrainSettings.from_json(dict(trial.training))
    model_flops, record = _counted(settings, trial.implementation)
    with ExitStack() as stack:
        writer = stack.enter_context(step_writer(directory.steps_csv(strategy.rank)))
        recorder: TrainRecorder | None = None
        if strategy.rank == 0:
            recorder = TrainRecorder(run, directory, settings)
            stack.callback(recorder.close)

        def on_row(row: dict[str, Any]) -> None:
            writer.write(row)
            if recorder is not None:
                recorder.row(row)

        def report(event: Event) -> None:
            if recorder is not None:
                recorder.report(event)

        clock = StepClock(trial.device, model_flops, on_row)
        run_training: RunTraining = load(TRAININGS, trial.implementation, "implementation of training runs")
        outcome = run_training(RunRequest(settings, run.checkpoints, strategy, clock, should_stop, report))
    if recorder is None:
        return record
    if recorder.summary["evaluation"] is None and outcome.evaluation is not None:
        recorder.summary["evaluation"] = {"applied_steps": None, **flat(outcome.evaluation)}
    return {
        **record,
        "outcome": {
            **recorder.summary,
            "best": best_checkpoint(outcome.best),
            "finished": outcome.finished,
            "applied_steps": outcome.applied_steps,
            "total_steps": settings.steps,
            "skipped_steps": outcome.skipped_steps,
            "samples_seen": outcome.samples_seen,
            "checkpoint": None if outcome.checkpoint is None else outcome.checkpoint.name,
        },
    }


def _counted(
    settings: TrainSettings, implementation: str
) -> tuple[Callable[[BatchCounts], float | None], dict[str, Any]]:
    """Return the FLOPs of a step by its batches, and what a rank records of its model, the number of parameters."""
    if settings.model:
        from bench.implementations.given import traced_model

        given = traced_model(settings, make_task(settings.task, settings.task_options), implementation)
        return given.model_flops, {"parameters": given.parameters, **given.record()}
    config = model_config(settings)
    # Only our vocabulary is padded.
    shape = config if implementation == OURS else config.replace(vocab_multiple=1)
    parameters = parameter_count(shape, settings.task, settings.task_options)
    return task_step(settings.task, settings.task_options, config).model_flops, {"parameters": parameters}


class TrainRecorder:
    """Takes the events of a training, and the rows of its step clock, on rank 0; hands scalars to the loggers.

    Steps that were made before, by an attempt that ended without saving them, leave the curve and TensorBoard when the
    first of them is made again.

    Raises:
        SchemaError: the curve so far is damaged.
        StorageError: the disk is full or the folder cannot be written.
    """

    def __init__(self, run: TrainRun, directory: TrialDirectory, settings: TrainSettings) -> None:
        self._run = run
        self._settings = settings
        self._events_path = events_jsonl(directory)
        self._curve: TextIO | None = None
        self._step_ms: dict[int, float] = {}
        self._clocked_steps, self._clocked_ms = 0, 0.0
        self._began: float | None = None  # time.monotonic()
        self._shown: Progress | None = None
        self._last: Progress | None = None
        self.summary: dict[str, Any] = {
            "first_step": None,
            "steps_made": 0,
            "samples": 0,
            "begun_from": None,
            "loss": None,
            "loss_parts": {},
            "evaluation": None,
            "best": None,
            "logged_to": [],
            "levers": None,
            "levers_left_out": {},
        }
        """What this attempt did so far, in plain values."""
        with storage_errors(self._events_path):
            self._events = self._events_path.open("w", encoding="utf-8")
        self._loggers = Loggers(self._warn)  # imported now, where no rank waits for it

    def row(self, row: Mapping[str, Any]) -> None:
        """Take a row of the step clock: how long a step took."""
        if self._began is None:
            self._began = time.monotonic() - float(row["step_time_ms"]) / 1000
        self._step_ms[row["step"]] = float(row["step_time_ms"])
        self._clocked_steps += 1
        self._clocked_ms += float(row["step_time_ms"])

    def report(self, event: Event) -> None:
        """Take an event of bert.train."""
        if isinstance(event, Progress):
            self._progress(event)
        elif isinstance(event, Evaluated):
            self._show_progress()
            found = flat(event.evaluation)
            self.summary["evaluation"] = {"applied_steps": event.applied_steps, **found}
            self._evaluated(event)
            own = {"applied_steps": event.applied_steps, "seconds": event.seconds, "best": event.best}
            self._write("evaluated", **own, **found)
            best = ", the best so far" if event.best else ""
            _say(f"evaluation after {event.applied_steps} steps: {evaluation_text(found)}, {event.seconds:.1f} s{best}")
        elif isinstance(event, Saved):
            self._show_progress()
            self._flush_curve(to_disk=True)
            self._loggers.flush()
            own = {"applied_steps": event.applied_steps, "seconds": event.seconds, "size_bytes": event.size_bytes}
            self.summary["best"] = best_checkpoint(event.best)
            best_fields = {f"best_{name}": value for name, value in (self.summary["best"] or {}).items()}
            self._write("saved", path=event.path.name, **own, **best_fields)
            _say(f"saved {event.path} ({event.size_bytes / 2**20:.1f} MiB, {event.seconds:.1f} s)")
        elif isinstance(event, Resumed):
            begun_from = {"path": str(event.path), "applied_steps": event.applied_steps}
            self.summary["begun_from"] = {**begun_from, "changed": event.changed}
            self._write("resumed", **{**asdict(event), "path": str(event.path)})
            what = "begins from" if event.new_phase else f"resumes at step {event.applied_steps} from"
            _say(f"{what} {event.path}{'' if event.moments else ', without the moments of the optimizer'}")
            for names, side in ((event.missing, "begin with random values"), (event.unused, "are not used")):
                if names:
                    _say(f"{len(names)} weights {side}: {', '.join(names)}")
        elif isinstance(event, Optimized):
            self.summary |= {"levers": event.levers, "levers_left_out": dict(event.left_out)}
            self._write("optimized", levers=event.levers, left_out=dict(event.left_out))
            without = f"; {left_out_text(event.left_out)}" if event.left_out else ""
            _say(f"optimizations: {event.levers}{without}")
        elif isinstance(event, Warned):
            self._write("warned", message=event.message)
            _say(f"warning: {event.message}")

    def _progress(self, event: Progress) -> None:
        if self._curve is None:
            self._begin(event)
        assert self._curve is not None
        row = {
            "step": event.step,
            "applied_steps": event.applied_steps,
            "samples": event.samples_seen,
            "loss": event.loss,
            "learning_rate": event.learning_rate,
        }
        with storage_errors(self._run.curve_csv):
            self._curve.write(",".join(map(str, curve_fields(row))) + "\n")
            self._curve.flush()  # a checkpoint must never be ahead of it, whenever the process is killed
        self._log_step(event)
        self.summary["steps_made"] += 1
        self.summary["samples"] += self._settings.global_batch_size
        self.summary |= {**finite({"loss": event.loss}), "loss_parts": finite(event.parts)}
        self._last = event
        if (event.step + 1) % self._settings.log_every == 0:
            self._show_progress()

    def _begin(self, first: Progress) -> None:
        write_curve(self._run.curve_csv, [row for row in self._run.read_curve() if row["step"] < first.step])
        with storage_errors(self._run.curve_csv):
            self._curve = self._run.curve_csv.open("a", encoding="utf-8")
        self._open_loggers(first.applied_steps if first.applied else first.applied_steps + 1)
        self.summary["first_step"] = first.step

    def _show_progress(self) -> None:
        """Report the progress of the run once; the curve is on disk up to there."""
        event = self._last
        if event is None or event is self._shown:
            return
        self._shown = event
        self._flush_curve()
        rate = left = None
        if self._clocked_ms > 0:
            rate = self._clocked_steps * self._settings.global_batch_size / self._clocked_ms * 1000
        if self._began is not None:
            seconds = time.monotonic() - self._began
            left = seconds / self.summary["steps_made"] * max(0, self._settings.steps - event.applied_steps)
        self._clocked_steps, self._clocked_ms = 0, 0.0
        self._write(
            "progress",
            step=event.step,
            applied_steps=event.applied_steps,
            total_steps=self._settings.steps,
            learning_rate=event.learning_rate,
            loss_scale=event.loss_scale,
            **finite({"loss": event.loss, "samples_per_second": rate, "seconds_left": left}),
        )
        shown_rate = "" if rate is None else f", {rate:.1f} samples/s"
        _say(
            f"step {event.applied_steps}/{self._settings.steps}: loss {event.loss:.4f}, "
            f"learning rate {event.learning_rate:.3g}{shown_rate}"
        )

    def _flush_curve(self, to_disk: bool = False) -> None:
        if self._curve is not None:
            with storage_errors(self._run.curve_csv):
                self._curve.flush()
                if to_disk:
                    os.fsync(self._curve.fileno())

    def _log_step(self, event: Progress) -> None:
        step_ms = self._step_ms.pop(event.step, None)
        self._loggers.log(
            event.applied_steps,
            {
                "train/loss": event.loss,
                **{f"train/{name}": value for name, value in event.parts.items()},
                "train/learning_rate": event.learning_rate,
                "train/percent_complete": 100 * event.applied_steps / self._settings.steps,
                "train/samples_per_second": self._settings.global_batch_size / step_ms * 1000 if step_ms else None,
                "train/loss_scale": event.loss_scale,
            },
        )

    def _open_loggers(self, first_step: int) -> None:
        opened = self._loggers.open(self._run, first_step, self._settings.to_json())
        self.summary["logged_to"] = list(opened)
        run_ids = {name: run_id for name, run_id in opened.items() if run_id is not None}
        if run_ids:
            self._write("logging", run_ids=run_ids)

    def _warn(self, message: str) -> None:
        self.report(Warned(message=message))

    def _evaluated(self, event: Evaluated) -> None:
        if self._curve is None:  # a run that only evaluates makes no step
            self._open_loggers(event.applied_steps)
        values = event.evaluation.values
        shown = {f"eval/{name}": value for name, value in values.items() if score(name).headline}
        self._loggers.log(event.applied_steps, shown)
        self._loggers.flush()

    def _write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "time_ns": time.time_ns(), **fields}, allow_nan=False)
        with storage_errors(self._events_path):
            self._events.write(line + "\n")
            self._events.flush()

    def close(self) -> None:
        """Write out what is held back, also when the training failed."""
        self._show_progress()
        self._flush_curve(to_disk=True)
        self._loggers.close(finished=self._last is None or self._last.applied_steps >= self._settings.steps)
        for path, file in ((self._run.curve_csv, self._curve), (self._events_path, self._events)):
            if file is not None:
                with storage_errors(path):
                    file.close()


def flat(evaluation: Evaluation) -> dict[str, Any]:
    """Return scores, samples and counts by name, None for what is not finite."""
    return finite({**evaluation.values, "samples": evaluation.samples, **evaluation.counts})


def best_checkpoint(best: Best | None) -> dict[str, Any] | None:
    """Return the best checkpoint in plain values; None where no evaluation has been made."""
    if best is None:
        return None
    name = checkpoint_path(Path(), best.applied_steps).name
    return {"checkpoint": name, "applied_steps": best.applied_steps, "score": best.score, "value": best.value}


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for what is not finite: JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()
