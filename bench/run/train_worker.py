"""What a rank of a training does between joining the others and leaving them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bench.implementations import OURS, TRAININGS
from bench.run.clock import StepClock
from bench.run.recorder import step_writer
from bench.run.train_recorder import TrainRecorder, best_checkpoint, flat
from bert.model.config import model_config
from bert.model.memory import parameter_count
from bert.parallel.base import Strategy
from bert.tasks import task_step
from bert.train.events import Event, RunOutcome
from bert.train.settings import TrainSettings
from common.registry import load
from records.run import TrialDirectory
from records.training import TrainRun
from records.trial import Trial

RunTraining = Callable[..., RunOutcome]


def run_attempt(
    directory: TrialDirectory, trial: Trial, strategy: Strategy, should_stop: Callable[[], bool]
) -> dict[str, Any]:
    """Train until the run is complete or a stop is asked for; return the rank's record.

    Args:
        directory: where this attempt writes; checkpoints, curve and scalars go to the run that it lies in.
        trial: its configuration.
        strategy: set up.
        should_stop: whether this rank was asked to stop.

    Raises:
        InputError: the data or a checkpoint cannot be used.
        UsageError: the settings do not fit the run so far.
        StorageError: something cannot be written; the checkpoints before are whole.
        DivergenceError: the loss is not finite.
    """
    run = TrainRun(directory.path.parent.parent)
    settings = TrainSettings.from_json(dict(trial.training))
    config = model_config(settings)
    step = task_step(settings.task, settings.task_options, config)
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

        clock = StepClock(trial.device, step.model_flops, on_row)
        run_training: RunTraining = load(TRAININGS, trial.implementation, "implementation of training runs")
        outcome = run_training(settings, run.checkpoints, strategy, clock, should_stop, report)
    # Only our vocabulary is padded.
    shape = config if trial.implementation == OURS else config.replace(vocab_multiple=1)
    model = {"parameters": parameter_count(shape, settings.task, settings.task_options)}
    if recorder is None:
        return model
    if recorder.summary["evaluation"] is None and outcome.evaluation is not None:
        recorder.summary["evaluation"] = {"applied_steps": None, **flat(outcome.evaluation)}
    return {
        **model,
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
