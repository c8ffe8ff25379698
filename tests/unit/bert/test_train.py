"""The loop: order of events, accumulation, clipping, fp16, and that it costs nothing."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from bert.batch import Batch, BatchCounts
from bert.observer import Observer, Observers, StepResult
from bert.precision import Precision
from bert.strategies.single import SingleStrategy
from bert.train import Training, train
from common.errors import UsageError


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
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.05),
        compute_loss=squared_error,
        batches=source or batches(rows),
        strategy=SingleStrategy(),
        precision=Precision(precision, "cpu"),
        **options,  # type: ignore[arg-type]
    )


def weights(run: Training) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


def test_events_come_in_the_order_of_the_step() -> None:
    recorder = Recorder()
    assert train(training(grad_accum_steps=2), recorder, lambda step: step < 1) == 1
    micro = ["data", "/data", "forward", "/forward", "backward", "/backward"]
    assert recorder.events == ["run", "step 0", *micro, *micro, "optimizer", "/optimizer", "/step 0", "/run"]


def test_counts_add_up_over_micro_steps_and_the_loss_is_their_mean() -> None:
    recorder = Recorder()
    train(training(rows=8, grad_accum_steps=3), recorder, lambda step: step < 1)
    (result,) = recorder.results
    assert result.counts == BatchCounts(24, 24, 48, 3, 24)
    run = training(rows=8)
    losses = [float(squared_error(run.model, batch).detach()) for batch in itertools.islice(batches(8), 3)]
    assert float(result.loss) == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert result.learning_rate == 0.05


def test_accumulation_makes_the_same_weights_as_one_large_batch() -> None:
    def halves() -> Iterator[Batch]:
        for batch in batches(8):
            for rows in (slice(0, 4), slice(4, 8)):
                yield Batch({name: tensor[rows] for name, tensor in batch.tensors.items()}, batch.counts)

    whole, split = training(), training(source=halves(), grad_accum_steps=2)
    train(whole, Observer(), lambda step: step < 5)
    train(split, Observer(), lambda step: step < 5)
    torch.testing.assert_close(weights(whole), weights(split), rtol=1e-6, atol=1e-7)


def test_training_learns_and_bf16_follows_fp32() -> None:
    recorder = Recorder()
    run = training()
    train(run, recorder, lambda step: step < 150)
    losses = [float(result.loss) for result in recorder.results]
    assert losses[-1] < 0.05 * losses[0]
    low = training(precision="bf16")
    train(low, Observer(), lambda step: step < 150)
    torch.testing.assert_close(weights(run), weights(low), rtol=0.05, atol=0.05)


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


def test_the_learning_rate_follows_its_schedule() -> None:
    recorder = Recorder()
    train(training(learning_rate=lambda step: 0.1 / (step + 1)), recorder, lambda step: step < 3)
    assert [result.learning_rate for result in recorder.results] == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_fp16_scales_the_loss_and_skips_an_overflow() -> None:
    def poisoned() -> Iterator[Batch]:
        for number, batch in enumerate(batches(8)):
            tensors = {**batch.tensors, "y": batch.tensors["y"] * float("inf")} if number == 1 else batch.tensors
            yield Batch(tensors, batch.counts)

    run = training(source=poisoned(), precision="fp16")
    assert run.precision.scaler is not None
    train(run, Observer(), lambda step: step < 1)
    before, scale = weights(run), run.precision.scaler.get_scale()
    train(run, Observer(), lambda step: step < 2, first_step=1)
    torch.testing.assert_close(weights(run), before, rtol=0, atol=0)
    assert run.precision.scaler.get_scale() < scale
    train(run, Observer(), lambda step: step < 3, first_step=2)
    assert not torch.equal(weights(run), before)


def test_a_failing_step_still_ends_the_run_for_the_observers() -> None:
    recorder = Recorder()
    with pytest.raises(StopIteration):
        train(training(source=batches(8, count=2)), recorder, lambda step: True)
    assert recorder.events[-1] == "/run" and "/step 1" in recorder.events and "/step 2" not in recorder.events


@pytest.mark.parametrize(("name", "device"), [("tf32", "cpu"), ("fp8", "cpu")])
def test_a_precision_the_device_has_not_is_refused(name: str, device: str) -> None:
    with pytest.raises(UsageError):
        Precision(name, device)


def test_zero_micro_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="grad_accum_steps=0"):
        training(grad_accum_steps=0)


def test_several_observers_nest_and_an_idle_one_is_never_entered() -> None:
    first, second = Recorder(), Recorder()

    class Idle(Observer):
        pass

    both = Observers([first, Idle(), second])
    with both.phase("forward"):
        assert first.events == second.events == ["forward"]
    assert isinstance(both.phase("x"), AbstractContextManager)
    assert Observers([Idle()]).phase("a") is Observers([]).phase("b"), "nothing is made where nobody listens"


def test_every_observer_hears_the_end_even_when_one_fails() -> None:
    class Failing(Observer):
        def run_end(self) -> None:
            raise RuntimeError("disk full")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="disk full"):
        Observers([recorder, Failing()]).run_end()
    assert recorder.events == ["/run"]
