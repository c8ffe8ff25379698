"""A training run from its first update, or its latest checkpoint, to its last.

Every rank of the run calls `run_training` with the same settings, on the same folder. On CPUs an interrupted run gives
the losses of an uninterrupted one, bit by bit and with any number of ranks, if it continues with the same settings,
threads and library versions; on GPUs some kernels add up in an order that changes from run to run. What may change:
bert.train.resume.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from bert.checkpoints.model_config import read_config
from bert.checkpoints.ours import CONFIG_FILE
from bert.data.batch import Batch
from bert.model.config import model_config
from bert.model.encoder import recompute_activations
from bert.observer import Observer
from bert.parallel.base import Strategy
from bert.speed.registry import (
    AUTO,
    Setup,
    check_effect,
    check_precision,
    effective,
    fuses_optimizer,
    left_out_text,
    levers_text,
    resolve_levers,
    use_levers,
    use_weight_copies,
)
from bert.train.agreement import any_rank, same_on_all, together
from bert.train.base_run import BaseRun, RunRequest, make_optimizer, step_plan
from bert.train.checkpoint import (
    OPTIMIZER_FILE,
    Checkpoint,
    TrainState,
    latest,
    load_rng,
    load_scales,
    remove_left_overs,
    rng_file,
    scales_file,
    seed_generators,
    shared_steps,
    versions,
)
from bert.train.checkpoint import save as write_checkpoint
from bert.train.events import Optimized, Resumed, RunOutcome, Saved
from bert.train.feed import Feed, data_spec
from bert.train.loop import DivergenceError, Training, parameters_are_finite, train
from bert.train.resume import Initial, changed_settings, check_resumable
from bert.train.weights import NotTaken, check_same_shape, load_initial, load_moments, load_weights
from common.errors import UsageError
from common.locks import locked


def run_training(asked: RunRequest) -> RunOutcome:
    """Train until `settings.steps` updates are made, resuming where an earlier run in the folder stopped; the folder is
    locked meanwhile.
    """
    settings, strategy = asked.settings, asked.strategy
    given = strategy.world_size * strategy.devices_per_rank
    if settings.world_size != given:
        raise UsageError(
            "option-conflict", f"the settings have world_size={settings.world_size}, but {given} devices were given"
        )
    with _locked_by_first(asked.folder, strategy):
        run = _Run(asked)
        try:
            return run.go()
        finally:
            run.close()


@contextmanager
def _locked_by_first(folder: Path, strategy: Strategy) -> Iterator[None]:
    with ExitStack() as stack:

        def lock() -> None:
            if strategy.rank == 0:
                remedy = "wait until it ends, or train in another folder"
                stack.enter_context(locked(folder, "another training run", remedy))
                remove_left_overs(folder)

        together(strategy, lock)
        yield


class _Run(BaseRun):
    """A run with our model and loop."""

    def build(self, observer: Observer) -> Training:
        """Our model with its optimizations, in the state that the run resumes from or begins with."""
        settings, strategy = self.settings, self.strategy
        self.config = model_config(settings)
        self.resumed_from, initial = self._origin()
        torch.manual_seed(settings.seed)
        self.model = self.task.build_model(self.config, observer)
        left = None if initial is None else together(strategy, lambda: self._load_model(initial))
        self._shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        levers = self._optimizations()
        self.spec = data_spec(settings, strategy, levers)
        use_levers(self.model, levers)
        if settings.activation_checkpointing:
            recompute_activations(self.model)
        wrapped = strategy.wrap(self.model, observer, step_plan(settings, levers))
        use_weight_copies(
            wrapped, levers, precision=settings.precision, strategy=settings.strategy,
            grad_accum_steps=settings.grad_accum_steps, optimizer=settings.optimizer,
        )  # fmt: skip
        self.optimizer = make_optimizer(settings, wrapped, fuses_optimizer(wrapped, levers, settings.strategy))
        strategy.prepare(self.optimizer, self.precision)
        if initial is not None and left is not None:
            self._load_optimizer(initial, left)
        self.feed = together(strategy, lambda: self._open_feed(levers))
        if self.resumed_from is not None:
            self.log.samples_seen = self.resumed_from.state.samples_seen
            self.checkpoint = self.resumed_from.path
        self._saved = self.counts.applied_steps
        self._begin_scales()
        training = self.make_training(wrapped, self.optimizer, self.log.compute_loss, self.feed)
        self._begin_random_numbers()
        return training

    def _optimizations(self) -> frozenset[str]:
        """Report the optimizations that are on, and why others are not; return those that are on.

        What has no effect is refused, except in a run that was begun with it, before it was refused.
        """
        settings, begun = self.settings, self.resumed_from
        setup = Setup.of(settings, self.strategy.device.type)
        check_precision(settings.levers, settings.precision)
        if begun is None or begun.state.settings.levers != settings.levers:
            check_effect(settings.levers, setup)
        levers, left_out = together(
            self.strategy, lambda: effective(resolve_levers(settings.levers, setup.device), setup)
        )
        same_on_all(self.strategy, levers_text(levers), "optimizations")
        if left_out and settings.levers != AUTO:
            self.warn(f"--levers {settings.levers!r}: {left_out_text(left_out)}: the run continues without it")
        self.report(Optimized(levers_text(levers), left_out))
        return levers

    def _origin(self) -> tuple[Checkpoint | None, Initial | None]:
        found = together(self.strategy, lambda: latest(self.folder, self.warn))
        same_on_all(self.strategy, str(found and found.path.name), "the latest checkpoint")
        if found is not None:
            together(self.strategy, partial(self._take_state, found))
            self.evaluations.take_over(found.state, self.folder)
            return found, Initial(found.path, found)
        return None, self.initial()

    def _take_state(self, found: Checkpoint) -> None:
        check_same_shape(read_config(found.path / CONFIG_FILE), self.config, found.path)
        for message in check_resumable(self.settings, self.data, found):
            self.warn(message)
        self.counts.load_state_dict(found.state.progress)
        self.precision.load_state_dict(found.state.scaler)

    def _load_model(self, initial: Initial) -> NotTaken:
        if self.resumed_from is None:
            return load_initial(initial, self.model, self.config, whole=not self.task.begins_from_encoder)
        load_weights(initial.weights, self.model, self.config)
        return NotTaken()

    def _load_optimizer(self, initial: Initial, left: NotTaken) -> None:
        """Take the moments, unless they are another optimizer's or model's; say what the run begins from."""
        checkpoint, settings = initial.checkpoint, self.settings
        if self.resumed_from is None and self.task.begins_from_encoder:
            checkpoint = None
        same = checkpoint is not None and checkpoint.state.settings.optimizer == settings.optimizer
        if checkpoint is not None and same:
            path, steps = checkpoint.path / OPTIMIZER_FILE, checkpoint.state.optimizer_steps
            moments = together(self.strategy, lambda: load_moments(path, self._shapes, self.config))
            take = self.strategy.load_moments
            together(self.strategy, lambda: take(self.model, self.optimizer, moments, steps))
        elif checkpoint is not None:
            self.warn(
                f"{checkpoint.path} was trained with {checkpoint.state.settings.optimizer}, but this run uses "
                f"{settings.optimizer}: only its weights are used, not the optimizer state"
            )
        self.report(
            Resumed(
                path=initial.weights,
                applied_steps=self.counts.applied_steps,
                new_phase=self.resumed_from is None,
                moments=same,
                changed={} if self.resumed_from is None else changed_settings(settings, self.resumed_from),
                missing=left.missing,
                unused=left.unused,
            )
        )
        if left.missing and not self.task.begins_from_encoder:
            self.warn(
                f"{len(left.missing)} weights of the model are missing in {initial.weights}, {left.missing[0]} first: "
                "they start from random values"
            )

    def _open_feed(self, levers: frozenset[str]) -> Feed:
        stream = self.task.batches(self.spec)
        if self.resumed_from is not None:
            state, saved = self.resumed_from.state, self.resumed_from.state.settings
            position = state.position
            per_micro_step = self.spec.micro_batch_size * self.spec.world_size
            if self.data.fingerprint is None and per_micro_step != saved.micro_batch_size * saved.world_size:
                # Synthetic batches are counted, not samples.
                position = {**position, "step": state.samples_seen // per_micro_step}
            stream.load_state_dict(position)
        return Feed(
            stream, self.strategy.device.type == "cuda", partial(Batch.laid_out, full="compile" in levers),
            self.settings.grad_accum_steps,
        )  # fmt: skip

    def _begin_scales(self) -> None:
        """Continue with saved scales of FP8; without them the first step measures its tensors."""
        if self.resumed_from is not None:
            path = self.resumed_from.path / scales_file(self.strategy.rank)
            if not together(self.strategy, lambda: load_scales(path, self.model)) and path.exists():
                self.warn(f"{path} has the scales of another model in FP8: the first step measures its tensors")

    def _begin_random_numbers(self) -> None:
        """Continue with saved generators, or seed them: the last thing before the first step."""
        rank, found = self.strategy.rank, self.resumed_from
        if found is not None:
            path = found.path / rng_file(rank)
            if together(self.strategy, lambda: load_rng(path, self.strategy.device)):
                return
        seed_generators(self.settings.seed, rank, self.counts.applied_steps)

    def go(self) -> RunOutcome:
        """Train to the end, or until asked to stop."""
        first = self.counts.applied_steps + self.counts.skipped_steps
        try:
            train(self.training, self.observer, self.between_steps, first)
        except DivergenceError as error:
            self.read_losses()
            there = f"is {self.checkpoint}; run the same command again to resume from it"
            last = there if self.checkpoint else "does not exist: the run saved none"
            raise DivergenceError(
                f"{error}. The last good checkpoint {last}", error.step, error.learning_rate
            ) from error
        resumed_from = None if self.resumed_from is None else self.resumed_from.path
        return self.outcome(resumed_from)

    def close(self) -> None:
        """End the threads that read ahead."""
        self.feed.close()

    def model_to_evaluate(self) -> torch.nn.Module:
        """The model that is trained."""
        return self.model

    def due(self, done: bool, stop: bool) -> bool:
        """At the end, before a stop, and every so many updates; once after each."""
        applied = self.counts.applied_steps
        return (done or stop or applied % self.settings.save_every == 0) and applied != self._saved

    def save(self, step: int) -> None:
        """Save a checkpoint, but no parameters that are not numbers."""
        began = time.perf_counter()
        self.count_left_out()
        if any_rank(self.strategy, not parameters_are_finite(self.strategy.held(self.model))):
            rate = float(self.optimizer.param_groups[0]["lr"])
            raise DivergenceError(
                f"the parameters after step {step} are not finite (learning rate {rate:.6g}): lower the "
                "learning rate or lengthen the warm-up",
                step - 1,
                rate,
            )
        state = TrainState(
            settings=self.settings,
            data=self.data,
            position=self.feed.position,
            progress=self.counts.state_dict(),
            samples_seen=self.log.samples_seen,
            scaler=self.precision.state_dict(),
            optimizer_steps=shared_steps(self.optimizer),
            evaluation=self.evaluations.latest,
            best=self.evaluations.best,
            versions=versions(),
        )
        self.checkpoint, size = write_checkpoint(
            self.folder, self.model, self.optimizer, state, self.strategy, self.vocabulary
        )
        self._saved = self.counts.applied_steps
        seconds = time.perf_counter() - began
        best = self.evaluations.best
        self.report(Saved(applied_steps=self._saved, path=self.checkpoint, seconds=seconds, size_bytes=size, best=best))
