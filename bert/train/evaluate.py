"""The evaluations of a run: made when they are due, each compared with the best so far."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bert.checkpoints.read import checkpoint_path
from bert.data.batches import DataSpec
from bert.optim.precision import Precision
from bert.parallel.base import Strategy
from bert.tasks.base import DataIdentity, Evaluation, EvaluationSpec, Evaluator, Task, deciding
from bert.train.checkpoint import TrainState
from bert.train.events import Best, Evaluated
from bert.train.settings import TrainSettings


def evaluate(model: torch.nn.Module, evaluator: Evaluator, strategy: Strategy, precision: Precision) -> Evaluation:
    """Measure a model, the one that the strategy has wrapped without what is around it; every rank must call it.

    Nothing is drawn from random number generators; the model is left in the mode it was in.
    """
    with strategy.whole(model) as whole:
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
    """

    def __init__(self, settings: TrainSettings, task: Task, strategy: Strategy, warn: Callable[[str], None]) -> None:
        self.latest: Evaluation | None = None
        self.best: Best | None = None
        self._every = settings.eval_every
        self._steps = settings.steps
        self._wanted = EvaluationSpec(source=settings.eval_data, samples=settings.eval_samples)
        self._task = task
        self._score, self._higher_is_better = deciding(task, settings.best_by)
        self._strategy = strategy
        self._warn = warn
        self._evaluator: Evaluator | None = None
        self._evaluated = 0  # updates of the run when the latest one was made, or it began

    def open(self, spec: DataSpec, data: DataIdentity) -> None:
        """Open what to evaluate on, if the run is to be evaluated; every rank must call it. Raises InputError."""
        if self._every == 0:
            return
        if data.fingerprint is None:
            self._warn("synthetic data has no test shards and no answers: the run is not evaluated")
            return
        self._evaluator = self._strategy.together(lambda: self._task.evaluator(spec, self._wanted))

    def take_over(self, state: TrainState, folder: Path) -> None:
        """Resume from a checkpoint in `folder`, with its best evaluation if new ones can be compared with it."""
        self.latest = state.evaluation
        self.best = self._still_best(state.best, folder)
        before, applied = state.settings, state.applied_steps
        made = before.eval_every > 0 and (applied >= before.steps or applied % before.eval_every == 0)
        # After the last update there is no next evaluation to choose the best by.
        none_follows = applied >= self._steps and state.best is not None and self.best is None
        self._evaluated = applied if self.latest is not None and made and not none_follows else -1

    def due(self, applied_steps: int, done: bool) -> bool:
        """Whether the model is to be evaluated after this many updates, `done` after the last of them."""
        due = self._evaluator is not None and (done or applied_steps % self._every == 0)
        return due and applied_steps != self._evaluated

    def make(self, model: torch.nn.Module, precision: Precision, applied_steps: int) -> Evaluated:
        """Evaluate the model, without what the strategy wraps around it; every rank must call it."""
        assert self._evaluator is not None
        began = time.perf_counter()
        self.latest = evaluate(model, self._evaluator, self._strategy, precision)
        self._evaluated = applied_steps
        name = self._score
        if name not in self.latest.values:
            self._warn(f"the evaluation returned no {name}, which selects the best checkpoint")
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
        gone = self._strategy.any_rank(not (folder / name).is_dir())
        if not gone and (best.score, best.data) == (self._score, self._evaluator.fingerprint):
            return best
        why = "is missing" if gone else f"was so by {best.score}" if best.score != self._score else "on other samples"
        self._warn(f"{name}, the best checkpoint so far, {why}: the next evaluation counts as the best")
        return None
