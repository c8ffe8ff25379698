"""What every training run has, for any model and loop: its components, its evaluations, the work between steps."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from bert.checkpoints.read import Found, checkpoint_path
from bert.data.batch import Batch
from bert.observer import Observer, Observers, StepResult
from bert.optim.precision import Precision
from bert.optim.registry import OPTIMIZERS, SELF_CLIPPING
from bert.parallel.base import StepPlan, Strategy
from bert.speed.fp8 import scales_of
from bert.tasks import make_task, task_data
from bert.tasks.base import DataIdentity, Evaluation, EvaluationSpec, Evaluator, Task, deciding
from bert.train.checkpoint import TrainState, vocabulary_text
from bert.train.events import Best, Evaluated, Event, Progress, Report, RunOutcome, Warned
from bert.train.feed import data_spec
from bert.train.loop import ComputeLoss, DivergenceWatch, Training
from bert.train.loop import Progress as UpdateCounts
from bert.train.resume import find_weights
from bert.train.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Arguments of a training run on one rank."""

    settings: TrainSettings
    """What to train; the same on every rank."""
    folder: Path
    """Where its checkpoints lie; made where it is missing."""
    strategy: Strategy
    """The ranks, already set up; the caller tears it down."""
    observer: Observer
    """Of the loop and the model."""
    should_stop: Callable[[], bool]
    """Asked between steps on every rank; a yes of any of them saves a checkpoint and ends the run."""
    report: Report
    """Called with each event, on the first rank only."""


class Keeper(Protocol):
    """Evaluates and saves what a run trains."""

    saves_best: bool
    """Whether an evaluation that is the best so far is a reason to save."""

    def model_to_evaluate(self) -> torch.nn.Module:
        """Return our model with the weights as they are now, on the device, without what is around it."""

    def due(self, done: bool, stop: bool) -> bool:
        """Whether to save, after the last step (`done`), when a stop was asked for, or in between."""

    def save(self, step: int) -> None:
        """Write the weights down before step number `step`."""


class Run:
    """One rank of a run, whoever makes its model and its steps."""

    def __init__(self, asked: RunRequest, tells_parts: bool = True) -> None:
        """`tells_parts` is whether the loss is that of `log`, which knows its parts."""
        self.settings = settings = asked.settings
        self.folder = asked.folder
        self.strategy = strategy = asked.strategy
        self.should_stop = asked.should_stop
        self._report = asked.report
        self.task: Task = make_task(settings.task, settings.task_options)
        self.precision = Precision(settings.precision, strategy.device.type)
        self.counts = UpdateCounts()
        self.spec = data_spec(settings, strategy)
        self.data: DataIdentity = strategy.together(lambda: self.task.identify(self.spec))
        self.vocabulary = strategy.together(lambda: vocabulary_text(self.data))
        self.evaluations = Evaluations(self)
        self.checkpoint: Path | None = None
        self.log = LossLog(self.task if tells_parts else None, self.counts, settings)
        self.model_observer = asked.observer
        self.observer = Observers([self.log, asked.observer])
        self.divergence = DivergenceWatch(settings.log_every)

    def training(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        compute_loss: ComputeLoss,
        batches: Iterator[Batch],
    ) -> Training:
        """Return what a loop trains with."""
        return Training(
            model=model,
            optimizer=optimizer,
            compute_loss=compute_loss,
            batches=batches,
            weighted=task_data(self.settings.task).heads == "masked words",
            strategy=self.strategy,
            precision=self.precision,
            grad_accum_steps=self.settings.grad_accum_steps,
            seed=self.settings.seed,
            max_grad_norm=step_plan(self.settings).max_grad_norm,
            learning_rate=self.settings.learning_rates(),
            progress=self.counts,
            divergence=self.divergence,
        )

    def initial_weights(self) -> Found | None:
        """Find what `settings.init` names, the same on every rank; None if the run begins from scratch."""
        settings = self.settings
        if settings.init is None:
            return None
        init = Path(settings.init)
        needed = f"this run needs a checkpoint of a {settings.preset} model with {settings.vocab_size} word pieces"
        found = self.strategy.together(lambda: find_weights(init, self.data, self.warn, needed))
        self.strategy.check_same(found.path.name, "the initial weights")
        return found

    def count_left_out(self) -> None:
        """Count the updates that a GPU has left out; every rank must call it. Raises DivergenceError."""
        self.divergence.check(self.strategy, self.counts)

    @property
    def done(self) -> bool:
        """Whether all updates were made."""
        return self.counts.applied_steps >= self.settings.steps

    def between_steps(self, keeper: Keeper, step: int) -> bool:
        """Read, evaluate and save what is due; return whether another step is to be made. The same on every rank."""
        if self.done or self.evaluations.due(self.counts.applied_steps, False) or keeper.due(False, False):
            self.count_left_out()
        done, applied = self.done, self.counts.applied_steps
        if len(self.log) >= self.settings.log_every:
            self.read_losses()
        stop = not done and self.strategy.any_rank(self.should_stop())
        evaluating, saving = self.evaluations.due(applied, done), keeper.due(done, stop)
        if done or stop or evaluating or saving:
            self.read_losses()
        if evaluating:
            evaluated = self.evaluations.make(keeper.model_to_evaluate(), self.precision, applied)
            self.report(evaluated)
            saving = saving or (evaluated.best and keeper.saves_best)
        if saving:
            keeper.save(step)
        return not (done or stop)

    def outcome(self, resumed_from: Path | None = None) -> RunOutcome:
        """Return how the run ended."""
        return RunOutcome(
            finished=self.done,
            applied_steps=self.counts.applied_steps,
            skipped_steps=self.counts.skipped_steps,
            samples_seen=self.log.samples_seen,
            resumed_from=resumed_from,
            checkpoint=self.checkpoint,
            evaluation=self.evaluations.latest,
            best=self.evaluations.best,
        )

    def read_losses(self) -> None:
        """Report the steps made since the last call."""
        for event in self.log.read(self.strategy, self.precision):
            self.report(event)

    def report(self, event: Event) -> None:
        """Report an event, on the first rank."""
        if self.strategy.rank == 0:
            self._report(event)

    def warn(self, message: str) -> None:
        """Report a warning, on the first rank."""
        self.report(Warned(message=message))


