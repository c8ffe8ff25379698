"""What `comm` plans, what it refuses, and what a rank finds right and wrong in the result of a collective."""

from types import SimpleNamespace

import pytest
import torch
from support.refusals import refused

from bench.launch.world import World
from bench.machine.devices import Devices, Gpu
from bench.run.collectives import _Buffers
from bench.run.comm import CommSweep, expand_collectives

CPU = Devices("cpu", (), 4)
GPUS = Devices("cuda", tuple(Gpu("G", str(number), f"GPU-{number}", None) for number in range(6)), 16)


def test_every_combination_is_a_trial_and_rounds_repeat_it_all() -> None:
    trials = expand_collectives(
        CommSweep(collectives=("all_reduce", "broadcast"), dtypes=("fp32", "bf16"), devices=(2, 4), rounds=2), CPU
    )
    assert len({trial.trial_id for trial in trials}) == len(trials) == 16
    assert {trial.round for trial in trials[:8]} == {0}
    assert trials[0].trial_id.startswith("comm-all_reduce-fp32-n2-r0-")


def test_the_default_is_every_count_of_gpus_and_two_cpu_ranks() -> None:
    assert [trial.world_size for trial in expand_collectives(CommSweep(), GPUS)] == [2, 4, 6]
    assert [trial.world_size for trial in expand_collectives(CommSweep(), CPU)] == [2]


def test_a_world_is_measured_as_it_is() -> None:
    world = World(3, 0, 6, 3, 2)
    (trial,) = expand_collectives(CommSweep(), CPU, world)
    assert (trial.world_size, trial.nodes) == (6, 2)
    with refused("option-conflict", 2, 6):
        expand_collectives(CommSweep(devices=(2,)), CPU, world)


def group(name: str, ranks: int, placement: str, precision: str) -> list[_Buffers]:
    """Buffers of all ranks, filled."""
    members = [SimpleNamespace(rank=rank, world_size=ranks, device=torch.device("cpu")) for rank in range(ranks)]
    buffers = [_Buffers(name, placement, 192 * ranks, precision, member) for member in members]  # type: ignore[arg-type]
    for one in buffers:
        one.fill()
    return buffers


def results(name: str, sources: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the collective gives each rank, by its definition."""
    if name == "broadcast":
        return [sources[0]] * len(sources)
    if name == "all_gather":
        return [torch.cat(sources)] * len(sources)
    total = torch.stack([source.double() for source in sources]).sum(dim=0).to(sources[0].dtype)
    return [total] * len(sources) if name == "all_reduce" else list(total.chunk(len(sources)))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("all_reduce", "in_place"),
        ("broadcast", "in_place"),
        ("all_gather", "in_place"),
        ("all_gather", "out_of_place"),
        ("reduce_scatter", "in_place"),
        ("reduce_scatter", "out_of_place"),
    ],
)
def test_right_results_pass_and_each_kind_of_wrong_one_is_counted(name: str, placement: str, precision: str) -> None:
    buffers = group(name, 3, placement, precision)
    expected = results(name, [one.source.clone() for one in buffers])
    for one, right in zip(buffers, expected, strict=True):
        one.target.copy_(right)
        assert one.wrong() == 0
    last = buffers[-1]
    last.target[5] += 1
    assert last.wrong() == 1, "one element"
    last.target.copy_(expected[-1].flip(0))
    assert last.wrong() > len(expected[-1]) / 2, "the right values in the wrong order"
    last.target.copy_(torch.zeros_like(expected[-1]))
    assert last.wrong() >= 0.9 * len(expected[-1]), "nothing arrived"


def test_sums_of_many_ranks_may_be_rounded_but_not_miss_a_rank() -> None:
    buffers = group("all_reduce", 100, "in_place", "bf16")
    sources = [one.source.clone() for one in buffers]
    total = torch.stack([source.double() for source in sources]).sum(dim=0)
    buffers[0].target.copy_(total)
    assert buffers[0].wrong() == 0
    rounded = sources[0].clone()
    for source in sources[1:]:
        rounded += source
    assert (rounded.double() != total).any(), "one addition after another loses bits"
    buffers[0].target.copy_(rounded)
    assert buffers[0].wrong() == 0
