"""When gradients are ready: measured on a small model, and put into the buckets that PyTorch would make."""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from analysis.metrics.scaling import backward_pass, bucket_ends
from bench.run.measure import backward_timeline
from bert.observer import Observer
from bert.optim.precision import Precision
from bert.parallel import ddp
from bert.parallel.base import SingleStrategy
from bert.train.loop import Training
from records.trial import Trial

MIB = 1 << 20


def test_ours_are_the_buckets_of_pytorch() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        counts = [int(value) for value in random.integers(1, 4 * MIB, random.integers(1, 40))]
        tensors = [torch.empty(count, device="meta") for count in counts]
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [MIB, 25 * MIB])
        ends = bucket_ends([4 * count for count in counts], MIB, 25 * MIB)
        ours = [list(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)]
        assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize("asked", [None, 1, 3])
def test_a_size_that_is_asked_for_is_that_of_the_first_bucket_too(
    asked: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[float] = []

    def note(_: object, bucket: Any) -> Any:
        sizes.append(float(bucket.buffer().nbytes))
        # Not allreduce_hook: gloo's thread would drop its callback, for which it needs the GIL, while this thread holds
        # it and joins that thread at the end of the process group.
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    monkeypatch.setattr(ddp, "allreduce_hook", note)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(9)))
        strategy = ddp.DdpStrategy({} if asked is None else {"bucket_mib": asked})
        strategy.device = torch.device("cpu")
        wrapped = strategy.wrap(net, Observer())
        sizes.clear()
        wrapped(torch.ones(2, 512)).sum().backward()
    finally:
        dist.destroy_process_group()
    record = {"bytes": [MIB] * 9, "ready_ms": [1.0] * 9, "backward_ms": 1.0}
    assert sizes == backward_pass(record, asked).bucket_bytes.tolist()


class OneBatch:
    """A batch that is on its device already."""

    def to(self, device: torch.device) -> torch.Tensor:
        """Return its tensor."""
        return torch.ones(64, 32)


def training(model: torch.nn.Module) -> Training:
    def batches() -> Iterator[Any]:
        while True:
            yield OneBatch()

    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        compute_loss=lambda net, batch: net(batch).square().mean(),
        batches=batches(),
        strategy=SingleStrategy(),
        precision=Precision("fp32", "cpu"),
    )


def model() -> torch.nn.Module:
    layers = torch.nn.Sequential(torch.nn.Linear(32, 300), torch.nn.Tanh(), torch.nn.Linear(300, 300), torch.nn.Tanh(),
                                 torch.nn.Linear(300, 4))  # fmt: skip
    layers.register_parameter("unused", torch.nn.Parameter(torch.zeros(7)))
    return layers


def test_the_last_layers_are_ready_first_and_what_gets_no_gradient_at_the_end() -> None:
    net = model()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    record = backward_timeline(training(net), Trial(strategy="single"))
    assert record is not None
    counts = [parameter.numel() for parameter in reversed(list(net.parameters()))]
    assert record["bytes"] == [4 * count for count in counts]
    ready = dict(zip(counts, record["ready_ms"], strict=True))
    assert 0 < ready[4] < ready[90_000] < ready[32 * 300] <= record["backward_ms"]
    assert ready[7] == record["backward_ms"] and 1 <= record["passes"] <= 5
    assert all(parameter.grad is None for parameter in net.parameters()), "nothing is left behind"
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)), "and nothing was learned"
    buckets = backward_pass(record)
    assert buckets.bucket_bytes.sum() == sum(record["bytes"])


def test_only_throughput_of_whole_gradients_that_are_not_compiled_is_told() -> None:
    job = training(model())
    assert backward_timeline(job, Trial(strategy="fsdp")) is None
    assert backward_timeline(job, Trial(strategy="single", kind="probe")) is None
    compiled = dataclasses.replace(job, model=SimpleNamespace(modules=lambda: [SimpleNamespace(_compiled_call_impl=1)]))
    assert backward_timeline(compiled, Trial(strategy="single")) is None