def step_plan(settings: TrainSettings) -> StepPlan:
    """Return what the strategy has to know of the steps."""
    clips_itself = settings.optimizer in SELF_CLIPPING
    return StepPlan(
        train=settings,
        optimizer=settings.optimizer,
        max_grad_norm=None if clips_itself else settings.max_grad_norm,
        optimizer_norm=settings.max_grad_norm if clips_itself else None,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )


def make_optimizer(settings: TrainSettings, model: torch.nn.Module, fused: bool = False) -> torch.optim.Optimizer:
    """Return the optimizer of a run, by kernels if `fused`; it clips gradients itself where step_plan says so."""
    clipping = {"max_grad_norm": settings.max_grad_norm} if settings.optimizer in SELF_CLIPPING else {}
    make = OPTIMIZERS[settings.optimizer]
    return make(model, settings.learning_rate, weight_decay=settings.weight_decay, fused=fused, **clipping)


def evaluate(model: torch.nn.Module, evaluator: Evaluator, strategy: Strategy, precision: Precision) -> Evaluation:
    """Measure a model, the one that the strategy has wrapped without what is around it; every rank must call it.

    Nothing is drawn from random number generators; the model is left in the mode it was in.
    """
    whole = strategy.whole(model)
    before = whole.training
    whole.eval()
    try:
        with torch.inference_mode():
            own = strategy.together(lambda: evaluator.measure(whole, strategy.device, precision))
    finally:
        whole.train(before)
    total = strategy.total(own)
    return strategy.together(lambda: evaluator.score(total))


