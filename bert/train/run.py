"""A training run from its first update, or its latest checkpoint, to its last.

Every rank of the run calls `run_training` with the same settings, on the same folder. On CPUs an interrupted run gives
the losses of an uninterrupted one, bit by bit and with any number of ranks, if it continues with the same settings,
threads and library versions; on GPUs some kernels add up in an order that changes from run to run. What may change:
bert.train.resume.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from bert.checkpoints.read import OPTIMIZER_FILE, Found, find_checkpoint, newest_whole
from bert.checkpoints.weights import LoadReport
from bert.data.batch import Batch
from bert.model.config import model_config
from bert.model.encoder import recompute_activations
from bert.parallel.base import Strategy
from bert.speed import apply, copy_weights, fuses_optimizer, lacking
from bert.train.base_run import Run, RunRequest, make_optimizer, step_plan
from bert.train.checkpoint import (
    Checkpoint,
    TrainState,
    load_moments,
    load_rng,
    load_scales,
    read,
    remove_left_overs,
    rng_file,
    scales_file,
    seed_generators,
    shared_steps,
    versions,
)
from bert.train.checkpoint import save as write_checkpoint
from bert.train.events import Resumed, RunOutcome, Saved
from bert.train.feed import Feed, data_spec
from bert.train.loop import DivergenceError, Training, parameters_are_finite, train
from bert.train.resume import changed_settings, check_resumable, load_weights
from bert.train.settings import check_step
from common.errors import UsageError
from common.locks import locked


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a run resumes, or begins, from."""

    weights: Found | None = None
    """None: from scratch."""
    checkpoint: Checkpoint | None = None
    """What they are part of; None if they are weights alone."""
    resumes: bool = False
    """Whether it is a checkpoint of this run."""

    @property
    def resumed(self) -> Checkpoint | None:
        """The checkpoint of this run."""
        return self.checkpoint if self.resumes else None


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
        run = Run(asked)
        origin = _find_origin(run)
        model, not_taken = _make_model(run, origin)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        wrapped = _wrap(run, model)
        optimizer = make_optimizer(settings, wrapped, fuses_optimizer(wrapped, settings))
        strategy.prepare(optimizer, run.precision)
        if origin.resumed is not None:
            run.precision.load_state_dict(origin.resumed.state.scaler)
        if origin.weights is not None:
            moments = _load_moments(run, origin, model, optimizer, shapes)
            _report_origin(run, origin, moments, not_taken)
        feed = strategy.together(lambda: _open_feed(run, origin.resumed))
        try:
            training = run.training(wrapped, optimizer, run.log.compute_loss, feed)
            _begin_scales(run, origin.resumed, model)
            _begin_random_numbers(run, origin.resumed)
            return _train(run, training, _Keeper(run, model, optimizer, feed), origin.resumed)
        finally:
            feed.close()


@contextmanager
def _locked_by_first(folder: Path, strategy: Strategy) -> Iterator[None]:
    with ExitStack() as stack:

        def lock() -> None:
            if strategy.rank == 0:
                remedy = "wait until it ends, or train in another folder"
                stack.enter_context(locked(folder, "another training run", remedy))
                remove_left_overs(folder)

        strategy.together(lock)
        yield


def _find_origin(run: Run) -> _Origin:
    """Find the latest checkpoint of the run, and take its counts over; else what `init` names."""
    strategy = run.strategy
    path = strategy.together(lambda: newest_whole(run.folder, run.warn))
    strategy.check_same(str(path and path.name), "the latest checkpoint")
    if path is not None:
        checkpoint = strategy.together(lambda: _resumable(run, path))
        run.counts.load_state_dict(checkpoint.state.progress)
        run.evaluations.take_over(checkpoint.state, run.folder)
        run.log.samples_seen = checkpoint.state.samples_seen
        run.checkpoint = path
        return _Origin(find_checkpoint(path), checkpoint, resumes=True)
    found = run.initial_weights()
    return _Origin(found, read(found.path) if found is not None and found.state is not None else None)


def _resumable(run: Run, path: Path) -> Checkpoint:
    checkpoint = read(path)
    for message in check_resumable(run.settings, run.data, checkpoint):
        run.warn(message)
    return checkpoint


def _make_model(run: Run, origin: _Origin) -> tuple[nn.Module, LoadReport]:
    """Return our model with the weights it begins with, and what was not taken of those that were found."""
    config = model_config(run.settings)
    torch.manual_seed(run.settings.seed)
    model = run.task.build_model(config, run.model_observer)
    if (found := origin.weights) is None:
        return model, LoadReport()
    whole = origin.resumes or not run.task.begins_from_encoder
    return model, run.strategy.together(lambda: load_weights(found, model, config, whole))


def _wrap(run: Run, model: nn.Module) -> nn.Module:
    """Have a model compute its steps as the settings say, and wrap it by the strategy."""
    settings, device = run.settings, run.strategy.device.type
    run.strategy.together(lambda: check_step(settings, device))
    missing = lacking(settings.step, device)
    run.strategy.check_same(str(missing), "what the fast step lacks")
    if missing is not None:
        run.warn(f"the fast step is slower than it could be: {missing}")
    apply(model, settings.step)
    if settings.activation_checkpointing:
        recompute_activations(model)
    wrapped = run.strategy.wrap(model, run.model_observer, step_plan(settings))
    copy_weights(wrapped, settings, settings.optimizer, settings.fp8_fast_gradients)
    return wrapped


