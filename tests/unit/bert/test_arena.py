"""Gradients in one piece of memory: the same numbers at the same addresses, segment after segment."""

import torch
from support import layouts
from torch import Tensor, nn

from bert.model.heads import BertForPretraining
from bert.optim.arena import Arena, segments_of
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.speed import apply, copy_weights
from common.train_spec import TrainSpec


def pretraining(layers: int, accumulation: int = 1, precision: str = "fp32") -> BertForPretraining:
    torch.manual_seed(0)
    made = BertForPretraining(layouts.SHAPE.replace(num_layers=layers))
    apply(made, "fast")
    spec = TrainSpec(precision=precision, strategy="single", grad_accum_steps=accumulation)
    copy_weights(made, spec)
    return made


def test_segments_are_whole_layers_from_the_last_one_to_the_embeddings() -> None:
    made = pretraining(6)
    names = {parameter: name for name, parameter in made.named_parameters()}
    found = [[names[each] for each in segment] for segment in segments_of(made)]
    assert [name for segment in found for name in segment] == [*names.values()][::-1]
    assert [{name.split(".")[2] for name in segment if ".layers." in name} for segment in found] == [
        {"5", "4"}, {"3"}, {"2", "1"}, {"0"}
    ]  # fmt: skip
    assert found[0][0].startswith("next_sentence") and found[-1][-1] == "encoder.embeddings.word.weight"
    assert len(segments_of(pretraining(1))) == len(segments_of(nn.Linear(3, 3))) == 1
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64))
    assert [{each.dtype for each in segment} for segment in segments_of(mixed)] == [{torch.float64}, {torch.float32}]
    sizes = [sum(each.nbytes for each in segment) for segment in segments_of(nn.Sequential(*(nn.Linear(512, 512, False)
             for _ in range(5))), 2)]  # fmt: skip
    assert sizes == [2 << 20, 2 << 20, 1 << 20]


def gradients_of(
    accumulation: int, precision: str, arena: bool
) -> tuple[list[dict[str, Tensor]], list[dict[str, int]]]:
    """Return the gradients of three updates, and where they lie."""
    made, strategy = pretraining(2, accumulation, precision), SingleStrategy()
    strategy.arena = Arena(made, segments_of(made)) if arena else None
    found, places = [], []
    for update in range(3):
        for micro_step in range(accumulation):
            batch = layouts.batch_of([9, 4, 7], 9, update * accumulation + micro_step)
            with strategy.accumulate(micro_step == accumulation - 1):
                with Precision(precision, "cpu").autocast():
                    loss = made(batch).loss / accumulation
                strategy.backward(loss, Precision(precision, "cpu"))
        used = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
        found.append({name: grad.clone() for name, grad in used.items()})
        places.append({name: grad.data_ptr() for name, grad in used.items()})
        made.zero_grad()
    return found, places


def test_gradients_are_those_of_autograd_and_stay_where_they_are() -> None:
    for accumulation in (1, 3):
        for precision in ("fp32", "bf16"):
            found, places = gradients_of(accumulation, precision, True)
            expected, _ = gradients_of(accumulation, precision, False)
            assert places[0] == places[1] == places[2]
            for own, other in zip(found, expected, strict=True):
                assert own.keys() == other.keys()
                assert all(torch.equal(own[name], value) and own[name].dtype == value.dtype
                           for name, value in other.items())  # fmt: skip


def test_a_parameter_that_is_not_used_is_left_alone_or_reduced_as_zeros() -> None:
    reduced: list[Tensor] = []
    for reduce in (None, reduced.append):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        arena = Arena(net, segments_of(net), reduce)
        arena.begin(last=True)
        net[0](torch.ones(1, 3)).sum().backward()
        assert reduced == []
        arena.finish()
        assert net[0].weight.grad is not None and net[0].weight.grad.sum() == 9
        assert (net[1].weight.grad is None) == (reduce is None)
    assert net[1].weight.grad is not None and not net[1].weight.grad.any()
    assert len(reduced) == 1 and reduced[0].sum() == 9 + 3


def test_the_hooks_of_a_gradient_that_is_written_are_called() -> None:
    made = pretraining(1, precision="bf16")
    arena = Arena(made, segments_of(made))
    called = set[str]()
    for name, parameter in made.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: called.add(name))
    arena.begin(last=True)
    with Precision("bf16", "cpu").autocast():
        made(layouts.batch_of([9, 4], 9)).loss.backward()
    assert called == {name for name, _ in made.named_parameters()}
