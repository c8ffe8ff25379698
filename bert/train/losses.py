"""The losses of steps: collected on the device, read in bundles, averaged over ranks."""

from dataclasses import dataclass

import torch

from bert.data.batch import Batch
from bert.optim.precision import Precision
from bert.parallel.base import Strategy
from bert.tasks.base import Task
from bert.train.events import Progress
from bert.train.loop import Progress as UpdateCounts
from bert.train.observer import Observer, StepResult


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    learning_rate: float
    applied: bool
    applied_steps: int
    samples_seen: int
    losses: torch.Tensor


class LossLog(Observer):
    """Keeps what each step did until `read`; nothing waits for a GPU before that."""

    def __init__(
        self,
        task: Task,
        counts: UpdateCounts,
        global_batch_size: int,
        grad_accum_steps: int,
        samples_seen: int,
    ) -> None:
        self.samples_seen = samples_seen
        self._task = task
        self._counts = counts
        self._global_batch_size = global_batch_size
        self._grad_accum_steps = grad_accum_steps
        self._parts: torch.Tensor | None = None
        self._steps: list[_Step] = []

    def __len__(self) -> int:
        """Return the number of steps that were not read yet."""
        return len(self._steps)

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean training loss of one micro-batch; its parts are noted."""
        loss, named = self._task.loss_parts(model, batch)
        if named:
            parts = torch.stack([named[name] for name in self._task.parts])
            self._parts = parts if self._parts is None else self._parts + parts
        return loss

    def step_end(self, step: int, result: StepResult) -> None:
        """Keep the step."""
        self.samples_seen += self._global_batch_size
        losses = result.loss.reshape(1)
        if self._parts is not None:
            losses = torch.cat((losses, self._parts / self._grad_accum_steps))
        self._parts = None
        self._steps.append(
            _Step(
                step,
                result.learning_rate,
                result.applied is not False,
                self._counts.applied_steps,
                self.samples_seen,
                losses,
            )
        )

    def read(self, strategy: Strategy, precision: Precision) -> list[Progress]:
        """Return the steps since the last time, losses averaged over ranks; every rank has to call it."""
        if not self._steps:
            return []
        own = torch.stack([step.losses for step in self._steps]).double().cpu()
        rows = (strategy.total(own.flatten()) / strategy.world_size).view(own.shape).tolist()
        scale = None if precision.scaler is None else float(precision.scaler.get_scale())
        steps, self._steps = self._steps, []
        return [
            Progress(
                step=step.number,
                loss=loss,
                parts=dict(zip(self._task.parts, parts, strict=True)),
                learning_rate=step.learning_rate,
                applied=step.applied,
                applied_steps=step.applied_steps,
                samples_seen=step.samples_seen,
                loss_scale=scale,
            )
            for step, (loss, *parts) in zip(steps, rows, strict=True)
        ]
