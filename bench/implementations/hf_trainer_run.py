"""A training run whose model and loop are Hugging Face's: the same weights, batches, optimizer and schedule as ours.

The run has no checkpoints to go on from: one that was interrupted begins again, one that ended stays as it is. At its
end the weights are saved as ours, so that `bertbench predict` and `bertbench eval` read them.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.feed import feed
from bench.implementations.hf_trainer import STRATEGIES, TrainerImplementation
from bench.implementations.hugging_face import MODELS, model_loss, task_model
from bench.implementations.trainer_loop import check_packages, train_with_trainer
from bert.batch import Batch
from bert.checkpoints.folder import new_folder
from bert.checkpoints.ours import save_model
from bert.convert import load_hugging_face_state, to_hugging_face_state
from bert.data.pretraining.naming import VOCABULARY_FILE
from bert.observer import Observer, Observers
from bert.precision import Precision
from bert.strategies.base import Strategy
from bert.strategies.options import read_options
from bert.tasks import make_task
from bert.tasks.base import DataIdentity, TrainableTask
from bert.train import Progress as UpdateCounts
from bert.train import Training
from bert.training.agreement import any_rank, together
from bert.training.best import Evaluations
from bert.training.checkpoint import checkpoint_path
from bert.training.events import Best, Event, Report, RunOutcome, Saved, Warned
from bert.training.initial import load_initial
from bert.training.losses import LossLog
from bert.training.parts import data_spec, make_optimizer, make_training
from bert.training.resume import find_initial
from bert.training.settings import TrainSettings
from bert.training.state import vocabulary_text
from bert.training.tensors import seed_generators
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
    """Train from the first update to `settings.steps`; arguments as bert.training.run.run_training has them.

    Raises:
        MissingToolError: transformers or accelerate is not installed.
        UsageError: settings that Trainer cannot run here.
        InputError: the data or the initial weights cannot be used.
        StorageError: the weights cannot be written.
        DivergenceError: the loss is not a number.
    """
    check_packages(_NAME)
    if settings.strategy not in STRATEGIES:
        raise UsageError(
            f"implementation {_NAME!r} trains by strategies {' and '.join(STRATEGIES)}, not {settings.strategy!r}"
        )
    if settings.task not in MODELS:
        raise UsageError(f"implementation {_NAME!r} trains {', '.join(MODELS)}, not {settings.task!r}")
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


class _WithoutParts:
    """Theirs tell one loss."""

    parts: tuple[str, ...] = ()


class _Run:
    """The parts of a run and what it does between steps."""

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        strategy: Strategy,
        observer: Observer,
        should_stop: Callable[[], bool],
        report: Report,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._strategy = strategy
        self._should_stop = should_stop
        self._tell = report
        self._task: TrainableTask = make_task(settings.task, settings.task_options)
        self._config = settings.model_config()
        self._precision = Precision(settings.precision, strategy.device.type)
        self._counts = UpdateCounts()
        self._spec = data_spec(settings, strategy)
        self._data: DataIdentity = together(strategy, lambda: self._task.identify(self._spec))
        self._vocabulary = together(strategy, lambda: vocabulary_text(self._data))
        self._evaluations = Evaluations(settings, self._task, strategy, self._warn)
        self._evaluations.open(self._spec, self._data)
        self._evaluations.begin(0)
        self._checkpoint: Path | None = None
        accumulation = settings.grad_accum_steps
        parts: Any = _WithoutParts()
        self._log = LossLog(parts, self._counts, settings.global_batch_size, accumulation, 0)
        self._observer = Observers([self._log, observer])
        self._model = self._make_model()
        self._training = self._make_training()

    def _make_model(self) -> Any:
        """Hugging Face's model with the weights that ours would begin with."""
        settings = self._settings
        torch.manual_seed(settings.seed)
        ours = self._task.build_model(self._config)
        if settings.init is not None:
            whole = not self._task.begins_from_encoder
            initial = together(self._strategy, lambda: find_initial(settings, self._data, self._warn, False))
            together(self._strategy, lambda: load_initial(initial, ours, self._config, whole=whole))
        theirs = task_model(self._task, self._config, settings.activation_checkpointing)
        copy_weights(ours, theirs)
        return theirs.to(self._strategy.device)

    def _make_training(self) -> Training:
        settings = self._settings
        adapt: Callable[[Batch], Batch] = TrainerImplementation().adapt
        return make_training(
            settings,
            self._model,
            make_optimizer(settings, self._model),
            model_loss(settings.task, segments=self._config.type_vocab_size > 0),
            feed(iter(self._task.batches(self._spec)), adapt, pinned=self._strategy.device.type == "cuda"),
            self._strategy,
            self._precision,
            self._counts,
        )

    def go(self) -> RunOutcome:
        """Train to the end, or until asked to stop."""
        seed_generators(self._settings.seed, self._strategy.rank, 0)
        train = partial(train_with_trainer, options=read_options(self._settings.strategy_options))
        train(self._training, self._observer, self._between_steps)
        return RunOutcome(
            finished=self._done(),
            applied_steps=self._counts.applied_steps,
            skipped_steps=self._counts.skipped_steps,
            samples_seen=self._log.samples_seen,
            resumed_from=None,
            checkpoint=self._checkpoint,
            evaluation=self._evaluations.latest,
            best=self._best_saved(),
        )

    def _best_saved(self) -> Best | None:
        """The best evaluation where its weights were saved: it was the last one."""
        best = self._evaluations.best
        return best if best is not None and self._done() and best.applied_steps == self._counts.applied_steps else None

    def _done(self) -> bool:
        return self._counts.applied_steps >= self._settings.steps

    def _between_steps(self, step: int) -> bool:
        """Read and evaluate what is due, save at the end; return whether another step is to be made."""
        done, applied, settings = self._done(), self._counts.applied_steps, self._settings
        if len(self._log) >= settings.log_every:
            self._read_losses()
        stop = not done and any_rank(self._strategy, self._should_stop())
        evaluating = self._evaluations.due(applied, done)
        if done or stop or evaluating:
            self._read_losses()
        if evaluating:
            model = self._ours().to(self._strategy.device)
            self._report(self._evaluations.make(model, self._precision, applied))
        if done:
            self._save()
        elif stop:
            self._warn(f"{_NAME} saves no checkpoints on its way: called again, this run begins from its first step")
        return not (done or stop)

    def _read_losses(self) -> None:
        for event in self._log.read(self._strategy, self._precision):
            self._report(event)

    def _ours(self) -> torch.nn.Module:
        """Our model with the weights as they are now, on the CPU; random numbers are left as they were."""
        with torch.random.fork_rng(devices=[]):
            model = self._task.build_model(self._config)
        load_hugging_face_state(model, {name: value.cpu() for name, value in self._model.state_dict().items()})
        return model

    def _save(self) -> None:
        """Write the weights as ours, from the first rank."""
        began = time.perf_counter()
        final = checkpoint_path(self._folder, self._counts.applied_steps)

        def write() -> None:
            if self._strategy.rank == 0:
                with new_folder(final) as folder:
                    save_model(folder, self._ours())
                    if self._vocabulary is not None:
                        write_text(folder / VOCABULARY_FILE, self._vocabulary)

        together(self._strategy, write)
        self._checkpoint = final
        size = sum(path.stat().st_size for path in final.iterdir()) if self._strategy.rank == 0 else 0
        seconds = time.perf_counter() - began
        applied, best = self._counts.applied_steps, self._best_saved()
        self._report(Saved(applied_steps=applied, path=final, seconds=seconds, size_bytes=size, best=best))

    def _report(self, event: Event) -> None:
        if self._strategy.rank == 0:
            self._tell(event)

    def _warn(self, message: str) -> None:
        self._report(Warned(message=message))


def copy_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Give Hugging Face's model the weights of ours. Raises UsageError where one of theirs has no counterpart."""
    state = to_hugging_face_state(ours)
    missing = theirs.load_state_dict(state, strict=False).missing_keys
    tied = [name for name in missing if name.startswith("cls.predictions.decoder.")]
    if len(tied) < len(missing):
        absent = next(name for name in missing if name not in tied)
        raise UsageError(f"Hugging Face's {type(theirs).__name__} has a weight that ours lacks: {absent}")
