"""Totals of tokens padded to few numbers: the same losses and gradients, and few graphs, all of them rehearsed."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import training_runs
from support.examples import examples
from support.layouts import LENGTHS, SHAPE, assert_same, batch_of, loss_and_gradients, model

from bert.data.batch import Batch
from bert.data.synthetic import SyntheticBatches
from bert.model.attention import attend
from bert.model.encoder import Layer
from bert.model.heads import BertForPretraining, lay_out
from bert.model.packing import Bounds, TokenBudget, even_budget, unpad
from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.single import SingleStrategy
from bert.speed.registry import use_levers
from bert.tasks import make_task
from bert.tasks.base import DataSpec
from bert.train.feed import Feed, layouts
from bert.train.loop import Training, run_step
from bert.train.observer import Observer
from bert.train.rehearsal import batches_of_all_totals, rehearse

SIZE, COLUMNS = 8, 64


def with_budget(batch: Batch) -> Batch:
    laid_out = batch.laid_out(even_budget(*batch.tensors["attention_mask"].shape))
    assert laid_out.layout is not None
    return laid_out


@given(
    st.integers(1, 300).flatmap(
        lambda s: st.tuples(st.just(s), st.lists(st.integers(1, s), min_size=1, max_size=70), st.integers(1, s))
    )
)
@settings(max_examples=examples(200))
def test_the_tokens_of_a_batch_are_padded_to_one_of_eight_totals(given_: tuple[int, list[int], int]) -> None:
    columns, lengths, other = given_
    rows, mask = len(lengths), (torch.arange(columns) < torch.tensor(lengths)[:, None]).long()
    plain = unpad(mask)
    assert plain is not None
    for budget in (
        even_budget(rows, columns),
        TokenBudget.of_batches(columns, torch.tensor([lengths])),
        TokenBudget.of_batches(columns, torch.full((2, rows), other)),  # lengths that it does not expect
    ):
        padded, totals = unpad(mask, budget), budget.totals
        assert padded is not None
        assert len(totals) <= 8 and list(totals) == sorted(set(totals)) and all(total % 64 == 0 for total in totals)
        assert padded.tokens == sum(padded.lengths) == len(padded.position_ids) and padded.tokens in totals
        smaller = [total for total in totals if total < padded.tokens]
        assert not smaller or smaller[-1] < sum(lengths) + budget.dummies, "a smaller total would hold it"
        real, dummies = padded.lengths[:rows], padded.lengths[rows:]
        assert list(real) == lengths and padded.real_tokens == plain.tokens == sum(lengths)
        assert len(dummies) == budget.dummies and min(dummies) >= 1
        assert max(dummies) <= max(columns, 2) == padded.bounds.longest and max(dummies) - min(dummies) <= 1
        assert padded.ends.tolist() == [0, *torch.tensor(padded.lengths).cumsum(0).tolist()]
        assert torch.equal(padded.places[: plain.tokens], plain.places) and not padded.places[plain.tokens :].any()
        ids = torch.arange(1, rows * columns + 1).view(rows, columns)
        taken = padded.take(ids)
        assert torch.equal(taken[: plain.tokens], plain.take(ids)) and not taken[plain.tokens :].any()
        assert torch.equal(padded.put_back(taken), ids * mask)


def test_budgets_by_hand() -> None:
    # An eighth of 32,768 slots, and 64 more, fits into 9 dummy sequences of at most 512 tokens, each of at least 1.
    assert even_budget(64, 512).dummies == 9
    assert even_budget(64, 512).totals == tuple(4096 * part + 64 for part in range(1, 9))
    assert even_budget(SIZE, COLUMNS).totals == (128, 192, 256, 320, 384, 448, 512, 576)
    # Totals of 4,000 and 6,000: mean 5,000, deviation 1,000, which is more than that of independent lengths, 8 x 15.6.
    lengths = torch.tensor([[62.5] * 64, [93.75] * 64])
    found = TokenBudget.of_batches(512, lengths)
    # The gap of 23,768 slots above 9,000 fits into 47 dummy sequences.
    assert found.dummies == 47
    assert found.totals == (2560, 3584, 4608, 5568, 6592, 7552, 9088, 32832)


@pytest.mark.parametrize(("data", "least"), [("synthetic:mean254", 0.95), ("synthetic:phase1", 0.94)])
def test_most_of_what_is_computed_is_real(data: str, least: float) -> None:
    spec = DataSpec(data=data, seq_len=128 if "phase1" in data else 512, micro_batch_size=64, vocab_size=200)
    adapt = layouts(lambda: SyntheticBatches(spec), frozenset({"unpad", "cuda-graphs"}), spec.seq_len)
    batches = [adapt(batch) for batch in itertools.islice(SyntheticBatches(spec), 24)]
    totals = [batch.layout.tokens for batch in batches if batch.layout is not None]
    assert sum(batch.counts.real_tokens for batch in batches) / sum(totals) > least
    assert len(totals) == 24 and set(totals) <= set(batches[0].layout.budget.totals)  # type: ignore[union-attr]


def test_batches_of_another_size_have_an_even_budget_and_narrower_ones_that_of_all() -> None:
    budget = TokenBudget.of_batches(64, torch.full((2, 4), 9))
    for lengths, columns, expected in (([9, 8, 9, 9], 20, budget), ([9, 8], 64, even_budget(2, 64))):
        layout = batch_of(lengths, columns).laid_out(budget).layout
        assert layout is not None and layout.budget == expected and layout.bounds.longest == 64
        assert len(layout.ends) == len(lengths) + expected.dummies + 1


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("levers", ["unpad", "unpad+chunks+fused-elementwise"])
def test_losses_and_gradients_are_those_with_padding(lengths: list[int], levers: str) -> None:
    batch = batch_of(lengths, 64)
    padded, budgeted = model(False), model(True)
    use_levers(budgeted, frozenset(levers.split("+")))
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(budgeted, budgeted(with_budget(batch)).loss), expected, 1e-5)


@pytest.mark.parametrize("name", ["squad", "gap", "classify"])
def test_other_heads_see_no_dummy_token(name: str) -> None:
    task = make_task(name, "")
    data = DataSpec(data="synthetic", seq_len=32, micro_batch_size=4, vocab_size=SHAPE.vocab_size)
    batch = next(iter(task.batches(data)))
    found = []
    for each in (batch, with_budget(batch)):
        torch.manual_seed(0)
        made: Any = task.build_model(SHAPE)
        made.encoder.unpads = each is not batch
        found.append(loss_and_gradients(made, task.loss(made, each)))
    assert_same(found[1], found[0], 1e-5)


def test_a_batch_without_padding_has_the_largest_budget() -> None:
    batch = with_budget(batch_of([COLUMNS] * SIZE, COLUMNS))
    assert (
        batch.mask is None and batch.layout is not None and batch.layout.tokens == even_budget(SIZE, COLUMNS).totals[-1]
    )
    padded, budgeted = model(False), model(True)
    expected = loss_and_gradients(padded, padded(batch).loss)
    assert_same(loss_and_gradients(budgeted, budgeted(batch).loss), expected, 1e-5)


def test_gradients_go_back_to_where_tokens_came_from() -> None:
    layout = with_budget(batch_of([3, 1, 2], 4)).layout
    assert layout is not None
    tokens = torch.randn(layout.tokens, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layout.put_back, (tokens,))


# Layers that are compiled, without machine code: PyTorch's tracing and its count of compilations are those of a GPU.


def by_bounds(qkv: torch.Tensor, where: Any, probability: float, **how: Any) -> torch.Tensor:
    """Attention of concatenated sequences by their ends alone, as on a GPU: nothing depends on a length."""
    if not isinstance(where, Bounds):
        return attend(qkv, where, probability, **how)
    owners = torch.searchsorted(where.ends, torch.arange(qkv.shape[0]), right=True)
    query, key, value = qkv.permute(1, 2, 0, 3).unbind(0)
    mask = owners[:, None] == owners[None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability).transpose(0, 1)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator["Graphs"]:
    torch._dynamo.reset()
    found = Graphs()
    monkeypatch.setattr("bert.model.attention.attend", by_bounds)
    monkeypatch.setattr(Layer, "compile", lambda self, mode: torch.nn.Module.compile(self, backend=found.compile))
    yield found
    torch._dynamo.reset()


class Graphs:
    """Compilations, and CUDA graphs of them.

    PyTorch records a graph of a compilation for each combination of numbers among its inputs
    (torch._inductor.cudagraph_trees.cudagraphify_impl): here the number of tokens.
    """

    def __init__(self) -> None:
        self.compiled = 0
        self.numbers: set[tuple[int, ...]] = set()
        self.seen: set[int] = set()

    def compile(self, graph: Any, inputs: Any) -> Any:
        """Leave the graph as it is, and note what it is called with."""
        self.compiled += 1

        def run(*given: Any) -> Any:
            self.numbers.add(tuple(each for each in given if type(each) is int))
            return graph(*given)

        return run

    def watch(self, made: BertForPretraining) -> None:
        """Note the numbers of tokens that reach the layers."""
        call = made.encoder.run_layer

        def run(layer: Any, hidden: Any, where: Any) -> Any:
            self.seen.add(len(hidden))
            return call(layer, hidden, where)

        made.encoder.run_layer = run


def training_of(made: BertForPretraining) -> tuple[Training, Feed]:
    levers = frozenset({"unpad", "cuda-graphs"})
    use_levers(made, levers)
    data = DataSpec(data="synthetic:uniform", seq_len=COLUMNS, micro_batch_size=SIZE, vocab_size=SHAPE.vocab_size)
    feed = Feed(SyntheticBatches(data), False, layouts(lambda: SyntheticBatches(data), levers, data.seq_len))
    training = Training(
        model=made, optimizer=adamw(made, 1e-3), compute_loss=lambda model, batch: model(batch).loss, batches=feed,
        strategy=SingleStrategy(), precision=Precision("fp32", "cpu"),
    )  # fmt: skip
    return training, feed


def of_all_totals(rows: int, columns: int) -> list[Batch]:
    batch = with_budget(batch_of([columns] * rows, columns))
    assert batch.layout is not None
    return batches_of_all_totals(batch, batch.layout)


def test_every_graph_is_rehearsed_and_none_is_made_in_steps_or_twice(graphs: Graphs) -> None:
    made = model(None)
    training, feed = training_of(made)
    graphs.watch(made)
    weights = [parameter.detach().clone() for parameter in made.parameters()]
    random, position = torch.get_rng_state(), feed.position
    shapes = rehearse(training, feed, "single", training.compute_loss)
    layout = feed.peek().layout
    assert layout is not None and layout.budget is not None
    totals = set(layout.budget.totals)
    assert 4 < shapes == len(totals) <= 8 and graphs.seen == totals
    assert graphs.compiled == 1 and graphs.numbers == {(total,) for total in totals}, "8 graphs of 1 compilation"
    assert torch.equal(torch.get_rng_state(), random) and feed.position == position
    assert all(torch.equal(*pair) for pair in zip(made.parameters(), weights, strict=True))
    assert all(parameter.grad is None for parameter in made.parameters())
    graphs.seen.clear()
    recorded = set(graphs.numbers)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(12):
            run_step(training, Observer(), step)
    assert len(graphs.seen) > 1 and graphs.seen <= totals and graphs.numbers == recorded


def test_without_few_shapes_and_with_other_strategies_nothing_is_rehearsed(graphs: Graphs) -> None:
    made = model(None)
    training, feed = training_of(made)
    assert rehearse(training, feed, "deepspeed", training.compute_loss) == 0
    use_levers(made, frozenset({"unpad"}))
    assert rehearse(training, feed, "single", training.compute_loss) == 0 and feed.position == {"step": 0}


def test_static_shapes_would_be_compiled_for_one_after_another(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What marking the number of tokens as dynamic avoids: the second one is compiled for in the middle of training."""
    monkeypatch.setattr(torch._dynamo, "maybe_mark_dynamic", lambda tensor, dimension: None)
    made = model(None)
    use_levers(made, frozenset({"unpad", "cuda-graphs"}))
    counts = []
    for batch in of_all_totals(SIZE, COLUMNS):
        made(batch).loss.backward()
        counts.append(graphs.compiled)
    assert counts == [1] + [2] * 7, "one for the first number, one for all others: not one each"


