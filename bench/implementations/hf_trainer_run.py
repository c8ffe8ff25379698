"""A training run with Hugging Face's model and loop, and our weights, batches, optimizer and schedule.

The run cannot resume: an interrupted run starts again, and a finished run is kept. At the end the weights are saved, of
a preset in our format, so that `bertbench predict` and `bertbench eval` can read them.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.implementations.given import GivenModel
from bench.implementations.hugging_face import HuggingFaceImplementation, model_loss, task_model, with_labels
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
from bert.train.events import Best, RunOutcome, Saved, Warned
from bert.train.feed import Feed
from bert.train.loop import Training
from bert.train.observer import Observer
from bert.train.resume import initial_on_all
from bert.train.weights import load_initial
from common.atomic import write_text
from records.trial import Trial


def run_training(asked: RunRequest) -> RunOutcome:
    """Train from the first update to `settings.steps`."""
    settings, strategy = asked.settings, asked.strategy
    HuggingFaceImplementation().check(Trial.of(settings, implementation="hf-trainer"))
    final = checkpoint_path(asked.folder, settings.steps)
    if not any_rank(strategy, strategy.rank == 0 and final.is_dir()):
        return _Run(asked).go()
    if strategy.rank == 0:
        done = f"this run has finished its {settings.steps} updates"
        asked.report(Warned(message=f"{done}, so nothing was trained: give another --out to train again"))
    return RunOutcome(
        finished=True,
        applied_steps=settings.steps,
        skipped_steps=0,
        samples_seen=settings.steps * settings.global_batch_size,
        resumed_from=None,
        checkpoint=final,
        evaluation=None,
    )


class _Run(BaseRun):
    """A run with Hugging Face's model and loop, which report one loss and save only at the end."""

    tells_parts = saves_best = False

    def build(self, observer: Observer) -> Training:
        settings, strategy = self.settings, self.strategy
        torch.manual_seed(settings.seed)
        self.trained: GivenModel | _Port = (
            together(strategy, lambda: GivenModel(settings, self.task)) if settings.model else self._port()
        )
        self.model: Any = together(strategy, self.trained.module).to(strategy.device)
        if isinstance(self.trained, GivenModel) and (names := self.trained.not_loaded):
            self.warn(f"{len(names)} weights begin with random values: {', '.join(names)}")
        batches = Feed(self.task.batches(self.spec), strategy.device.type == "cuda", self.trained.adapt)
        return self.make_training(self.model, make_optimizer(settings, self.model), self.trained.loss, batches)

    def _port(self) -> "_Port":
        settings, config = self.settings, model_config(self.settings)
        ours = self.task.build_model(config)
        if settings.init is not None:
            initial = initial_on_all(settings, self.data, self.strategy, self.warn)
            whole = not self.task.begins_from_encoder
            together(self.strategy, lambda: load_initial(initial, ours, config, whole=whole))
        return _Port(self.task, config, ours, settings.activation_checkpointing)

    def go(self) -> RunOutcome:
        from bench.implementations.hf_trainer import train_with_trainer

        seed_generators(self.settings.seed, self.strategy.rank, 0)
        options = read_options(self.settings.strategy_options)
        train_with_trainer(self.training, self.observer, self.between_steps, options)
        if not self.done:
            self.warn("hf-trainer saves no intermediate checkpoints: if interrupted, this run starts again from step 1")
        return replace(self.outcome(), best=self._best_saved())

    def _best_saved(self) -> Best | None:
        best = self.evaluations.best
        return best if best is not None and self.done and best.applied_steps == self.counts.applied_steps else None

    def model_to_evaluate(self) -> torch.nn.Module:
        return self.trained.scored(self.model).to(self.strategy.device)

    def due(self, done: bool, stop: bool) -> bool:
        return done

    def save(self, step: int) -> None:
        began = time.perf_counter()
        applied = self.counts.applied_steps
        final = checkpoint_path(self.folder, applied)

        def write() -> None:
            if self.strategy.rank == 0:
                with new_folder(final) as folder:
                    self.trained.write(self.model, folder)
                    if self.vocabulary is not None:
                        write_text(folder / VOCABULARY_FILE, self.vocabulary)

        together(self.strategy, write)
        self.checkpoint = final
        size = sum(path.stat().st_size for path in final.iterdir()) if self.strategy.rank == 0 else 0
        seconds, best = time.perf_counter() - began, self._best_saved()
        self.report(Saved(applied_steps=applied, path=final, seconds=seconds, size_bytes=size, best=best))


class _Port:
    """Hugging Face's model in the shape of ours, whose weights begin, are saved and are evaluated as ours."""

    def __init__(self, task: Task, config: ModelConfig, ours: torch.nn.Module, activation_checkpointing: bool) -> None:
        self._task, self._config, self._ours = task, config, ours
        self._recompute = activation_checkpointing
        self.loss = model_loss(task.name, config)

    def module(self) -> Any:
        model = task_model(self._task, self._config, self._recompute)
        missing = model.load_state_dict(to_hugging_face_state(self._ours), strict=False).missing_keys
        assert all(name.startswith("cls.predictions.decoder.") for name in missing)  # tied
        return model

    def adapt(self, batch: Batch) -> Batch:
        return with_labels(batch)

    def scored(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return our model with the weights of Hugging Face's, on the CPU, without changing the random state."""
        with torch.random.fork_rng(devices=[]):
            ours = self._task.build_model(self._config)
        load_hugging_face_state(ours, {name: value.cpu() for name, value in model.state_dict().items()})
        return ours

    def write(self, model: torch.nn.Module, folder: Path) -> None:
        save_model(folder, self.scored(model))
