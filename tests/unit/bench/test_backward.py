"""When gradients are ready: measured on a small model, and put into the parts that ranks reduce."""

import dataclasses
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from analysis.metrics.scaling import backward_pass
from bench.run.measure import backward_timeline
from bert.observer import Observer
from bert.optim.arena import segments_of
from bert.optim.precision import Precision
from bert.parallel import ddp
from bert.parallel.base import SingleStrategy
from bert.train.loop import Training
from records.trial import Trial

MIB = 1 << 20


@pytest.mark.parametrize("asked", [None, 1, 3])
def test_a_projection_has_the_parts_that_ranks_reduce(asked: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[float] = []
    monkeypatch.setattr(ddp, "BertModel", torch.nn.Module)  # any model is one of ours here
    monkeypatch.setattr(dist, "broadcast", lambda *given: None)
    monkeypatch.setattr(
        dist,
        "all_reduce",
        lambda values, *how, **named: sizes.append(float(values.nbytes)) or SimpleNamespace(wait=int),
    )
    net = torch.nn.Sequential(torch.nn.ModuleList(torch.nn.Linear(512, 512, bias=False) for _ in range(9)))
    strategy = ddp.DdpStrategy({} if asked is None else {"bucket_mib": asked})
    strategy.wrap(net, Observer())
    with strategy.accumulate(last=True):
        strategy.backward(sum(layer(torch.ones(2, 512)).sum() for layer in net[0]), Precision("fp32", "cpu"))
    ends = [*itertools.accumulate(len(segment) for segment in segments_of(net))]
    record = {"bytes": [MIB] * 9, "ready_ms": [1.0] * 9, "backward_ms": 1.0, "ends": ends}
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
