"""Ranks that average gradients while the backward pass goes on, against one process with all their batches."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.warm_processes import start_world, wait


def be_rank(out: str, of: int, accumulation: int) -> int:
    """Write the gradients of one step of `of` ranks' batches, and what happened in its last micro-step."""
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file
    from support.layouts import SHAPE, batch_of

    from bert.model.heads import BertForPretraining
    from bert.observer import Observer
    from bert.optim.arena import segments_of
    from bert.optim.precision import Precision
    from bert.parallel.base import SingleStrategy
    from bert.parallel.ddp import DdpStrategy
    from bert.speed import apply

    torch.set_num_threads(1)
    strategy = DdpStrategy() if of > 1 and "WORLD" in out else SingleStrategy()
    strategy.setup("cpu")
    torch.manual_seed(strategy.rank)  # the first rank's weights count
    made = BertForPretraining(SHAPE.replace(num_layers=6))
    apply(made, "fast")
    events: list[str] = []

    class Ear(Observer):
        def mark(self, name: str) -> None:
            events.append(name)

    for number, segment in enumerate(segments_of(made)):
        for parameter in segment:
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: events.append(f"segment {number}"))
    strategy.wrap(made, Ear())
    own_reduce = dist.all_reduce

    def all_reduce(values: torch.Tensor, *given: object, **named: object) -> object:
        events.append(f"reduce {values.numel()}")
        return own_reduce(values, *given, **named)

    dist.all_reduce = all_reduce
    ranks = range(strategy.rank, of, strategy.world_size)
    numbers = [rank * accumulation + micro_step for micro_step in range(accumulation) for rank in ranks]
    for place, number in enumerate(numbers):
        batch = batch_of([16, 3 + number % 5, 9, 1 + number], 20, number)
        events.clear()
        with strategy.accumulate(last=place + 1 == len(numbers)):
            strategy.backward(made(batch).loss / len(numbers), Precision("fp32", "cpu"))
    folder = Path(out)
    save_file({name: p.grad.clone() for name, p in made.named_parameters()}, folder / f"{strategy.rank}.safetensors")
    (folder / f"{strategy.rank}.json").write_text(json.dumps(events))
    strategy.barrier()
    strategy.teardown()
    return 0


def run(out: Path, of: int, ranks: int, accumulation: int) -> Path:
    place = out / ("WORLD" if ranks > 1 else "alone")
    codes = wait(start_world(be_rank, str(place), of, accumulation, ranks=ranks, place=place), place)
    assert codes == [0] * ranks, "".join(path.read_text() for path in place.glob("errors-*.txt"))
    return place


@pytest.mark.parametrize(("ranks", "accumulation"), [(2, 1), (2, 2), (4, 1), (8, 1)])
def test_gradients_are_those_of_one_process_and_segments_are_reduced_in_one_order(
    tmp_path: Path, ranks: int, accumulation: int
) -> None:
    expected = load_file(run(tmp_path, ranks, 1, accumulation) / "0.safetensors")
    world = run(tmp_path, ranks, ranks, accumulation)
    every = [load_file(world / f"{rank}.safetensors") for rank in range(ranks)]
    for name, value in expected.items():
        assert all(torch.equal(found[name], every[0][name]) for found in every), name
        if (ranks, accumulation) == (2, 1):  # with more numbers the order of the sum differs
            assert torch.equal(every[0][name], value), name
        else:
            assert (every[0][name] - value).norm() <= 1e-6 * value.norm(), name
    events = [json.loads((world / f"{rank}.json").read_text()) for rank in range(ranks)]
    sequences = [[event for event, _ in itertools.groupby(each)] for each in events]
    assert all(sequence == sequences[0] for sequence in sequences), "whatever the number of tokens"
    kinds = [event.split()[0] for event in sequences[0]]
    assert kinds == [*["segment", "reduce"] * 3, "segment", "gradients_ready", "reduce"]
    assert [event for event in sequences[0] if "segment" in event] == [f"segment {number}" for number in range(4)]
