"""Real tokens alone: the same losses and gradients as with padding, for batches of any lengths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.layouts import LENGTHS, assert_same, batch_of, loss_and_gradients, model

from bert.data.batch import Batch, BatchCounts, Unpadded, tiles_of, unpad
from bert.speed.attention import attend, chunks


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("columns", ["fitting", "wider"])
def test_losses_and_gradients_are_those_with_padding(lengths: list[int], columns: str) -> None:
    batch = batch_of(lengths, max(lengths) if columns == "fitting" else 64)
    padded, real = model(False), model(True)
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(real, real(batch).loss), expected, 1e-5)


def test_a_row_without_real_tokens_is_computed_with_padding() -> None:
    batch = batch_of([4, 0, 7], 7)
    assert unpad(batch.tensors["attention_mask"]) is None
    made = model(True)
    assert all(value.isfinite().all() for value in loss_and_gradients(made, made(batch).loss).values())


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_layout_of_a_loader_gives_the_same_bits_as_the_mask(lengths: list[int]) -> None:
    batch = batch_of(lengths, 64)
    by_mask, by_layout = (model(True, hidden_dropout=0.1, attention_dropout=0.1) for _ in range(2))
    torch.manual_seed(3)
    expected = loss_and_gradients(by_mask, by_mask(batch).loss)
    laid_out = batch.laid_out()
    assert batch.layout is None and laid_out.layout is not None
    torch.manual_seed(3)
    assert_same(loss_and_gradients(by_layout, by_layout(laid_out).loss), expected, 0)


def test_a_batch_that_was_evaluated_first_is_trained_on() -> None:
    made, batch = model(True), batch_of([11, 6], 11)
    chunks.cache_clear()
    with torch.inference_mode():
        made(batch)
    assert loss_and_gradients(made, made(batch).loss)["loss"].isfinite()


def test_a_layout_holds_places_positions_and_ends() -> None:
    layout = batch_of([3, 1, 2], 4).laid_out().layout
    assert layout is not None and layout.lengths == (3, 1, 2) and layout.columns == 4
    assert layout.places.tolist() == [0, 1, 2, 4, 8, 9] and layout.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert layout.ends.tolist() == [0, 3, 4, 6] and layout.ends.dtype == torch.int32
    assert layout.work.tolist() == [[0, 3, 0], [4, 2, 0], [3, 1, 0]] and layout.work.dtype == torch.int32
    assert batch_of([4, 4], 4).laid_out().layout is None, "without padding there is nothing to lay out"


def test_tiles_hold_every_token_once_and_begin_with_the_longest_sequences() -> None:
    lengths = (63, 1, 0, 512, 65, 64)
    found = tiles_of(lengths).tolist()
    tokens = [begin + row + one for begin, length, row in found for one in range(min(64, length - row))]
    assert sorted(tokens) == list(range(sum(lengths)))
    assert [length for _, length, _ in found] == [512] * 8 + [65, 65, 64, 63, 1]
    assert tiles_of(()).shape == (0, 3) and len(tiles_of(lengths, 128)) == 8


def test_a_layout_goes_with_its_batch_to_the_device() -> None:
    batch = batch_of([3, 1, 2], 4).laid_out()
    away = batch.to(torch.device("meta"))
    assert batch.layout is not None and away.layout is not None
    for name in ("places", "position_ids", "ends", "work"):
        there, here = getattr(away.layout, name), getattr(batch.layout, name)
        assert (there.device.type, there.shape, there.dtype) == ("meta", here.shape, here.dtype)
    assert away.layout.lengths == batch.layout.lengths
    assert batch.to(torch.device("cpu")) is batch


def test_all_of_a_batch_is_pinned_in_one_piece_and_taken_away_by_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    batch = batch_of([3, 1, 2], 4).laid_out()
    pinned = batch.pin()
    assert pinned.memory is not None and pinned.key is not None and not pinned.key.any()
    pinned.key.fill_(7)
    copies: list[int] = []

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        copies.append(tensor.nbytes)
        return tensor.clone()

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", to)
        away = pinned.to(torch.device("meta"))
    assert copies == [pinned.memory.nbytes] and away.memory is None
    names = ("places", "position_ids", "ends", "work", "predicted")
    for found in (pinned, away):
        assert batch.layout is not None and found.layout is not None and found.key is not None
        parts = [(batch.tensors[name], found.tensors[name]) for name in batch.tensors]
        parts += [(getattr(batch.layout, name), getattr(found.layout, name)) for name in names]
        for own, other in [*parts, (torch.tensor([7]), found.key)]:
            assert torch.equal(own, other) and own.dtype == other.dtype and own.data_ptr() != other.data_ptr()
            assert other.data_ptr() % 8 == 0


def test_a_mask_with_holes_keeps_its_columns() -> None:
    batch = batch_of([9, 9], 9)
    batch.tensors["attention_mask"][0, 4:6] = 0
    batch.tensors["masked_positions"] = torch.tensor([0, 7, 12])
    batch.tensors["masked_labels"] = torch.tensor([3, 4, 5])
    batch = Batch(batch.tensors, BatchCounts(2, 16, 18, 3, 130))
    padded, real = model(False), model(True)
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(real, real(batch).loss), expected, 1e-5)


def test_heads_see_the_same_tokens_where_padding_is_left_out() -> None:
    batch = batch_of([16, 3, 9, 1], 20)
    laid, positions = batch.laid_out(), batch.tensors["masked_positions"]
    made = model(True)
    asked = made.encode(laid), made.encode(batch)
    rows = asked[0].hidden
    assert asked[0].tokens.shape == (29, 32) and rows.shape == (4, 20, 32)
    for found in asked:
        assert torch.equal(found.predicted(positions), rows.flatten(0, 1)[positions])
        assert found.pooled is not None
        assert torch.equal(found.pooled, torch.tanh(made.encoder.pooler(rows[:, 0])))


def test_layers_see_no_padding_where_it_is_left_out() -> None:
    batch = batch_of([16, 3, 9, 1], 20)
    for fast, rows in ((True, (29, 32)), (False, (4, 20, 32))):
        made = model(fast)
        seen: list[torch.Size] = []
        made.encoder.layers[0].register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].shape))
        made(batch)
        assert seen == [torch.Size(rows)]


def sequences(*lengths: int) -> Unpadded:
    found = unpad((torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long())
    assert found is not None
    return found


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_gradients_without_padding_are_the_derivatives(probability: float) -> None:
    torch.manual_seed(0)
    where = sequences(4, 1, 3, 4)
    qkv = torch.randn(12, 3, 2, 4, dtype=torch.float64, requires_grad=True)

    def fixed(qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return attend(qkv, where, probability)

    assert torch.autograd.gradcheck(fixed, (qkv,))


@pytest.mark.parametrize("lengths", [(128,) * 5, (300, 20, 128, 128, 7), tuple(range(1, 60))], ids=str)
def test_attention_is_each_sequence_alone(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 4, 8)
    expected = [
        torch.softmax(torch.einsum("qnd,knd->nqk", part[:, 0], part[:, 1]) / 8**0.5, -1) @ part[:, 2].transpose(0, 1)
        for part in qkv.split(lengths)
    ]
    together = torch.cat([one.transpose(0, 1) for one in expected])
    for grad in (False, True):  # one is PyTorch's kernel, the other ours
        torch.testing.assert_close(attend(qkv.requires_grad_(grad), sequences(*lengths), 0.0), together)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=40), st.integers(1, 16))
@settings(max_examples=examples(100))
def test_chunks_hold_every_sequence_once_and_waste_little(lengths: list[int], heads: int) -> None:
    found = chunks(tuple(lengths), heads)
    assert [length for chunk in found for length in chunk.lengths] == lengths
    first = 0
    for chunk in found:
        assert chunk.first == first and len(chunk.places) == sum(chunk.lengths)
        first += sum(chunk.lengths)
        weights = heads * len(chunk.lengths) * chunk.longest**2
        used = heads * sum(length**2 for length in chunk.lengths)
        assert len(chunk.lengths) == 1 or weights <= 1 << 16 or (weights <= 1 << 18 and used >= 0.75 * weights)
