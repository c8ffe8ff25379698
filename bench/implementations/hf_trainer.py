"""Hugging Face's Trainer in place of bert.train.loop.train, with the same Training, observers and checks."""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from bert.data.batch import Batch, BatchCounts
from bert.parallel.base import Options
from bert.train.loop import Training
from bert.train.observer import Observer, StepResult

# More steps than any run has; the caller decides when to stop.
_ENDLESS = 2**40
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def train_with_trainer(
    training: Training, observer: Observer, keep_going: Callable[[int], bool], options: Options
) -> int:
    """Train with transformers.Trainer until `keep_going(step)` is False; return the number of the first step not run.

    Trainer wraps the model (DistributedDataParallel through Accelerate), moves batches, scales losses and gradients,
    clips, and steps optimizer and scheduler. `training` provides model, batches, optimizer and learning rates, and its
    strategy has already joined the ranks; all other arguments are defaults of Trainer. Phases are timed where Trainer
    enters them; Trainer does not report when the last gradients are ready. `options` are those of the strategy.
    """
    if not keep_going(0):
        return 0
    steps = _Steps(training, observer, keep_going)
    with ExitStack() as stack:
        if training.strategy.world_size == 1:
            # Without torchrun's variables a process that trains alone joins no process group.
            hidden = {name: os.environ.pop(name) for name in _RANK_VARIABLES if name in os.environ}
            stack.callback(os.environ.update, hidden)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bertbench-"))
        trainer = _Trainer(steps, _arguments(training, folder, options))
        stack.callback(observer.run_end)
        observer.run_begin()
        trainer.train()
    if training.divergence is not None:
        training.divergence.check(training.strategy)
    return steps.step


class _Steps(TrainerCallback):  # type: ignore[misc]
    """The data loader of Trainer, without a length, and its callback: reports steps to the observers and ends them."""

    def __init__(self, training: Training, observer: Observer, keep_going: Callable[[int], bool]) -> None:
        self.training, self.observer, self.keep_going = training, observer, keep_going
        self.step = 0
        self.skipped: Callable[[], bool]
        self._device = training.strategy.device
        self._random = torch.get_rng_state()
        self._random_on_gpu = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        self._rate = 0.0
        self._waiting: deque[BatchCounts] = deque()
        self._counts: BatchCounts | None = None
        self._loss: torch.Tensor | None = None
        self._phase: AbstractContextManager[None] | None = None

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            for micro in range(self.training.grad_accum_steps):
                if micro == 0:
                    self.observer.step_begin(self.step)
                with self.observer.phase("data"):
                    batch = next(self.training.batches)
                self._waiting.append(batch.counts)
                yield dict(batch.tensors)

    def loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        counts = self._waiting.popleft()
        self._counts = counts if self._counts is None else self._counts + counts
        with self.observer.phase("forward"):
            return self.training.compute_loss(model, Batch(inputs, counts))

    def end_micro_step(self, loss: torch.Tensor) -> None:
        """Add the loss, divided by the number of micro-steps; the update begins after the last one of a step."""
        self._loss = loss if self._loss is None else self._loss + loss
        if not self._waiting:
            self._phase = self.observer.phase("optimizer")
            self._phase.__enter__()

    def on_train_begin(self, *args: Any, **parts: Any) -> None:
        torch.set_rng_state(self._random)  # Trainer has seeded every rank with the same number
        if self._random_on_gpu is not None:
            torch.cuda.set_rng_state(self._random_on_gpu, self._device)

    def on_pre_optimizer_step(self, *args: Any, **parts: Any) -> None:
        self._rate = float(self.training.optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        assert self._loss is not None and self._counts is not None
        training, applied = self.training, not self.skipped()
        training.progress.count(applied)
        result = StepResult(self._counts, self._loss, self._rate, applied)
        self._phase = self._loss = self._counts = None
        self.observer.step_end(self.step, result)
        if training.divergence is not None:
            training.divergence.note(self.step, result, training.progress)
            if training.divergence.due(self.step, training.strategy.device):
                training.divergence.check(training.strategy)
        self.step += 1
        control.should_training_stop = not self.keep_going(self.step)


class _Trainer(Trainer):  # type: ignore[misc]
    """Trainer with our batches, which are already those of this rank, and our loss."""

    def __init__(self, steps: _Steps, arguments: TrainingArguments) -> None:
        training = steps.training
        self.steps = steps
        super().__init__(
            model=training.model.to(training.strategy.device),
            args=arguments,
            callbacks=[steps],
            optimizers=(training.optimizer, _Rates(training)),
        )
        self.remove_callback(PrinterCallback)
        # The loss of a micro-step is a mean and must be divided by the number of micro-steps.
        self.model_accepts_loss_kwargs = False
        steps.skipped = lambda: bool(self.accelerator.optimizer_step_was_skipped)
        backward = self.accelerator.backward

        def timed(*args: Any, **options: Any) -> None:
            with steps.observer.phase("backward"):
                backward(*args, **options)

        self.accelerator.backward = timed

    def get_train_dataloader(self) -> _Steps:
        return self.steps

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> torch.Tensor:
        return self.steps.loss(model, inputs)

    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **options)
        self.steps.end_micro_step(loss)
        return loss


class _Rates(torch.optim.lr_scheduler.LRScheduler):
    """Our learning rates as functions of the number of updates."""

    def __init__(self, training: Training) -> None:
        self._rate = training.learning_rate
        self._began = training.progress.applied_steps
        self._base = float(training.optimizer.param_groups[0]["lr"])
        super().__init__(training.optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        rate = self._base if self._rate is None else self._rate(self.last_epoch + self._began)
        return [rate for _ in self.optimizer.param_groups]


def _arguments(training: Training, folder: str, options: Options) -> TrainingArguments:
    on_cpu = training.strategy.device.type == "cpu"
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=_ENDLESS,
        gradient_accumulation_steps=training.grad_accum_steps,
        max_grad_norm=training.max_grad_norm or 0.0,
        use_cpu=on_cpu,
        bf16=training.precision.name == "bf16",
        fp16=training.precision.name == "fp16",
        ddp_backend=None if training.strategy.world_size == 1 else "gloo" if on_cpu else "nccl",
        ddp_bucket_cap_mb=options.get("bucket_mib"),
        ddp_find_unused_parameters=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    # Otherwise Trainer would use DataParallel in a process with several GPUs and no ranks.
    arguments._n_gpu = min(1, arguments.n_gpu) if arguments.device.type == "cuda" else 0
    return arguments
