"""Hugging Face models, trained by Hugging Face's Trainer instead of bert.train.loop.train, with the same Training,
observers and checks.
"""

import importlib.util
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.implementations import TRAINER_STRATEGIES
from bench.implementations.base import Built
from bench.implementations.hugging_face import HuggingFaceImplementation
from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.parallel.base import Options
from bert.parallel.options import read_options
from bert.tasks.base import Task
from bert.train.loop import Training
from bert.train.observer import Observer, StepResult
from common.errors import MissingToolError, UsageError
from records.trial import Trial

# More steps than any run has; the caller decides when to stop.
_ENDLESS = 2**40
# torchrun's variables; Accelerate reads them to detect other ranks.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_NEEDED = ("transformers", "accelerate")


def check_packages(implementation: str) -> None:
    """Raise MissingToolError if a package that the Trainer needs is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingToolError(
            "package-missing",
            f"implementation {implementation!r} needs the package {' and '.join(missing)}: pip install 'bertbench[hf]'",
        )


class TrainerImplementation(HuggingFaceImplementation):
    """`transformers.Trainer` with `transformers` models and our batches and optimizer."""

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError without transformers or accelerate, UsageError for unsupported trials."""
        check_packages(trial.implementation)
        if trial.strategy not in TRAINER_STRATEGIES:
            raise UsageError(
                "unsupported-combination",
                f"implementation {trial.implementation!r} does not support strategy {trial.strategy!r}: use "
                f"{' or '.join(TRAINER_STRATEGIES)}",
            )
        super().check(trial)

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the Hugging Face model with the loop of Trainer."""
        built = super().build(trial, task, config, observer)
        return Built(
            model=built.model,
            make_optimizer=built.make_optimizer,
            compute_loss=built.compute_loss,
            loop=partial(train_with_trainer, options=read_options(trial.strategy_options)),
        )


def train_with_trainer(
    training: Training,
    observer: Observer,
    keep_going: Callable[[int], bool],
    options: Options,
) -> int:
    """Train with transformers.Trainer until `keep_going(step)` is False; return the number of the first step not run.

    Trainer wraps the model (DistributedDataParallel through Accelerate), moves batches, scales losses and gradients,
    clips, and steps optimizer and scheduler. `training` provides model, batches, optimizer and learning rates, and its
    strategy has already joined the ranks; all other arguments are defaults of Trainer. Phases are timed where Trainer
    enters them; Trainer does not report when the last gradients are ready.

    Args:
        training: training with an unwrapped model.
        observer: observer of the loop.
        keep_going: as in bert.train.loop.train.
        options: options of the strategy (bert.parallel.options).
    """
    if not keep_going(0):
        return 0
    meter = _Meter(training, observer, keep_going)
    with ExitStack() as stack:
        if training.strategy.world_size == 1:
            stack.enter_context(_without_ranks())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertbench-")))
        random_numbers = _random_state(training.strategy.device)
        trainer = _make_trainer(training, meter, _arguments(training, folder, options), random_numbers)
        stack.callback(observer.run_end)
        observer.run_begin()
        trainer.train()
    if training.divergence is not None:
        training.divergence.check(training.strategy)
    return meter.step


class _Meter:
    """Reports the steps of Trainer to the observers, and tells Trainer when to stop."""

    def __init__(self, training: Training, observer: Observer, keep_going: Callable[[int], bool]) -> None:
        self.training = training
        self.observer = observer
        self.keep_going = keep_going
        self.step = 0
        self.learning_rate = 0.0
        self.waiting: deque[BatchCounts] = deque()
        self._made = 0
        self._counts: BatchCounts | None = None
        self._loss: torch.Tensor | None = None
        self._phase: AbstractContextManager[None] | None = None

    def batches(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the tensors of micro-batches; a step begins with the request for its first one."""
        while True:
            if self._made % self.training.grad_accum_steps == 0:
                self.observer.step_begin(self.step)
            with self.observer.phase("data"):
                batch = next(self.training.batches)
            self._made += 1
            self.waiting.append(batch.counts)
            yield dict(batch.tensors)

    def loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of the micro-batch that Trainer has moved to the device."""
        counts = self.waiting.popleft()
        self._counts = counts if self._counts is None else self._counts + counts
        with self.observer.phase("forward"):
            return self.training.compute_loss(model, Batch(inputs, counts))

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of a micro-step, divided by the number of micro-steps."""
        self._loss = loss if self._loss is None else self._loss + loss

    def begin_update(self) -> None:
        """Mark the begin of the update, after the last gradients of a step."""
        if not self.waiting:
            self._phase = self.observer.phase("optimizer")
            self._phase.__enter__()

    def end_step(self, applied: bool) -> bool:
        """Count a step; return whether to run another one."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        assert self._loss is not None and self._counts is not None
        training = self.training
        training.progress.count(applied)
        result = StepResult(self._counts, self._loss, self.learning_rate, applied)
        self._phase = self._loss = self._counts = None
        self.observer.step_end(self.step, result)
        if training.divergence is not None:
            training.divergence.note(self.step, result, training.progress)
            if training.divergence.due(self.step, training.strategy.device):
                training.divergence.check(training.strategy)
        self.step += 1
        return self.keep_going(self.step)


def _make_trainer(training: Training, meter: _Meter, arguments: Any, random_numbers: Callable[[], None]) -> Any:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    class Told(TrainerCallback):  # type: ignore[misc]
        """Forwards the events of Trainer."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Restore the random states, since Trainer seeds every rank with the same number."""
            random_numbers()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Record the learning rate before the scheduler changes it."""
            meter.learning_rate = float(training.optimizer.param_groups[0]["lr"])

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """End the step."""
            skipped = bool(trainer.accelerator.optimizer_step_was_skipped)
            control.should_training_stop = not meter.end_step(not skipped)

    class Metered(Trainer):  # type: ignore[misc]
        """Uses our batches and our loss."""

        def get_train_dataloader(self) -> Any:
            """Return the micro-batches, which are already those of this rank."""
            return _Loader(meter)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> torch.Tensor:
            """Return the mean loss of a micro-batch."""
            return meter.loss(model, inputs)

        def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
            """Run forward and backward of a micro-batch."""
            loss: torch.Tensor = super().training_step(*args, **options)
            meter.add(loss)
            meter.begin_update()
            return loss

    trainer = Metered(
        model=training.model.to(training.strategy.device),
        args=arguments,
        callbacks=[Told()],
        optimizers=(training.optimizer, _scheduler(training)),
    )
    trainer.remove_callback(PrinterCallback)
    # The loss of a micro-step is a mean and must be divided by the number of micro-steps.
    trainer.model_accepts_loss_kwargs = False
    backward = trainer.accelerator.backward

    def timed(*args: Any, **options: Any) -> None:
        with meter.observer.phase("backward"):
            backward(*args, **options)

    trainer.accelerator.backward = timed
    return trainer


class _Loader:
    """The data loader of Trainer, without a length."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return self._meter.batches()


def _arguments(training: Training, folder: Path, options: Options) -> Any:
    from transformers import TrainingArguments

    on_cpu = training.strategy.device.type == "cpu"
    arguments = TrainingArguments(
        output_dir=str(folder),
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


def _scheduler(training: Training) -> torch.optim.lr_scheduler.LRScheduler:
    given = training.learning_rate
    base = float(training.optimizer.param_groups[0]["lr"])

    class Rates(torch.optim.lr_scheduler.LRScheduler):
        """Our learning rates as functions of the number of updates."""

        def get_lr(self) -> list[float | torch.Tensor]:
            """Return the learning rate of the next update for each group."""
            rate = base if given is None else given(self.last_epoch + training_began)
            return [rate for _ in training.optimizer.param_groups]

    training_began = training.progress.applied_steps
    return Rates(training.optimizer)


def _random_state(device: torch.device) -> Callable[[], None]:
    state = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        torch.set_rng_state(state)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)

    return restore


@contextmanager
def _without_ranks() -> Iterator[None]:
    """Hide torchrun's variables, so that a process that trains alone joins no process group."""
    known = {name: os.environ.pop(name) for name in _RANK_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(known)
