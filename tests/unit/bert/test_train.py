"""The loop: order of events, accumulation, clipping, fp16, and that it costs nothing."""

import dataclasses
import itertools
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.layouts import scaled
from support.refusals import refused

from bert.data.batch import Batch, BatchCounts
from bert.observer import Observer, StepResult
from bert.optim.lamb import Lamb
from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.base import SingleStrategy
from bert.train.loop import (
    MAX_SKIPPED_IN_A_ROW,
    DivergenceError,
    DivergenceWatch,
    Progress,
    Training,
    dropout_key,
    train,
)


class Recorder(Observer):
    """Writes down everything it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.results: list[StepResult] = []

    def run_begin(self) -> None:
        self.events.append("run")

    def step_begin(self, step: int) -> None:
        self.events.append(f"step {step}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.events.append(name)
        yield
        self.events.append(f"/{name}")

    def step_end(self, step: int, result: StepResult) -> None:
        self.events.append(f"/step {step}")
        self.results.append(result)

    def run_end(self) -> None:
        self.events.append("/run")


def batches(rows: int, count: int = 1000) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        inputs = torch.randn(rows, 4, generator=generator)
        yield Batch({"x": inputs, "y": inputs.sum(1, keepdim=True)}, BatchCounts(rows, rows, 2 * rows, 1, rows))


def squared_error(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    result: torch.Tensor = (model(batch.tensors["x"]) - batch.tensors["y"]).float().square().mean()
    return result


def training(
    rows: int = 8, source: Iterator[Batch] | None = None, precision: str = "fp32", **options: object
) -> Training:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return Training(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.05, fused=True),
        compute_loss=squared_error,
        batches=source or batches(rows),
        strategy=SingleStrategy(),
        # A scale of 2**16 would overflow on most of these batches, whose losses are large.
        precision=scaled(precision, 1024.0),
        **options,  # type: ignore[arg-type]
    )


def poisoned(*numbers: int, factor: float = math.inf) -> Iterator[Batch]:
    """Batches of which those numbered have targets that no number is close to."""
    for number, batch in enumerate(batches(8)):
        tensors = {**batch.tensors, "y": batch.tensors["y"] * factor} if number in numbers else batch.tensors
        yield Batch(tensors, batch.counts)


def weights(run: Training) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def test_events_come_in_the_order_of_the_step() -> None:
    recorder = Recorder()
    assert train(training(grad_accum_steps=2), recorder, lambda step: step < 1) == 1
    micro = ["data", "/data", "forward", "/forward", "backward", "/backward"]
    assert recorder.events == ["run", "step 0", *micro, *micro, "optimizer", "/optimizer", "/step 0", "/run"]
    (result,) = recorder.results
    assert result.counts == BatchCounts(16, 16, 32, 2, 16) and result.learning_rate == 0.05
    run = training(rows=8)
    losses = [float(squared_error(run.model, batch).detach()) for batch in itertools.islice(batches(8), 2)]
    assert float(result.loss) == pytest.approx(sum(losses) / 2, rel=1e-6)


def test_accumulation_makes_the_same_weights_as_one_large_batch() -> None:
    def halves() -> Iterator[Batch]:
        for batch in batches(8):
            for rows in (slice(0, 4), slice(4, 8)):
                yield Batch({name: tensor[rows] for name, tensor in batch.tensors.items()}, batch.counts)

    whole, split = training(), training(source=halves(), grad_accum_steps=2)
    train(whole, Observer(), lambda step: step < 5)
    train(split, Observer(), lambda step: step < 5)
    torch.testing.assert_close(weights(whole), weights(split), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_gradients_that_are_not_finite_leave_the_update_out_in_every_precision(precision: str, optimizer: str) -> None:
    def compute(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        value = squared_error(model, batch)
        return value + (value * 0).sqrt()  # in the gradient 0 x infinity where `bad` is

    def weigh(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return compute(model, batch) if "bad" in batch.tensors else squared_error(model, batch)

    def source(skip: bool) -> Iterator[Batch]:
        for number, batch in enumerate(batches(8)):
            if number != 2:
                yield batch
            elif not skip:
                yield Batch({**batch.tensors, "bad": torch.ones(1)}, batch.counts)

    runs = []
    for skip in (False, True):
        run = training(source=source(skip), precision=precision)
        if optimizer == "lamb":
            made: dict[str, object] = {"optimizer": Lamb(run.model.parameters(), lr=0.05)}
        else:
            made = {"optimizer": adamw(run.model, 0.05), "max_grad_norm": 0.5}
        run = dataclasses.replace(run, compute_loss=weigh, divergence=DivergenceWatch(), **made)  # type: ignore[arg-type]
        train(run, Observer(), lambda step, run=run: run.progress.applied_steps < 5)  # type: ignore[misc]
        runs.append(run)
    assert [run.progress.skipped_steps for run in runs] == [1, 0]
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    if optimizer == "lamb":
        assert all(run.optimizer.steps == 5 for run in runs)  # type: ignore[attr-defined]


def test_updates_that_a_gpu_left_out_are_counted_when_the_verdict_is_read() -> None:
    watch, progress = DivergenceWatch(), Progress(applied_steps=3)
    for step, outcome in enumerate((0.0, 1.0, 0.0)):
        watch.note(step, StepResult(BatchCounts(1, 1, 1, 1, 1), torch.ones(()), 0.1, torch.tensor(outcome)), progress)
    watch.check(SingleStrategy(), progress)
    watch.check(SingleStrategy(), progress)
    assert (progress.applied_steps, progress.skipped_steps, progress.skipped_in_a_row) == (2, 1, 0)
    for step in range(MAX_SKIPPED_IN_A_ROW):
        progress.count(None)
        watch.note(step, StepResult(BatchCounts(1, 1, 1, 1, 1), torch.ones(()), 0.1, torch.tensor(1.0)), progress)
    watch.note(99, StepResult(BatchCounts(1, 1, 1, 1, 1), torch.ones(()), 0.1, torch.tensor(0.0)), progress)
    with refused("training-diverged", f" {MAX_SKIPPED_IN_A_ROW} steps in a row up to step {MAX_SKIPPED_IN_A_ROW} "):
        watch.check(SingleStrategy(), progress)
    assert (progress.applied_steps, progress.skipped_steps) == (2, 1 + MAX_SKIPPED_IN_A_ROW)


def test_every_micro_step_of_every_rank_has_a_key_of_its_own() -> None:
    places = list(itertools.product((0, 1), (0, 1, 10**6), (0, 1), (0, 7)))
    keys = [int(dropout_key(*place)) for place in places]
    assert len(set(keys)) == len(places) and keys == [int(dropout_key(*place)) for place in places]
    assert all(0 <= key < 2**63 for key in keys) and dropout_key(-3, 0, 0, 0) == dropout_key(3, 0, 0, 0)


def test_clipping_bounds_the_gradient_norm() -> None:
    run = training(max_grad_norm=1e-3)
    seen: list[float] = []
    step = run.optimizer.step

    def spy() -> None:
        seen.append(float(torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]).norm()))
        step()

    run.optimizer.step = spy  # type: ignore[method-assign,assignment]
    train(run, Observer(), lambda number: number < 3)
    assert seen == pytest.approx([1e-3] * 3, rel=1e-3)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_that_is_not_finite_stops_at_once_on_a_cpu_with_step_and_rate(factor: float, precision: str) -> None:
    recorder = Recorder()
    run = training(
        source=poisoned(3, factor=factor),
        precision=precision,
        learning_rate=lambda done: 0.01 * (done + 1),
        divergence=DivergenceWatch(),
    )
    with refused("training-diverged", "step 4 ", "learning rate 0.04") as caught:
        train(run, recorder, lambda step: True)
    assert isinstance(caught.value, DivergenceError)
    assert (caught.value.step, caught.value.learning_rate) == (3, pytest.approx(0.04))
    assert recorder.events[-2:] == ["/step 3", "/run"], "the step is told of, and the run ended"


class FarAway(SingleStrategy):
    """Trains on the CPU; says it is rank 0 of two, of which the other one's loss is given."""

    def __init__(self, other_bad_step: float = math.inf) -> None:
        super().__init__()
        self.other_bad_step = other_bad_step
        self.asked = 0

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return torch.maximum(values, torch.tensor([-self.other_bad_step], dtype=values.dtype))


