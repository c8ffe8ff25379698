"""A training run with Hugging Face's model and loop, and our weights, batches, optimizer and schedule.

The run cannot resume: an interrupted run starts again, and a finished run is kept. At the end the weights are saved in
our format, so that `bertbench predict` and `bertbench eval` can read them.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from bench.implementations import TRAINER_STRATEGIES
from bench.implementations.hf_trainer import check_packages, train_with_trainer
from bench.implementations.hugging_face import check_heads, model_loss, task_model, with_labels
from bert.checkpoints.folder import new_folder
from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.checkpoints.ours import save_model
from bert.data.batch import Batch
from bert.data.vocabulary import VOCABULARY_FILE
from bert.model.config import ModelConfig, model_config
from bert.parallel.options import read_options
from bert.tasks.base import Task
from bert.train.agreement import any_rank, together
from bert.train.base_run import BaseRun, RunRequest, make_optimizer
from bert.train.checkpoint import checkpoint_path, seed_generators
from bert.train.events import Best, Report, RunOutcome, Saved, Warned
from bert.train.feed import Feed
from bert.train.loop import Training
from bert.train.observer import Observer
from bert.train.resume import initial_on_all
from bert.train.settings import TrainSettings
from bert.train.weights import load_initial
from common.atomic import write_text
from common.errors import UsageError

_NAME = "hf-trainer"


def run_training(asked: RunRequest) -> RunOutcome:
    """Train from the first update to `settings.steps`."""
    settings, strategy = asked.settings, asked.strategy
    check_packages(_NAME)
    if settings.strategy not in TRAINER_STRATEGIES:
        raise UsageError(
            "unsupported-combination",
            f"implementation {_NAME!r} does not support strategy {settings.strategy!r}: use "
            f"{' or '.join(TRAINER_STRATEGIES)}",
        )
    check_heads(_NAME, settings.task)
    final = checkpoint_path(asked.folder, settings.steps)
    if any_rank(strategy, strategy.rank == 0 and final.is_dir()):
        return _finished_before(settings, final, asked.report if strategy.rank == 0 else lambda event: None)
    return _Run(asked).go()


def _finished_before(settings: TrainSettings, final: Path, report: Report) -> RunOutcome:
    report(
        Warned(
            message=f"this run has finished its {settings.steps} updates and {_NAME} cannot resume, so nothing was "
            "trained: give another --out to train again"
        )
    )
    return RunOutcome(
        finished=True,
        applied_steps=settings.steps,
        skipped_steps=0,
        samples_seen=settings.steps * settings.global_batch_size,
        resumed_from=None,
        checkpoint=final,
        evaluation=None,
    )


class Trained(Protocol):
    """A model in a run, and what the run does with it."""

    model: Any
    """Hugging Face's, on the CPU at first."""

    def loss(self, model: torch.nn.Module, batch: Batch, /) -> torch.Tensor:
        """Return the loss of a batch that `adapt` returned, a scalar."""

    def adapt(self, batch: Batch, /) -> Batch:
        """Return a batch with the tensors that the model reads."""

    def scored(self) -> torch.nn.Module:
        """Return a model that the task's evaluator can call, with the weights as they are now."""

    def write(self, folder: Path) -> None:
        """Save the weights in an empty folder."""


