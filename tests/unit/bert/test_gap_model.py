"""The heads of GAP: each is its formula, learns, and does not depend on padding; what the task says of them."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.datasets import gap_features
from support.refusals import refused

from bert.data.batch import Batch
from bert.data.batches import DataSpec, row_batch
from bert.model.config import ModelConfig
from bert.model.encoder import EncoderOutput
from bert.tasks import make_task
from bert.tasks.base import EvaluationSpec
from bert.tasks.gap.features import MENTION_ENDS, MENTION_STARTS
from bert.tasks.gap.heads import HEADS, BertForMentions, first_tokens, mean_tokens
from bert.tasks.gap.reading import DECISIONS
from bert.tasks.gap.scores import score
from bert.tasks.gap.task import HEAD_NAMES, GapTask

SHAPE = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64, vocab_size=200, max_positions=32,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gap_features(tmp_path_factory.mktemp("gap"))


@pytest.fixture(scope="module")
def batch(folder: Path) -> Batch:
    return row_batch(GapTask().rows(folder, "training"), np.arange(12))


def model(head: str, config: ModelConfig = SHAPE) -> BertForMentions:
    torch.manual_seed(0)
    return BertForMentions(config, head).eval()


def test_concat_is_one_layer_on_the_three_first_tokens(batch: Batch) -> None:
    made = model("concat")
    hidden = made.encode(batch).hidden
    output = made.mention_head["concat"].output  # type: ignore[union-attr]
    for row in range(12):
        mentions = [hidden[row, place] for place in batch.tensors[MENTION_STARTS][row]]
        torch.testing.assert_close(made.logits(batch)[row], output(torch.cat(mentions)))  # type: ignore[operator]


def test_mul_multiplies_the_pronoun_with_neither_a_and_b(batch: Batch) -> None:
    made = model("mul")
    hidden = made.encode(batch).hidden
    neither = made.mention_head["mul"].neither
    for row in range(12):
        pronoun, a, b = (hidden[row, place] for place in batch.tensors[MENTION_STARTS][row])
        expected = torch.stack([pronoun @ other for other in (neither, a, b)]) / math.sqrt(32)  # type: ignore[operator]
        torch.testing.assert_close(made.logits(batch)[row], expected)


def test_mul_adds_up_in_float32_what_the_encoder_gives_in_half_precision(batch: Batch) -> None:
    head = model("mul").mention_head["mul"]
    drawn = torch.randn(12, batch.tensors["input_ids"].shape[1], 32, generator=torch.Generator().manual_seed(0))
    hidden = (4 * drawn).to(torch.bfloat16)
    found = head(EncoderOutput(hidden, None), batch.tensors)
    exact = head.double()(EncoderOutput(hidden.double(), None), batch.tensors)
    torch.testing.assert_close(found.double(), exact.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("segments", [2, 0], ids=("bert", "distilbert"))
def test_segment_marks_first_tokens_with_types_over_row_0_of_the_encoder(batch: Batch, segments: int) -> None:
    made = model("segment", SHAPE.replace(type_vocab_size=segments))
    seen: list[torch.Tensor] = []
    made.encoder.embeddings.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    made.logits(batch)
    table = made.encoder.embeddings.token_type
    first = torch.zeros(32) if table is None else table.weight[0]
    marks = made.mention_head["segment"].marks.weight  # type: ignore[union-attr]
    ids, starts = batch.tensors["input_ids"], batch.tensors[MENTION_STARTS]
    expected = made.encoder.embeddings.word(ids) + made.encoder.embeddings.position.weight[: ids.shape[1]] + first
    for row in range(12):
        for mention in range(3):
            expected[row, starts[row, mention]] += marks[mention] - first  # type: ignore[index]
    torch.testing.assert_close(seen[0], expected)


def test_span_takes_all_tokens_of_a_mention_and_swaps_with_the_names(batch: Batch) -> None:
    made = model("span")
    logits = made.logits(batch)
    assert (logits[:, 0] == 0).all()
    order = [0, 2, 1]
    swapped = {name: batch.tensors[name][:, order] for name in (MENTION_STARTS, MENTION_ENDS)}
    torch.testing.assert_close(made.logits(Batch({**batch.tensors, **swapped}, batch.counts)), logits[:, order])


def test_means_and_first_tokens_are_those_of_a_loop() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(4, 9, 5)
    starts = torch.tensor([[1, 4, 2], [7, 1, 1], [3, 3, 3], [1, 2, 8]])
    ends = starts + torch.tensor([[2, 1, 2], [1, 5, 3], [1, 2, 6], [1, 1, 1]])
    means, firsts = mean_tokens(hidden, starts, ends), first_tokens(hidden, starts)
    for row in range(4):
        for mention in range(3):
            begin, end = int(starts[row, mention]), int(ends[row, mention])
            torch.testing.assert_close(means[row, mention], hidden[row, begin:end].mean(0))
            torch.testing.assert_close(firsts[row, mention], hidden[row, begin])


@pytest.mark.parametrize("head", HEAD_NAMES)
def test_logits_do_not_depend_on_padding(folder: Path, head: str) -> None:
    rows = GapTask().rows(folder, "training")
    made = model(head)
    with torch.no_grad():
        longest = made.logits(row_batch(rows, np.arange(8)))
        fixed = made.logits(row_batch(rows, np.arange(8), "fixed"))
    torch.testing.assert_close(longest, fixed, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("head", HEAD_NAMES)
def test_each_head_learns_rows_by_heart_and_moves_all_of_its_weights(batch: Batch, head: str) -> None:
    made = model(head).train()
    before = {name: value.clone() for name, value in made.mention_head.state_dict().items()}
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = made(batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < 0.7 < losses[0]
    assert not any(torch.equal(value, before[name]) for name, value in made.mention_head.state_dict().items())


def test_the_task_scores_as_officially_and_takes_only_its_options(folder: Path) -> None:
    task = make_task("gap", '{"head":"mul"}')
    assert isinstance(task, GapTask) and tuple(HEADS) == HEAD_NAMES
    logits = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    labels = np.arange(30) % 3
    found = task.score(logits, labels)
    golds = {str(n): (DECISIONS[label], None) for n, label in enumerate(labels)}
    decided = score(golds, {str(n): DECISIONS[c] for n, c in enumerate(logits.argmax(1))})
    assert found["gap_f1"] == decided.overall.f1
    assert found["accuracy"] == pytest.approx(decided.accuracy)
    with refused("option-choice", "concat, mul, segment, span"):
        make_task("gap", '{"head":"best"}')
    with refused("option-not-applicable", "labels"):
        make_task("gap", '{"labels":3}')


@pytest.mark.parametrize("head", HEAD_NAMES)
def test_made_up_batches_have_three_mentions_of_their_own(head: str) -> None:
    task = GapTask(head=head)
    spec = DataSpec(data="synthetic", seq_len=32, micro_batch_size=4, vocab_size=200)
    batch = next(iter(task.batches(spec)))
    starts, ends = batch.tensors[MENTION_STARTS], batch.tensors[MENTION_ENDS]
    lengths = batch.tensors["attention_mask"].sum(1)
    assert starts.shape == (4, 3)
    assert (starts >= 1).all()
    assert (ends < lengths[:, None]).all()
    assert all(len(set(row.tolist())) == 3 for row in starts)
    assert task.loss(model(head), batch).isfinite()


def test_validation_beside_the_training_data_is_evaluated_on_unless_it_is_trained_on(folder: Path) -> None:
    spec = DataSpec(data=str(folder), seq_len=32, micro_batch_size=4, vocab_size=200)
    found = GapTask(head="mul").evaluator(spec, EvaluationSpec())
    assert len(found.rows) == 12
    (file,) = folder.glob("gap-training-*.safetensors")
    by_file = DataSpec(data=str(file), seq_len=32, micro_batch_size=4, vocab_size=200)
    assert GapTask(head="mul").evaluator(by_file, EvaluationSpec()).fingerprint == found.fingerprint
    with refused("option-conflict", folder):
        GapTask(head="mul", train_on_all=True).evaluator(spec, EvaluationSpec())
    with refused("option-conflict", file):
        GapTask(head="mul").evaluator(spec, EvaluationSpec(source=str(file)))