def watched(losses: list[float], every: int, strategy: SingleStrategy | None = None) -> None:
    """Run the watch as on a GPU over steps of these losses."""
    watch, gpu, progress = DivergenceWatch(every), torch.device("cuda"), Progress()
    for step, loss in enumerate(losses):
        result = StepResult(BatchCounts(1, 1, 1, 1, 1), torch.tensor(loss), 0.5 + step)
        watch.note(step, result, progress)
        if watch.due(step, gpu):
            watch.check(strategy or SingleStrategy(), progress)
    watch.check(strategy or SingleStrategy(), progress)


def test_on_a_gpu_the_verdict_is_read_every_so_often_and_names_the_first_bad_step() -> None:
    losses = [1.0, 2.0, 1.0, 1.0, 1.0, math.inf, math.nan, math.nan, 1.0, 1.0]
    with refused("training-diverged", "step 6 "):
        watched(losses, every=4)
    with refused("training-diverged", "step 6 "):
        watched(losses, every=100)
    strategy = FarAway()
    watched([1.0] * 9, every=4, strategy=strategy)
    assert strategy.asked == 3, "after steps 3 and 7 and at the end"


def test_every_rank_stops_where_any_rank_first_saw_it() -> None:
    with refused("training-diverged", "step 3 ", "2.5") as caught:
        watched([1.0] * 5 + [math.nan], every=10, strategy=FarAway(other_bad_step=2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, DivergenceError) and str(again) == str(caught.value)
    assert (again.code, again.step, again.learning_rate) == ("training-diverged", 2, 2.5)


def test_fp16_that_never_stops_overflowing_is_divergence() -> None:
    run = training(source=poisoned(*range(100)), precision="fp16", divergence=DivergenceWatch())
    with refused("training-diverged", f" {MAX_SKIPPED_IN_A_ROW} steps", "step 32 "):
        train(run, Observer(), lambda step: step < 100)
    assert run.progress.applied_steps == 0
    assert torch.isfinite(weights(run)).all()


def test_a_loop_without_schedule_and_watch_does_not_wait_for_the_outcome() -> None:
    asked: list[bool] = []

    class Impatient(SingleStrategy):
        def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> torch.Tensor:
            asked.append(wait)
            super().step(optimizer, precision, wait)
            return torch.zeros(())

    recorder = Recorder()
    for options in ({}, {"learning_rate": lambda done: 0.1}, {"divergence": DivergenceWatch()}):
        run = dataclasses.replace(training(**options), strategy=Impatient())  # type: ignore[arg-type]
        train(run, recorder, lambda step: step < 1)
    assert asked == [False, True, True]
