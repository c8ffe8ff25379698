"""Hugging Face's Trainer in place of bert.train.loop.train, with the same Training, observers and checks.

A training run with it has our weights, batches, optimizer and schedule. It cannot resume: an interrupted run starts
again, and a finished run is kept. At the end the weights are saved, of a preset in our format, so that `bertbench
predict` and `bertbench eval` can read them.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from bench.implementations.hugging_face import GivenModel, HuggingFaceImplementation, HuggingFaceModel, preset_config
from bert.checkpoints.files import new_folder, save_model
from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.checkpoints.read import checkpoint_path
from bert.data.batch import Batch, BatchCounts
from bert.data.vocabulary import VOCABULARY_FILE
from bert.model.config import model_config
from bert.observer import Observer, StepResult
from bert.parallel import read_options
from bert.parallel.base import Options
from bert.tasks.base import Task
from bert.train.base_run import Run, RunRequest, make_optimizer
from bert.train.checkpoint import seed_generators
from bert.train.events import Best, RunOutcome, Saved, Warned
from bert.train.feed import Feed
from bert.train.loop import Training
from bert.train.resume import load_weights
from bert.train.settings import TrainSettings
from common.atomic import write_text
from records.trial import Trial

KeepGoing = Callable[[int], bool]
# More steps than any run has; the caller decides when to stop.
_ENDLESS = 2**40
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def train_with_trainer(training: Training, observer: Observer, keep_going: KeepGoing, options: Options) -> int:
    """Train with transformers.Trainer until `keep_going(step)` is False; return the number of the first step not run.

    Trainer wraps the model (DistributedDataParallel through Accelerate), moves batches, scales losses and gradients,
    clips, and steps the optimizer. `training` provides model, batches, optimizer and learning rates, and its strategy
    has already joined the ranks; all other arguments are defaults of Trainer. Phases are timed where Trainer enters
    them; Trainer does not report when the last gradients are ready. Its loss is the mean of the micro-batches' means,
    whatever they predict. `options` are those of the strategy.
    """
    if not keep_going(0):
        return 0
    device = training.strategy.device
    with ExitStack() as stack:
        if training.strategy.world_size == 1:
            # Without torchrun's variables a process that trains alone joins no process group.
            hidden = {name: os.environ.pop(name) for name in _RANK_VARIABLES if name in os.environ}
            stack.callback(os.environ.update, hidden)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bertbench-"))
        with torch.random.fork_rng(devices=[device] * (device.type == "cuda")):  # it seeds every rank alike
            trainer = _Trainer(training, observer, keep_going, _arguments(training, folder, options))
        stack.callback(observer.run_end)
        observer.run_begin()
        trainer.train()
    if training.divergence is not None:
        training.divergence.check(training.strategy, training.progress)
    return trainer.step


class _Trainer(Trainer):  # type: ignore[misc]
    """Trainer with our batches, which are already those of this rank, our loss and our learning rates."""

    def __init__(self, training: Training, observer: Observer, keep_going: KeepGoing, arguments: Any) -> None:
        self.training, self.observer, self.keep_going = training, observer, keep_going
        self.step = 0
        # Of the step that is being made; losses are divided by the number of micro-steps.
        self.counts: list[BatchCounts] = []
        self.losses: list[torch.Tensor] = []
        self.update = ExitStack()
        constant = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: 1.0)
        super().__init__(
            model=training.model.to(training.strategy.device),
            args=arguments,
            callbacks=[_AtStepEnds(self)],
            optimizers=(training.optimizer, constant),
        )
        self.remove_callback(PrinterCallback)
        # The loss of a micro-step is a mean and must be divided by the number of micro-steps.
        self.model_accepts_loss_kwargs = False
        backward = self.accelerator.backward

        def timed(*args: Any, **options: Any) -> None:
            with observer.phase("backward"):
                backward(*args, **options)

        self.accelerator.backward = timed

    def get_train_dataloader(self) -> Iterator[dict[str, torch.Tensor]]:
        training = self.training
        while True:
            self.observer.step_begin(self.step)
            if training.learning_rate is not None:
                for group in training.optimizer.param_groups:
                    group["lr"] = training.learning_rate(training.progress.applied_steps)
            for _ in range(training.grad_accum_steps):
                with self.observer.phase("data"):
                    batch = next(training.batches)
                self.counts.append(batch.counts)
                yield dict(batch.tensors)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> torch.Tensor:
        with self.observer.phase("forward"):
            return self.training.compute_loss(model, Batch(inputs, self.counts[len(self.losses)]))

    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        """Make a micro-step; the update begins after the last one of a step."""
        loss: torch.Tensor = super().training_step(*args, **options)
        self.losses.append(loss)
        if len(self.losses) == self.training.grad_accum_steps:
            self.rate = float(self.training.optimizer.param_groups[0]["lr"])
            self.update.enter_context(self.observer.phase("optimizer"))
        return loss

    def end_step(self) -> bool:
        """Report a step; return whether another one follows."""
        self.update.close()
        training, applied = self.training, not self.accelerator.optimizer_step_was_skipped
        training.progress.count(applied)
        result = StepResult(reduce(add, self.counts), reduce(add, self.losses), self.rate, applied)
        self.counts, self.losses = [], []
        self.observer.step_end(self.step, result)
        if training.divergence is not None:
            training.divergence.note(self.step, result, training.progress, training.precision.scaler is not None)
            if training.divergence.due(self.step, training.strategy.device):
                training.divergence.check(training.strategy, training.progress)
        self.step += 1
        return self.keep_going(self.step)


class _AtStepEnds(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: _Trainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        control.should_training_stop = not self.trainer.end_step()


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


def run_training(asked: RunRequest) -> RunOutcome:
    """Train from the first update to `settings.steps`."""
    settings, strategy = asked.settings, asked.strategy
    HuggingFaceImplementation().check(Trial.of(settings, implementation="hf-trainer"))
    final = checkpoint_path(asked.folder, settings.steps)
    if not strategy.any_rank(strategy.rank == 0 and final.is_dir()):
        return _train(asked)
    if strategy.rank == 0:
        done = f"this run has finished its {settings.steps} updates"
        asked.report(Warned(message=f"{done}, so nothing was trained: give another --out to train again"))
    samples = settings.steps * settings.global_batch_size
    return RunOutcome(
        finished=True, applied_steps=settings.steps, skipped_steps=0, samples_seen=samples, resumed_from=None,
        checkpoint=final, evaluation=None,
    )  # fmt: skip


def _train(asked: RunRequest) -> RunOutcome:
    run = Run(asked, tells_parts=False)
    settings, strategy = run.settings, run.strategy
    torch.manual_seed(settings.seed)
    trained = strategy.together(lambda: GivenModel(settings, run.task)) if settings.model else _port(run)
    model: Any = strategy.together(trained.module).to(strategy.device)
    if names := trained.not_loaded:
        run.warn(f"{len(names)} weights begin with random values: {', '.join(names)}")
    batches = Feed(run.task.batches(run.spec), strategy.device.type == "cuda", trained.adapt)
    training = run.training(model, make_optimizer(settings, model), trained.loss, batches)
    seed_generators(settings.seed, strategy.rank, 0)
    keeper = _Keeper(run, trained, model)
    options = read_options(settings.strategy_options)
    train_with_trainer(training, run.observer, partial(run.between_steps, keeper), options)
    if not run.done:
        run.warn("hf-trainer saves no intermediate checkpoints: if interrupted, this run starts again from step 1")
    return replace(run.outcome(), best=keeper.best_saved())


def _port(run: Run) -> "_Port":
    settings, config = run.settings, model_config(run.settings)
    ours = run.task.build_model(config)
    if (initial := run.initial_weights()) is not None:
        whole = not run.task.begins_from_encoder
        run.strategy.together(lambda: load_weights(initial, ours, config, whole))
    return _Port(settings, run.task, ours)


class _Keeper:
    """Saves the weights of Hugging Face's model, only at the end."""

    saves_best = False

    def __init__(self, run: Run, trained: HuggingFaceModel, model: Any) -> None:
        self._run, self._trained, self._model = run, trained, model

    def best_saved(self) -> Best | None:
        run, best = self._run, self._run.evaluations.best
        return best if best is not None and run.done and best.applied_steps == run.counts.applied_steps else None

    def model_to_evaluate(self) -> torch.nn.Module:
        return self._trained.scored(self._model).to(self._run.strategy.device)

    def due(self, done: bool, stop: bool) -> bool:
        return done

    def save(self, step: int) -> None:
        run = self._run
        began, applied = time.perf_counter(), run.counts.applied_steps
        run.checkpoint = final = checkpoint_path(run.folder, applied)

        def write() -> int:
            if run.strategy.rank != 0:
                return 0
            with new_folder(final) as folder:
                self._trained.write(self._model, folder)
                if run.vocabulary is not None:
                    write_text(folder / VOCABULARY_FILE, run.vocabulary)
            return sum(path.stat().st_size for path in final.iterdir())

        size = run.strategy.together(write)
        seconds, best = time.perf_counter() - began, self.best_saved()
        run.report(Saved(applied_steps=applied, path=final, seconds=seconds, size_bytes=size, best=best))


class _Port(HuggingFaceModel):
    """Hugging Face's model in the shape of ours, whose weights begin, are saved and are evaluated as ours."""

    def __init__(self, settings: TrainSettings, task: Task, ours: torch.nn.Module) -> None:
        super().__init__(settings, task, preset_config(model_config(settings)))
        self._begin = to_hugging_face_state(ours)

    def module(self) -> Any:
        model = super().module()
        missing = model.load_state_dict(self._begin, strict=False).missing_keys
        assert all(name.startswith("cls.predictions.decoder.") for name in missing)  # tied
        return model

    def scored(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return our model with the weights of Hugging Face's, on the CPU, without changing the random state."""
        with torch.random.fork_rng(devices=[]):
            ours = self.task.build_model(model_config(self.spec))
        load_hugging_face_state(ours, {name: value.cpu() for name, value in model.state_dict().items()})
        return ours

    def write(self, model: torch.nn.Module, folder: Path) -> None:
        save_model(folder, self.scored(model))
