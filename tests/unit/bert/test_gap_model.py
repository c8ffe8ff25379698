"""GAP: features whose tokens spell the mentions, heads that are their formulas, what the task says of them."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import gap_features, gap_row, gap_vocabulary, learnable_gap, write_gap
from support.refusals import refused
from support.shared_files import samples, vocabulary_beside

from bert.data.batch import Batch
from bert.data.batches import DataSpec, row_batch
from bert.data.vocabulary import load_vocabulary
from bert.model.config import ModelConfig
from bert.model.encoder import EncoderOutput
from bert.tasks import make_task
from bert.tasks.base import EvaluationSpec
from bert.tasks.gap.features import (
    MENTION_ENDS,
    MENTION_STARTS,
    GapConfig,
    TokenText,
    fit,
    open_features,
    prepare,
    tokenize,
)
from bert.tasks.gap.heads import HEADS, BertForMentions, first_tokens, mean_tokens
from bert.tasks.gap.reading import DECISIONS, GapExample, Mention, read_gap
from bert.tasks.gap.scores import score
from bert.tasks.gap.task import HEAD_NAMES, GapTask


def made(folder: Path, rows: list[dict[str, str]], split: str = "training", **changes: object) -> Any:
    source = write_gap(folder / "rows.tsv", rows)
    options = {"max_seq_length": 32, **changes}
    config = GapConfig(input=(source,), vocab=gap_vocabulary(folder), output=folder / "out", split=split, **options)
    return prepare(config, lambda *_: None)[0]


@pytest.mark.parametrize("path", samples("gap/*.tsv"))
def test_every_mentions_tokens_spell_the_mention_in_all_rows(path: Path) -> None:
    words = load_vocabulary(vocabulary_beside(path), lower_case=True)
    examples = read_gap(path).examples
    texts = tokenize(examples, words)
    wholes = words.encode([example.text for example in examples])
    mentions = words.encode([mention.text for example in examples for mention in example.mentions])
    starts_only = _cut_at_starts(examples, words)
    for number, (example, text) in enumerate(zip(examples, texts, strict=True)):
        assert text.ids.tolist() == wholes[number] == starts_only[number][0]
        assert text.starts.tolist() == starts_only[number][1]
        for place in range(3):
            tokens = text.ids[text.starts[place] : text.ends[place]].tolist()
            assert tokens == mentions[3 * number + place], example.id


def _cut_at_starts(examples: tuple[GapExample, ...], words: object) -> list[tuple[list[int], list[int]]]:
    """As workloads of this kind are described: cut at the three sorted offsets, position = tokens before."""
    found = []
    for example in examples:
        starts = sorted(mention.offset for mention in example.mentions)
        parts = words.encode([example.text[a:b] for a, b in pairwise([0, *starts, len(example.text)])])  # type: ignore[attr-defined]
        before = {start: sum(map(len, parts[: place + 1])) for place, start in enumerate(starts)}
        found.append(([i for part in parts for i in part], [before[mention.offset] for mention in example.mentions]))
    return found


@st.composite
def long_texts(draw: st.DrawFn) -> tuple[TokenText, int]:
    count = draw(st.integers(3, 120))
    starts = draw(st.lists(st.integers(0, count - 1), min_size=3, max_size=3))
    ends = [draw(st.integers(start + 1, min(count, start + 6))) for start in starts]
    return TokenText(np.arange(1000, 1000 + count), np.array(starts), np.array(ends)), draw(st.integers(5, 130))


@given(long_texts())
def test_a_window_holds_all_mentions_and_as_much_around_them_as_there_is_place_for(case: tuple[TokenText, int]) -> None:
    text, longest = case
    short = fit(text, longest)
    inside = set().union(*(range(a, b) for a, b in zip(text.starts.tolist(), text.ends.tolist(), strict=True)))
    if short is None:
        assert len(inside) > longest - 2
        return
    kept = short.ids - 1000
    assert len(kept) <= longest - 2
    assert (np.diff(kept) > 0).all(), "in the order of the text"
    for place in range(3):
        before = text.ids[text.starts[place] : text.ends[place]].tolist()
        assert short.ids[short.starts[place] : short.ends[place]].tolist() == before
    if len(text.ids) <= longest - 2:
        assert len(kept) == len(text.ids)
    elif text.ends.max() - text.starts.min() <= longest - 2:
        assert len(kept) == longest - 2
        assert kept[-1] - kept[0] == len(kept) - 1, "one window"
    else:
        assert longest - 2 - len(kept) < 6, "one token more on both sides of each would be too much"


def test_a_mention_inside_a_word_and_one_inside_another_still_spell_themselves(tmp_path: Path) -> None:
    words = load_vocabulary(gap_vocabulary(tmp_path), lower_case=True)
    text = "McAda Bea Cleo was kind because she was."
    spots = [Mention("she", 32), Mention("Ada", 2), Mention("Bea Cleo", 6)]
    inner = [Mention("she", 32), Mention("Bea Cleo", 6), Mention("Cleo", 10)]
    for pronoun, a, b in (spots, inner):
        example = GapExample(2, "x", text, (pronoun, a, b), (None, None))
        (found,) = tokenize([example], words)
        for place, mention in enumerate(example.mentions):
            tokens = found.ids[found.starts[place] : found.ends[place]].tolist()
            assert "".join(words.pieces[t].removeprefix("##") for t in tokens) == mention.text.lower().replace(" ", "")


def test_the_readable_tsv_shows_the_tokens_that_the_features_hold(tmp_path: Path) -> None:
    folder = gap_features(tmp_path)
    features = open_features(folder, "validation")
    (path,) = folder.glob("gap-validation-*.tsv")
    header, *lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert len(lines) == len(features.rows) == 12
    first = dict(zip(header, lines[1], strict=True))
    assert first["tokens"] == "[CLS] bea thanked cleo because she was kind . [SEP]"
    assert (first["ID"], first["label"], first["gender"]) == ("validation-2", "A", "feminine")
    assert [first[f"{m}-first"] for m in "PAB"] == ["5", "1", "3"]
    pieces = load_vocabulary(tmp_path / "vocab.txt", True).ids
    for line, number in zip(lines, range(len(features.rows)), strict=True):
        assert [pieces[token] for token in line[3].split()] == features.rows.ids[number].tolist()


def test_rows_that_cannot_be_used_are_left_out_and_named(tmp_path: Path) -> None:
    long = "Ada " * 30
    rows = [*learnable_gap(6), gap_row("x-1", f"{long}met Bea because she was kind", "she", long.strip(), "Bea", 1)]
    rows[1] |= {"A-coref": "", "B-coref": ""}
    rows[3] |= {"A-coref": "TRUE", "B-coref": "TRUE"}
    summary = made(tmp_path, rows)
    assert [name[:7] for name in summary.counts.names["left out"]] == ["line 3 ", "line 5 ", "line 8 "]
    features = open_features(summary.features, "training")
    assert len(features.rows) == 4
    assert features.file.ragged("left_out").texts() == ["development-2", "development-4", "x-1"]


def test_rows_to_predict_have_no_labels_and_of_a_mixture_those_with_labels_stay(tmp_path: Path) -> None:
    rows = [cells | {"A-coref": "", "B-coref": ""} for cells in learnable_gap(3)]
    assert not open_features(made(tmp_path, rows, "test").features, "test").rows.has_labels
    mixed = made(tmp_path, [*rows[:1], *learnable_gap(3)[1:]], "test")
    assert (mixed.counts.get("left out"), mixed.counts.get("features")) == (1, 2)


def test_train_on_all_takes_validation_too_and_a_limit_is_spread_evenly(tmp_path: Path) -> None:
    folder = gap_features(tmp_path)
    both = GapTask(train_on_all=True).rows(folder, "training")
    alone = GapTask().rows(folder, "training")
    validation = open_features(folder, "validation").rows
    assert (len(alone), len(both)) == (48, 60)
    assert both.labels.tolist() == [*alone.labels.tolist(), *validation.labels.tolist()]
    assert both.ids[50].tolist() == validation.ids[2].tolist()
    assert (both.columns[MENTION_STARTS][48:] == validation.columns[MENTION_STARTS]).all()
    some = GapTask(sample_limit=16).rows(folder, "training")
    assert some.labels.tolist() == alone.labels[::3].tolist()
    assert len({alone.fingerprint, both.fingerprint, some.fingerprint}) == 3
    assert GapTask(sample_limit=1000).rows(folder, "training").fingerprint == alone.fingerprint


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
