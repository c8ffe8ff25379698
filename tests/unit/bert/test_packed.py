"""Rows that sequences share: every token once, the same losses and gradients as with padding, few shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layouts import LENGTHS, assert_same, batch_of, loss_and_gradients, model

from bert.data.batch import Batch, BatchCounts
from bert.model.attention import attend
from bert.model.encoder import recompute_activations
from bert.model.heads import BertForPretraining
from bert.model.packing import Packed, fit, pack, static_rows
from bert.speed.registry import use_levers


def packing(**changes: float) -> BertForPretraining:
    made = model(True, **changes)  # packing wins
    made.encoder.packs = True
    return made


def mask_of(lengths: list[int], columns: int) -> torch.Tensor:
    return (torch.arange(columns) < torch.tensor(lengths)[:, None]).long()


def slots_by_hand(packed: Packed, mask: torch.Tensor) -> dict[int, int]:
    """Flat token -> flat slot, one after the other."""
    source, filled = packed.source.tolist(), packed.filled.tolist()
    found = {token: slot for slot, token in enumerate(source) if filled[slot]}
    assert len(found) == sum(filled), "a token has two slots"
    assert sorted(found) == mask.flatten().nonzero().squeeze(1).tolist()
    return found


masks = st.integers(1, 24).flatmap(
    lambda columns: st.lists(st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=1, max_size=20)
)


@given(masks)
@settings(max_examples=150)
def test_every_token_has_one_slot_and_attends_to_its_own_sequence_alone(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows).long()
    mask[:, 0] = 1
    size, columns = mask.shape
    packed = pack(mask)
    slots = slots_by_hand(packed, mask)
    assert packed.mask.shape[0] * columns == len(packed.source) == len(packed.filled)
    for token in range(size * columns):
        assert packed.kept[token] == (token in slots)
        assert packed.target[token] == slots.get(token, 0)
    ids = torch.arange(1, size * columns + 1).view(size, columns)
    assert torch.equal(packed.put_back(packed.take(ids)), ids * mask)
    owners = torch.full((packed.source.numel(),), -1)
    for token, slot in slots.items():
        owners[slot] = token // columns
        assert packed.position_ids.flatten()[slot] == token % columns
    for row, attended in zip(owners.view(-1, columns), packed.mask[:, 0], strict=True):
        assert torch.equal(attended, row[:, None] == row[None, :])


@given(
    st.integers(1, 64).flatmap(lambda s: st.tuples(st.just(s), st.lists(st.integers(1, s), min_size=1, max_size=70)))
)
@settings(max_examples=200)
def test_no_row_is_too_full_and_their_number_is_rounded_as_said(given_: tuple[int, list[int]]) -> None:
    columns, lengths = given_
    places = fit(lengths, columns)
    used: set[tuple[int, int]] = set()
    for length, (row, first) in zip(lengths, places, strict=True):
        own = {(row, first + column) for column in range(length)}
        assert first + length <= columns and not own & used
        used |= own
    needed, size = len({row for row, _ in places}), len(lengths)
    assert {row for row, _ in places} == set(range(needed))
    loads = [sum(n for n, (row, _) in zip(lengths, places, strict=True) if row == own) for own in range(needed)]
    emptiest = sorted(loads)[:2]
    assert len(emptiest) == 1 or sum(emptiest) > columns, "two rows would fit into one"
    rows = len(pack(mask_of(lengths, columns)).mask)
    assert rows == static_rows(needed, size)
    assert needed <= rows <= size and rows - needed < -(-size // 8)
    assert len(pack(mask_of(lengths, columns), few_shapes=False).mask) == needed


def test_best_fit_decreasing_fills_the_fullest_row_there_is() -> None:
    assert fit([5, 7, 3, 1, 4], 8) == [(1, 0), (0, 0), (1, 5), (0, 7), (2, 0)]
    assert fit([4, 4, 4, 4], 8) == [(0, 0), (0, 4), (1, 0), (1, 4)]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 32, 63, 256])
def test_a_size_of_batch_has_at_most_eight_numbers_of_rows(size: int) -> None:
    found = {static_rows(needed, size) for needed in range(1, size + 1)}
    assert len(found) <= 8 and max(found) == size
    assert size > 8 or found == set(range(1, size + 1))


def test_the_rows_of_a_batch_by_hand() -> None:
    assert [static_rows(needed, 32) for needed in (1, 4, 5, 16, 17, 32)] == [4, 4, 8, 16, 20, 32]
    assert [static_rows(needed, 9) for needed in (1, 3, 8, 9)] == [2, 4, 8, 9]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("columns", ["fitting", "wider"])
def test_packed_losses_and_gradients_are_those_with_padding(lengths: list[int], columns: str) -> None:
    batch = batch_of(lengths, max(lengths) if columns == "fitting" else 64)
    padded, packed = model(False), packing()
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(packed, packed(batch).loss), expected, 1e-5)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("lengths", [[4, 0, 7], [0], [0, 0]], ids=str)
def test_a_batch_with_an_empty_row_is_computed_as_it_is(lengths: list[int], grad: bool) -> None:
    columns = 7
    mask = mask_of(lengths, columns)
    batch = batch_of(lengths, columns)
    packed = pack(mask)
    assert len(packed.mask) == len(lengths) and packed.kept.all() and packed.filled.all()
    with torch.set_grad_enabled(grad):
        expected = model(False)(batch).loss
        torch.testing.assert_close(packing()(batch).loss, expected, rtol=1e-6, atol=1e-6)


def test_a_row_that_begins_with_padding_keeps_its_pooled_first_token() -> None:
    batch = batch_of([6, 6, 2], 6)
    batch.tensors["attention_mask"][1, :3] = 0
    batch.tensors["masked_positions"] = torch.tensor([0, 9, 12])
    batch.tensors["masked_labels"] = torch.tensor([3, 4, 5])
    batch = Batch(batch.tensors, BatchCounts(3, 11, 18, 3, 49))
    padded, packed = model(False), packing()
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(packed, packed(batch).loss), expected, 1e-5)


def test_a_mask_with_holes_keeps_its_columns_in_packed_rows() -> None:
    batch = batch_of([9, 9, 3], 12)
    batch.tensors["attention_mask"][0, 4:6] = 0
    batch.tensors["masked_positions"] = torch.tensor([0, 7, 14])
    batch.tensors["masked_labels"] = torch.tensor([3, 4, 5])
    batch = Batch(batch.tensors, BatchCounts(3, 19, 36, 3, 139))
    padded, packed = model(False), packing()
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(packed, packed(batch).loss), expected, 1e-5)


def test_recomputed_layers_see_packed_rows_too() -> None:
    batch = batch_of([16, 3, 9, 1], 20)
    plain, again = (packing(hidden_dropout=0.1, attention_dropout=0.1) for _ in range(2))
    recompute_activations(again)
    torch.manual_seed(7)
    expected = loss_and_gradients(plain, plain(batch).loss)
    torch.manual_seed(7)
    assert_same(loss_and_gradients(again, again(batch).loss), expected, 1e-6)


def test_layers_see_packed_rows_by_the_lever() -> None:
    batch = batch_of([16, 3, 9, 1], 20)
    for names, rows in (({"pack"}, (2, 20, 32)), ({"unpad"}, (29, 32)), (set(), (4, 20, 32))):
        made = model(None)
        use_levers(made, frozenset(names))
        seen: list[torch.Size] = []
        made.encoder.layers[0].register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].shape))
        made(batch)
        assert seen == [torch.Size(rows)]


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_gradients_of_packed_attention_are_the_derivatives(probability: float) -> None:
    torch.manual_seed(0)
    mask = pack(mask_of([4, 1, 3, 2], 5)).mask
    assert mask.shape == (2, 1, 5, 5)
    qkv = torch.randn(2, 5, 3, 2, 4, dtype=torch.float64, requires_grad=True)

    def fixed(qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return attend(qkv, mask, probability)

    assert torch.autograd.gradcheck(fixed, (qkv,))


def test_gradients_go_back_to_where_tokens_came_from() -> None:
    packed = pack(mask_of([3, 1, 2], 4))
    there = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert packed.put_back(there).shape == (3, 4, 2)
    assert torch.autograd.gradcheck(packed.put_back, (there,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_sees_one_shape_for_batches_of_many_lengths() -> None:
    from torch._dynamo.testing import CompileCounter

    eager, packed, counter = model(False), packing(), CompileCounter()
    compiled = torch.compile(packed.encoder, backend=counter)
    counts = list[int]()
    for lengths in ([16, 3, 9, 1], [5, 20, 7, 2], [11, 11, 9, 9], [20, 20, 17, 1]):  # 2, 2, 2 and 4 rows
        batch = batch_of(lengths, 20)
        ids, mask, types = (batch.tensors[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        found, expected = compiled(ids, mask, types), eager.encoder(ids, mask, types)
        torch.testing.assert_close(found.pooled, expected.pooled, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            found.hidden * mask[..., None], expected.hidden * mask[..., None], rtol=1e-5, atol=1e-5
        )
        grads = [loss_and_gradients(made, output.pooled.sum()) for made, output in ((packed, found), (eager, expected))]
        assert_same(*grads, 1e-5)
        for made in (eager, packed):
            made.zero_grad()
        counts.append(counter.frame_count)
    assert 0 < counts[0] == counts[1] == counts[2] < counts[3]