def test_compiled_layers_with_a_budget_give_the_losses_of_plain_ones_also_in_evaluation(graphs: Graphs) -> None:
    plain, replayed = model(False), model(None)
    use_levers(replayed, frozenset({"unpad", "cuda-graphs"}))
    for seed in range(3):
        batch = batch_of([1 + (17 * seed + 13 * row) % COLUMNS for row in range(SIZE)], COLUMNS, seed=seed)
        for made in (plain, replayed):
            made.zero_grad()
        expected = loss_and_gradients(plain, plain(batch).loss)
        assert_same(loss_and_gradients(replayed, replayed(lay_out(replayed, batch)).loss), expected, 1e-5)
        with torch.inference_mode():
            torch.testing.assert_close(replayed(lay_out(replayed, batch)).loss, expected["loss"], rtol=1e-5, atol=1e-5)
    assert graphs.compiled == 2, "one for training, one for evaluation"


def test_rehearsed_batches_hold_every_total_once() -> None:
    for rows, columns in ((SIZE, COLUMNS), (1, 8), (3, 5), (64, 2), (4, 1)):
        found = [batch.layout for batch in of_all_totals(rows, columns) if batch.layout is not None]
        assert [layout.tokens for layout in found] == list(even_budget(rows, columns).totals)


def test_rehearsed_batches_are_as_wide_as_the_widest() -> None:
    budget = TokenBudget.of_batches(64, torch.full((2, 4), 9))
    narrow = batch_of([9, 8, 9, 9], 20).laid_out(budget)
    assert narrow.layout is not None
    for batch in batches_of_all_totals(narrow, narrow.layout):
        assert batch.tensors["input_ids"].shape == batch.tensors["token_type_ids"].shape == (4, 64)
        assert model(True)(batch).loss.isfinite()