class Evaluations:
    """What a run is evaluated on, the latest evaluation and the best one. The same on every rank.

    Raises:
        UsageError: the deciding score is not one of the task's.
        InputError: the data to evaluate on are missing, damaged, or do not fit.
    """

    def __init__(self, run: Run) -> None:
        """Open what a run is to be evaluated on; every rank must call it."""
        self.latest: Evaluation | None = None
        self.best: Best | None = None
        self._run = run
        self._every = run.settings.eval_every
        self._score, self._higher_is_better = deciding(run.task, run.settings.best_by)
        self._evaluator: Evaluator | None = None
        self._evaluated = 0  # updates of the run when the latest one was made, or it began
        wanted = EvaluationSpec(source=run.settings.eval_data, samples=run.settings.eval_samples)
        if self._every and run.data.fingerprint is None:
            run.warn("synthetic data has no test shards and no answers: the run is not evaluated")
        elif self._every:
            self._evaluator = run.strategy.together(lambda: run.task.evaluator(run.spec, wanted))

    def take_over(self, state: TrainState, folder: Path) -> None:
        """Resume from a checkpoint in `folder`, with its best evaluation if new ones can be compared with it."""
        self.latest = state.evaluation
        self.best = self._still_best(state.best, folder)
        before, applied = state.settings, state.applied_steps
        made = before.eval_every > 0 and (applied >= before.steps or applied % before.eval_every == 0)
        # After the last update there is no next evaluation to choose the best by.
        none_follows = applied >= self._run.settings.steps and state.best is not None and self.best is None
        self._evaluated = applied if self.latest is not None and made and not none_follows else -1

    def due(self, applied_steps: int, done: bool) -> bool:
        """Whether the model is to be evaluated after this many updates, `done` after the last of them."""
        due = self._evaluator is not None and (done or applied_steps % self._every == 0)
        return due and applied_steps != self._evaluated

    def make(self, model: torch.nn.Module, precision: Precision, applied_steps: int) -> Evaluated:
        """Evaluate the model, without what the strategy wraps around it; every rank must call it."""
        assert self._evaluator is not None
        began = time.perf_counter()
        self.latest = evaluate(model, self._evaluator, self._run.strategy, precision)
        self._evaluated = applied_steps
        name = self._score
        if name not in self.latest.values:
            self._run.warn(f"the evaluation returned no {name}, which selects the best checkpoint")
        value = float(self.latest.values.get(name, math.nan))
        gain = math.inf if self.best is None else value - self.best.value
        best = math.isfinite(value) and (gain if self._higher_is_better or self.best is None else -gain) > 0
        if best:
            self.best = Best(applied_steps=applied_steps, score=name, value=value, data=self._evaluator.fingerprint)
        seconds = time.perf_counter() - began
        return Evaluated(applied_steps=applied_steps, evaluation=self.latest, seconds=seconds, best=best)

    def _still_best(self, best: Best | None, folder: Path) -> Best | None:
        if best is None or self._evaluator is None:
            return best
        name = checkpoint_path(folder, best.applied_steps).name
        gone = self._run.strategy.any_rank(not (folder / name).is_dir())
        if not gone and (best.score, best.data) == (self._score, self._evaluator.fingerprint):
            return best
        why = "is missing" if gone else f"was so by {best.score}" if best.score != self._score else "on other samples"
        self._run.warn(f"{name}, the best checkpoint so far, {why}: the next evaluation counts as the best")
        return None


class LossLog(Observer):
    """Keeps what each step did until `read`; nothing waits for a GPU before that."""

    def __init__(self, task: Task | None, counts: UpdateCounts, settings: TrainSettings) -> None:
        """`task` tells the parts of its loss; None, where another's model is trained, has none."""
        self.samples_seen = 0
        self._task = task
        self._counts = counts
        self._settings = settings
        self._parts: torch.Tensor | None = None
        self._model: torch.nn.Module | None = None
        self._steps: list[tuple[Progress, torch.Tensor]] = []

    def __len__(self) -> int:
        """Return the number of steps that were not read yet."""
        return len(self._steps)

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean training loss of one micro-batch; its parts are noted."""
        assert self._task is not None
        self._model = model
        loss, named = self._task.loss_parts(model, batch)
        if named:
            parts = torch.stack([named[name] for name in self._task.parts])
            self._parts = parts if self._parts is None else self._parts + parts
        return loss

    def step_end(self, step: int, result: StepResult) -> None:
        """Keep the step."""
        self.samples_seen += self._settings.global_batch_size
        losses = result.loss.reshape(1)
        if self._parts is not None:
            losses = torch.cat((losses, self._parts / self._settings.grad_accum_steps))
        self._parts = None
        event = Progress(
            step=step,
            loss=math.nan,
            parts={},
            learning_rate=result.learning_rate,
            applied=result.applied is not False,
            applied_steps=self._counts.applied_steps,
            samples_seen=self.samples_seen,
            loss_scale=None,
        )
        self._steps.append((event, losses))

    def read(self, strategy: Strategy, precision: Precision) -> list[Progress]:
        """Return the steps since the last time, losses averaged over ranks; every rank must call it."""
        if not self._steps:
            return []
        own = torch.stack([losses for _, losses in self._steps]).double().cpu()
        rows = (strategy.total(own.flatten()) / strategy.world_size).view(own.shape).tolist()
        scale = None if precision.scaler is None else float(precision.scaler.get_scale())
        scales, saturated = None if self._model is None else scales_of(self._model.parameters()), None
        if scales is not None:
            saturated = int(strategy.total(scales.saturated.double().cpu().reshape(1)))
            scales.saturated.zero_()
        events, self._steps = [event for event, _ in self._steps], []
        names = () if self._task is None else self._task.parts
        return [
            replace(
                event, loss=loss, parts=dict(zip(names, parts, strict=True)), loss_scale=scale, fp8_saturated=saturated
            )
            for event, (loss, *parts) in zip(events, rows, strict=True)
        ]  # fmt: skip
