"""GAP's features: every mention's tokens spell the mention, windows hold all three, files are whole or refused."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import gap_features, gap_row, gap_vocabulary, learnable_gap, write_gap
from support.shared_files import samples, vocabulary_beside

from bert.data.vocabulary import load_vocabulary
from bert.tasks.gap.features import (
    MENTION_STARTS,
    GapConfig,
    TokenText,
    fit,
    open_features,
    prepare,
    tokenize,
)
from bert.tasks.gap.reading import GapExample, Mention, read_gap
from bert.tasks.gap.task import GapTask


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
    assert (len(features.rows), features.left_out.texts()) == (4, ["development-2", "development-4", "x-1"])


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