def _load_moments(
    run: Run, origin: _Origin, model: nn.Module, optimizer: torch.optim.Optimizer, shapes: Mapping[str, torch.Size]
) -> bool:
    """Give the optimizer the moments of a checkpoint, unless they are another one's; return whether it has them."""
    checkpoint, settings, strategy = origin.checkpoint, run.settings, run.strategy
    if checkpoint is None or (run.task.begins_from_encoder and not origin.resumes):
        return False
    if checkpoint.state.settings.optimizer != settings.optimizer:
        run.warn(
            f"{checkpoint.path} was trained with {checkpoint.state.settings.optimizer}, but this run uses "
            f"{settings.optimizer}: only its weights are used, not the optimizer state"
        )
        return False
    path, steps = checkpoint.path / OPTIMIZER_FILE, checkpoint.state.optimizer_steps
    moments = strategy.together(lambda: load_moments(path, shapes, model_config(settings)))
    strategy.together(lambda: strategy.load_moments(model, optimizer, moments, steps))
    return True


def _report_origin(run: Run, origin: _Origin, moments: bool, not_taken: LoadReport) -> None:
    assert origin.weights is not None
    path, resumed = origin.weights.path, origin.resumed
    run.report(
        Resumed(
            path=path,
            applied_steps=run.counts.applied_steps,
            new_phase=resumed is None,
            moments=moments,
            changed={} if resumed is None else changed_settings(run.settings, resumed),
            missing=not_taken.missing,
            unused=not_taken.unexpected,
        )
    )
    if not_taken.missing and not run.task.begins_from_encoder:
        run.warn(
            f"{len(not_taken.missing)} weights of the model are missing in {path}, {not_taken.missing[0]} first: they "
            "start from random values"
        )


def _open_feed(run: Run, resumed: Checkpoint | None) -> Feed:
    spec = data_spec(run.settings, run.strategy)
    stream = run.task.batches(spec)
    if resumed is not None:
        stream.load_state_dict(resumed.state.position)
    return Feed(stream, run.strategy.device.type == "cuda", Batch.laid_out, run.settings.grad_accum_steps)


def _begin_random_numbers(run: Run, resumed: Checkpoint | None) -> None:
    """Continue with saved generators, or seed them: the last thing before the first step."""
    rank = run.strategy.rank
    if resumed is not None:
        path = resumed.path / rng_file(rank)
        if run.strategy.together(lambda: load_rng(path, run.strategy.device)):
            return
    seed_generators(run.settings.seed, rank, run.counts.applied_steps)


def _begin_scales(run: Run, resumed: Checkpoint | None, model: nn.Module) -> None:
    """Continue with saved scales of FP8; without them the first step measures its tensors."""
    if resumed is not None:
        path = resumed.path / scales_file(run.strategy.rank)
        if not run.strategy.together(lambda: load_scales(path, model)) and path.exists():
            run.warn(f"{path} has the scales of another model in FP8: the first step measures its tensors")


def _train(run: Run, training: Training, keeper: "_Keeper", resumed: Checkpoint | None) -> RunOutcome:
    """Train to the end, or until asked to stop."""
    first = run.counts.applied_steps + run.counts.skipped_steps
    try:
        train(training, run.observer, partial(run.between_steps, keeper), first)
    except DivergenceError as error:
        run.read_losses()
        there = f"is {run.checkpoint}; run the same command again to resume from it"
        last = there if run.checkpoint else "does not exist: the run saved none"
        raise DivergenceError(f"{error}. The last good checkpoint {last}", error.step, error.learning_rate) from error
    return run.outcome(None if resumed is None else resumed.path)


class _Keeper:
    """Saves whole checkpoints of our model, from which a run resumes."""

    saves_best = True

    def __init__(self, run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Feed) -> None:
        self._run, self._model, self._optimizer, self._feed = run, model, optimizer, feed
        self._saved = run.counts.applied_steps

    def model_to_evaluate(self) -> nn.Module:
        """The model that is trained."""
        return self._model

    def due(self, done: bool, stop: bool) -> bool:
        """At the end, before a stop, and every so many updates; once after each."""
        applied = self._run.counts.applied_steps
        return (done or stop or applied % self._run.settings.save_every == 0) and applied != self._saved

    def save(self, step: int) -> None:
        """Save a checkpoint, but no parameters that are not numbers."""
        began, run, optimizer = time.perf_counter(), self._run, self._optimizer
        run.count_left_out()
        if run.strategy.any_rank(not parameters_are_finite(run.strategy.weights(self._model))):
            rate = float(optimizer.param_groups[0]["lr"])
            raise DivergenceError(
                f"the parameters after step {step} are not finite (learning rate {rate:.6g}): lower the "
                "learning rate or lengthen the warm-up",
                step - 1,
                rate,
            )
        best = run.evaluations.best
        state = TrainState(
            settings=run.settings,
            data=run.data,
            position=self._feed.position,
            progress=run.counts.state_dict(),
            samples_seen=run.log.samples_seen,
            scaler=run.precision.state_dict(),
            optimizer_steps=shared_steps(optimizer),
            evaluation=run.evaluations.latest,
            best=best,
            versions=versions(),
        )
        run.checkpoint, size = write_checkpoint(run.folder, self._model, optimizer, state, run.strategy, run.vocabulary)
        self._saved = state.applied_steps
        seconds = time.perf_counter() - began
        run.report(Saved(applied_steps=self._saved, path=run.checkpoint, seconds=seconds, size_bytes=size, best=best))