class _Run(BaseRun):
    """A run with Hugging Face's model and loop, which report one loss and save only at the end."""

    tells_parts = saves_best = False

    def build(self, observer: Observer) -> Training:
        """Build the model with its initial weights."""
        settings = self.settings
        torch.manual_seed(settings.seed)
        self.trained: Trained = self._given() if settings.model else self._ported()
        self.model: Any = self.trained.model.to(self.strategy.device)
        pinned = self.strategy.device.type == "cuda"
        return self.make_training(
            self.model,
            make_optimizer(settings, self.model),
            self.trained.loss,
            Feed(self.task.batches(self.spec), pinned, self.trained.adapt),
        )

    def _given(self) -> Trained:
        from bench.implementations.given_run import TrainedGiven

        trained = together(self.strategy, lambda: TrainedGiven(self.settings, self.task))
        if trained.not_loaded:
            names = ", ".join(trained.not_loaded)
            self.warn(f"{len(trained.not_loaded)} weights begin with random values: {names}")
        return trained

    def _ported(self) -> Trained:
        settings, config = self.settings, model_config(self.settings)
        ours = self.task.build_model(config)
        if settings.init is not None:
            whole = not self.task.begins_from_encoder
            initial = initial_on_all(settings, self.data, self.strategy, self.warn)
            together(self.strategy, lambda: load_initial(initial, ours, config, whole=whole))
        return _TrainedPort(settings, self.task, config, ours)

    def go(self) -> RunOutcome:
        """Train to the end or to a stop request."""
        seed_generators(self.settings.seed, self.strategy.rank, 0)
        options = read_options(self.settings.strategy_options)
        train_with_trainer(self.training, self.observer, self.between_steps, options)
        if not self.done:
            self.warn(f"{_NAME} saves no intermediate checkpoints: if interrupted, this run starts again from step 1")
        return replace(self.outcome(), best=self._best_saved())

    def _best_saved(self) -> Best | None:
        best = self.evaluations.best
        return best if best is not None and self.done and best.applied_steps == self.counts.applied_steps else None

    def model_to_evaluate(self) -> torch.nn.Module:
        """Return a model that evaluators can call, with the weights as they are now."""
        return self.trained.scored().to(self.strategy.device)

    def due(self, done: bool, stop: bool) -> bool:
        """Return whether to save: only at the end."""
        return done

    def save(self, step: int) -> None:
        """Write the weights, on rank 0."""
        began = time.perf_counter()
        final = checkpoint_path(self.folder, self.counts.applied_steps)

        def write() -> None:
            if self.strategy.rank == 0:
                with new_folder(final) as folder:
                    self.trained.write(folder)
                    if self.vocabulary is not None:
                        write_text(folder / VOCABULARY_FILE, self.vocabulary)

        together(self.strategy, write)
        self.checkpoint = final
        size = sum(path.stat().st_size for path in final.iterdir()) if self.strategy.rank == 0 else 0
        seconds = time.perf_counter() - began
        applied, best = self.counts.applied_steps, self._best_saved()
        self.report(Saved(applied_steps=applied, path=final, seconds=seconds, size_bytes=size, best=best))


class _TrainedPort:
    """Hugging Face's model in the shape of ours, whose weights are saved and evaluated as ours."""

    def __init__(self, settings: TrainSettings, task: Task, config: ModelConfig, ours: torch.nn.Module) -> None:
        self._task, self._config = task, config
        self.model: Any = task_model(task, config, settings.activation_checkpointing)
        copy_weights(ours, self.model)
        self._loss = model_loss(settings.task, config)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of the task."""
        return self._loss(model, batch)

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with labels at every position."""
        return with_labels(batch)

    def scored(self) -> torch.nn.Module:
        """Return our model with the current weights, on the CPU, without changing the random state."""
        with torch.random.fork_rng(devices=[]):
            model = self._task.build_model(self._config)
        load_hugging_face_state(model, {name: value.cpu() for name, value in self.model.state_dict().items()})
        return model

    def write(self, folder: Path) -> None:
        """Save the weights in our format."""
        save_model(folder, self.scored())


def copy_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Copy the weights of our model to Hugging Face's. Raises UsageError if one of theirs has no counterpart."""
    state = to_hugging_face_state(ours)
    missing = theirs.load_state_dict(state, strict=False).missing_keys
    tied = [name for name in missing if name.startswith("cls.predictions.decoder.")]
    if len(tied) < len(missing):
        absent = next(name for name in missing if name not in tied)
        raise UsageError(
            "weights-mismatch", f"Hugging Face's {type(theirs).__name__} has a weight that our model lacks: {absent}"
        )
