"""A training run whose model and loop are Hugging Face's: the same weights, batches, optimizer and schedule as ours.

The run has no checkpoints to go on from: one that was interrupted begins again, one that ended stays as it is. At its
end the weights are saved as ours, so that `bertbench predict` and `bertbench eval` read them.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.implementations import TRAINER_STRATEGIES
from bench.implementations.hf_trainer import TrainerImplementation, check_packages, train_with_trainer
from bench.implementations.hugging_face import check_heads, model_loss, task_model
from bert.checkpoints.folder import new_folder
from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.checkpoints.ours import save_model
from bert.data.vocabulary import VOCABULARY_FILE
from bert.parallel.base import Strategy
from bert.parallel.options import read_options
from bert.train.agreement import any_rank, together
from bert.train.base_run import BaseRun, make_optimizer
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


def run_training(
    settings: TrainSettings,
    folder: Path,
    strategy: Strategy,
    observer: Observer,
    should_stop: Callable[[], bool],
    report: Report,
) -> RunOutcome:
    """Train from the first update to `settings.steps`; arguments as bert.train.run.run_training has them.

    Raises:
        MissingToolError: transformers or accelerate is not installed.
        UsageError: settings that Trainer cannot run here.
        InputError: the data or the initial weights cannot be used.
        StorageError: the weights cannot be written.
        DivergenceError: the loss is not a number.
    """
    check_packages(_NAME)
    if settings.strategy not in TRAINER_STRATEGIES:
        raise UsageError(
            "unsupported-combination",
            f"implementation {_NAME!r} trains by strategies {' and '.join(TRAINER_STRATEGIES)}, not "
            f"{settings.strategy!r}",
        )
    check_heads(_NAME, settings.task)
    final = checkpoint_path(folder, settings.steps)
    if any_rank(strategy, strategy.rank == 0 and final.is_dir()):
        return _finished_before(settings, final, report if strategy.rank == 0 else lambda event: None)
    return _Run(settings, folder, strategy, observer, should_stop, report).go()


def _finished_before(settings: TrainSettings, final: Path, report: Report) -> RunOutcome:
    """Leave a run as it ended: its weights are those of the settings it had."""
    report(
        Warned(
            message=f"this run has made its {settings.steps} updates, and {_NAME} goes on from no checkpoint: nothing "
            "was trained; give another --out to train anew, with these settings or others"
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


class _Run(BaseRun):
    """A run with Hugging Face's model and loop, which tell one loss and save at the end alone."""

    tells_parts = saves_best = False

    def build(self, observer: Observer) -> Training:
        """Hugging Face's model with the weights that ours would begin with."""
        settings = self.settings
        torch.manual_seed(settings.seed)
        ours = self.task.build_model(self.config)
        if settings.init is not None:
            whole = not self.task.begins_from_encoder
            initial = initial_on_all(settings, self.data, self.strategy, self.warn)
            together(self.strategy, lambda: load_initial(initial, ours, self.config, whole=whole))
        theirs = task_model(self.task, self.config, settings.activation_checkpointing)
        copy_weights(ours, theirs)
        self.model: Any = theirs.to(self.strategy.device)
        pinned = self.strategy.device.type == "cuda"
        return self.make_training(
            self.model,
            make_optimizer(settings, self.model),
            model_loss(settings.task, self.config),
            Feed(self.task.batches(self.spec), pinned, TrainerImplementation().adapt),
        )

    def go(self) -> RunOutcome:
        """Train to the end, or until asked to stop."""
        seed_generators(self.settings.seed, self.strategy.rank, 0)
        options = read_options(self.settings.strategy_options)
        train_with_trainer(self.training, self.observer, self.between_steps, options)
        if not self.done:
            self.warn(f"{_NAME} saves no checkpoints on its way: called again, this run begins from its first step")
        return replace(self.outcome(), best=self._best_saved())

    def _best_saved(self) -> Best | None:
        """The best evaluation where its weights were saved: it was the last one."""
        best = self.evaluations.best
        return best if best is not None and self.done and best.applied_steps == self.counts.applied_steps else None

    def model_to_evaluate(self) -> torch.nn.Module:
        """Our model with their weights."""
        return self._ours().to(self.strategy.device)

    def due(self, done: bool, stop: bool) -> bool:
        """At the end."""
        return done

    def save(self, step: int) -> None:
        """Write the weights as ours, from the first rank."""
        began = time.perf_counter()
        final = checkpoint_path(self.folder, self.counts.applied_steps)

        def write() -> None:
            if self.strategy.rank == 0:
                with new_folder(final) as folder:
                    save_model(folder, self._ours())
                    if self.vocabulary is not None:
                        write_text(folder / VOCABULARY_FILE, self.vocabulary)

        together(self.strategy, write)
        self.checkpoint = final
        size = sum(path.stat().st_size for path in final.iterdir()) if self.strategy.rank == 0 else 0
        seconds = time.perf_counter() - began
        applied, best = self.counts.applied_steps, self._best_saved()
        self.report(Saved(applied_steps=applied, path=final, seconds=seconds, size_bytes=size, best=best))

    def _ours(self) -> torch.nn.Module:
        """Our model with the weights as they are now, on the CPU; random numbers are left as they were."""
        with torch.random.fork_rng(devices=[]):
            model = self.task.build_model(self.config)
        load_hugging_face_state(model, {name: value.cpu() for name, value in self.model.state_dict().items()})
        return model


def copy_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Give Hugging Face's model the weights of ours. Raises UsageError where one of theirs has no counterpart."""
    state = to_hugging_face_state(ours)
    missing = theirs.load_state_dict(state, strict=False).missing_keys
    tied = [name for name in missing if name.startswith("cls.predictions.decoder.")]
    if len(tied) < len(missing):
        absent = next(name for name in missing if name not in tied)
        raise UsageError(
            "weights-mismatch", f"Hugging Face's {type(theirs).__name__} has a weight that ours lacks: {absent}"
        )