def test_a_run_has_its_shapes_before_its_first_step(
    graphs: Graphs, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = training_runs.settings(data, eval_every=4)
    plain, replayed = training_runs.Recorder(), training_runs.Recorder()
    training_runs.run(wanted, tmp_path / "plain", plain)
    # A CPU has no CUDA graphs, and refuses them by name.
    monkeypatch.setattr("bert.train.run.effective", lambda *given: (frozenset({"unpad", "cuda-graphs"}), {}))
    rehearsed: list[tuple[int, int]] = []

    def noted(*given: Any) -> int:
        shapes = rehearse(*given)
        rehearsed.append((shapes, len(graphs.numbers)))
        return shapes

    monkeypatch.setattr("bert.train.run.rehearse", noted)
    assert training_runs.run(wanted, tmp_path / "replayed", replayed).finished
    ((shapes, numbers),) = rehearsed
    assert shapes == numbers > 0
    assert replayed.losses.keys() == plain.losses.keys()
    for step, loss in plain.losses.items():  # dropout draws other numbers
        assert float.fromhex(replayed.losses[step]) == pytest.approx(float.fromhex(loss), rel=0.05)


@pytest.mark.parametrize("more", [frozenset(), frozenset({"fused-elementwise"})])
def test_one_compilation_serves_batches_of_every_width_and_those_without_padding(
    more: frozenset[str], graphs: Graphs
) -> None:
    levers, made = frozenset({"unpad", "compile"}) | more, model(None)
    use_levers(made, levers)
    adapt = layouts(lambda: pytest.fail("a budget asks for batches"), levers, COLUMNS)
    for lengths, columns in (([5, 9, 3, 7], 16), ([16, 9, 3, 7], 16), ([20, 2, 9, 24], 24), ([24] * 4, 24)):
        batch = adapt(batch_of(lengths, columns))
        assert batch.layout is not None and batch.layout.tokens == sum(lengths)
        made(batch).loss.backward()
    assert graphs.compiled == 1


def test_evaluations_of_batches_of_many_widths_share_their_totals() -> None:
    made = model(None)
    use_levers(made, frozenset({"unpad", "cuda-graphs"}))
    found = [lay_out(made, batch_of([columns] * SIZE, columns)).layout for columns in (3, 8, 20, COLUMNS)]
    assert all(layout is not None for layout in found)
    assert len({(layout.budget, len(layout.lengths), layout.longest) for layout in found if layout is not None}) == 1
