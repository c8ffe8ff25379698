"""Features of SQuAD: refused inputs; words, windows and every field against the plain implementation; targets."""

import gzip
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain_squad
from support.datasets import paragraph, question, squad_features, squad_summary, write_squad, write_vocabulary
from support.examples import examples
from support.plain_squad import compare, plain, words_of
from support.refusals import refused
from support.shared_files import OWN, vocabulary_beside

from bert.data.features import read_features
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.squad.features import SquadFeatures
from bert.tasks.squad.prepare import SquadConfig, cpu_count, worker_count
from bert.tasks.squad.reading import read_dataset
from bert.tasks.squad.windows import Pieces, encode_words, greatest_context, place_windows, split_words
from common.errors import Code

LETTERS = "abcdefghijklmnopqrstuvwxyz\u00df\u00e9\u03c3\u03c2\u4e2d\u6587\u0130'.,-$"
VOCABULARY = Vocabulary(
    (*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS if letter.isalpha()), "the", "un", "##able"),
    lower_case=True,
)
# White space of every kind, control and format characters, marks that combine, ligatures, ideographs, capitals that
# change their length.
BLANKS = " \t\r\n\u202f\u00a0\u2003\u3000\u0085\u2028\x00\x0b\x1c\u200b"
SIGNS = BLANKS + "\u00ad\ufeff\ufffd\u0301\u0327\u0345\u0130\u1e9e\ufb01"
TEXTS = st.lists(
    st.text(st.one_of(st.sampled_from(SIGNS + LETTERS + "AZ\u03a3"), st.characters(codec="utf-8"))), max_size=6
)


def by_library(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    found = vocabulary._tokenizer.encode_batch(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]


def ids_of(pieces: Pieces) -> list[list[int]]:
    return [pieces.values[begin:end].tolist() for begin, end in pairwise(pieces.offsets.tolist())]


@given(TEXTS)
@settings(max_examples=examples(300), deadline=None)
def test_words_are_those_of_the_published_loop(texts: list[str]) -> None:
    expected = [words_of(text) for text in texts]
    assert [split_words(text) for text in texts] == [words for words, _ in expected]
    pieces = encode_words(texts, VOCABULARY)
    assert pieces.word_offsets.tolist() == [0, *accumulate(len(words) for words, _ in expected)]
    for number, (_, word_of) in enumerate(expected):
        begin, end = pieces.character_offsets[number : number + 2].tolist()
        assert (pieces.begun[begin : end - 1] - 1 - pieces.word_offsets[number]).tolist() == word_of


@pytest.mark.parametrize("lower_case", [True, False])
def test_pieces_are_those_of_the_whole_text_and_of_each_word_alone(lower_case: bool) -> None:
    vocabulary = Vocabulary(VOCABULARY.pieces, lower_case)

    @given(TEXTS)
    @settings(max_examples=examples(300), deadline=None)
    def check(texts: list[str]) -> None:
        pieces = encode_words(texts, vocabulary)
        assert ids_of(pieces) == by_library(vocabulary, texts), "the whole text at once"
        alone = [[by_library(vocabulary, [word])[0] for word in words_of(text)[0]] for text in texts]
        assert ids_of(pieces) == [[number for ids in rows for number in ids] for rows in alone], "word by word"
        expected = [[word for word, ids in enumerate(rows) for _ in ids] for rows in alone]
        assert pieces.token_words.tolist() == [word for words in expected for word in words]

    check()


QUESTIONS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=6)


@given(QUESTIONS, st.integers(1, 25))
@settings(max_examples=examples(400), deadline=None)
def test_windows_and_greatest_context_are_those_of_the_published_loops(
    questions: list[tuple[int, int]], doc_stride: int
) -> None:
    tokens, most = (np.array(column, np.int64) for column in zip(*questions, strict=True))
    windows = place_windows(tokens, most, doc_stride)
    expected = [plain_squad.place_windows(size, place, doc_stride) for size, place in questions]
    assert windows.counts.tolist() == [len(spans) for spans in expected]
    placed = zip(windows.first.tolist(), windows.tokens.tolist(), strict=True)
    assert list(placed) == [span for spans in expected for span in spans]
    greatest = [
        plain_squad.is_max_context(spans, index, position)
        for spans in expected
        for index, (start, length) in enumerate(spans)
        for position in range(start, start + length)
    ]
    assert greatest_context(windows, tokens).astype(bool).tolist() == greatest


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    return write_vocabulary(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [question(f"q{number}", "what is it?", ("c d", 4)) for number in range(3)]
    return write_squad(tmp_path / "train.json", paragraph("a b c d e f", *rows))


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        ("", "file-damaged", ()),
        ("{", "file-damaged", ()),
        ("[1]", "file-format", ()),
        ('{"data": []}', "file-empty", ()),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": []}, {"qas": []}]}]}', "file-format", ("paragraphs[1]",)),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 7}]}]}]}', "file-format", ("qas[0].id", "int")),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "a", "answers": [{}]}]}]}]}',
            "file-format",
            ("qas[0].answers[0]", "`text`"),
        ),
    ],
)
def test_a_file_that_is_no_squad_is_refused_by_name_and_place(
    content: str, code: Code, facts: tuple[str, ...], tmp_path: Path, vocab: Path
) -> None:
    path = tmp_path / "dev.json"
    path.write_text(content, encoding="utf-8")
    with refused(code, path, *facts):
        squad_summary(path, vocab, tmp_path / "out")
    assert not list(tmp_path.glob("out/squad-*"))


def test_gzip_and_a_byte_order_mark_are_read_and_a_cut_file_is_named(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "train.json.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + source.read_bytes()))
    assert read_dataset(packed).paragraphs == read_dataset(source).paragraphs
    assert read_dataset(packed).fingerprint == read_dataset(source).fingerprint
    packed.write_bytes(packed.read_bytes()[:-12])
    with refused("file-truncated", packed):
        read_dataset(packed)
    with refused("path-missing", tmp_path / "absent.json"):
        read_dataset(tmp_path / "absent.json")


def test_a_file_of_the_other_version_is_refused_and_auto_takes_either(
    source: Path, tmp_path: Path, vocab: Path
) -> None:
    with refused("data-mismatch", "1.1", "2.0", "--squad-version 1.1"):
        squad_summary(source, vocab, tmp_path, squad_version="2.0")
    newer = write_squad(tmp_path / "dev.json", paragraph("a", question("a", is_impossible=True)), version="v2.0")
    with refused("data-mismatch", "1.1", "2.0", "--squad-version 2.0"):
        squad_summary(newer, vocab, tmp_path, squad_version="1.1")
    assert squad_features(newer, vocab, tmp_path).settings.version == "2.0"
    # Text that speaks of the field is no field.
    older = write_squad(tmp_path / "dev1.json", paragraph('"is_impossible": true', question("a", '"is_impossible":')))
    assert squad_features(older, vocab, tmp_path).settings.version == "1.1"


def test_what_features_are_for_is_told_by_the_name_or_asked_for(tmp_path: Path, vocab: Path) -> None:
    for name in ("mine.json", "train-dev.json"):
        (tmp_path / name).touch()
        with refused("option-missing", name, "--split training", "--split evaluation"):
            squad_summary(tmp_path / name, vocab, tmp_path)
    with refused("option-conflict", "--split training", "--input", 2):
        SquadConfig(input=(tmp_path, tmp_path), vocab=vocab, split="training")
    with refused("option-conflict", "--drop-unanswerable-windows"):
        SquadConfig(input=(tmp_path,), vocab=vocab, split="evaluation", drop_unanswerable_windows=True)


def test_a_training_set_of_which_nothing_can_be_used_is_refused_with_the_reasons(tmp_path: Path, vocab: Path) -> None:
    path = write_squad(tmp_path / "train.json", paragraph("a b", question("a", "?", ("z", 0)), question("b", "?")))
    with refused("rows-invalid", path, "the answer is not found at its place", "no answer"):
        squad_summary(path, vocab, tmp_path)


def test_there_are_never_more_workers_than_cpus(source: Path, vocab: Path) -> None:
    dataset = read_dataset(source)
    counts = [
        worker_count(SquadConfig(input=(source,), vocab=vocab, workers=workers), dataset)
        for workers in (None, 1, cpu_count() + 7)
    ]
    assert counts == [1, 1, cpu_count()], "one by default for a small input"


SHORT = {"max_seq_length": 14, "doc_stride": 3, "max_query_length": 4}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        (OWN / "squad/dev-v1.1.json", 20),
        (OWN / "squad/dev-v2.0.json", 26),
    ],
)
def test_every_field_of_a_whole_dev_set_equals_the_plain_implementation(
    source: Path, count: int, tmp_path: Path
) -> None:
    vocab = vocabulary_beside(source)
    # Windows are shorter than the contexts of either file.
    lengths = (64, 24, 16)
    names = dict(zip(("max_seq_length", "doc_stride", "max_query_length"), lengths, strict=True))
    features = squad_features(source, vocab, tmp_path, split="training", **names)
    questions, windows = compare(features, plain(source, vocab, True, lengths))
    assert questions == count
    assert windows > questions
    # Nothing is left out of these files, so that an evaluation has the same windows, without targets.
    other = squad_features(source, vocab, tmp_path, split="evaluation", **names)
    assert not other.start_positions.any() and not other.end_positions.any()
    for column in ("input_ids", "max_context", "question_ids", "answers"):
        ours, theirs = getattr(features, column), getattr(other, column)
        assert ours.values.tobytes() == theirs.values.tobytes() and (ours.offsets == theirs.offsets).all()
    for column in ("window_question", "window_first", "window_tokens", "question_windows", "question_context"):
        assert (getattr(features, column) == getattr(other, column)).all()


ODD = (
    "\u202f The  Norm\u00e9 Duke,\twho\u00a0came in 1066.\r\nIt's \u4e2d\u6587 x\u0301y! \u200b and "
    + "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3
)


def odd_file(path: Path) -> Path:
    """Contexts and answers with everything that the published rules treat in a way of their own."""
    where = ODD.index("1066")
    texts = ["1066", "066", "1066.", "in 1066.\r\nIt's", "Duke,\twho\u00a0came", "x\u0301y", "c d e", "\u200b", " The"]
    questions = [
        question(f"q{number}", "When did the Duke? a b c d", (text, ODD.index(text)))
        for number, text in enumerate(texts)
    ]
    questions += [
        question("cut", "why " * 30, ("z", ODD.index("z"))),
        question("nothing asked", "", ("a b", ODD.index("a b"))),
        question("misaligned", "why?", ("1066", where - 3)),
        question("far too late", "why?", ("1066", 100_000)),
        question("no start", "why?", ("1066", None)),
        question("before", "why?", ("1066", -2)),
        question("no text", "why?", ("", where)),
        question("no answer", "why?"),
        question("several", "why?", ("1066", where), ("in 1066", where - 3)),
        question("q1", "the same id again", ("1066", where)),
    ]
    return write_squad(path, paragraph(ODD, *questions), paragraph(" 1066", question("lead", "why?", (" 1066", 0))))


@pytest.mark.parametrize(("split", "drop"), [("training", False), ("training", True), ("evaluation", False)])
@pytest.mark.parametrize("lengths", [(14, 3, 4), (14, 30, 4), (384, 128, 64), (9, 1, 1)])
def test_odd_text_and_short_windows_equal_the_plain_implementation(
    split: str, drop: bool, lengths: tuple[int, int, int], tmp_path: Path
) -> None:
    source, vocab = odd_file(tmp_path / "odd.json"), write_vocabulary(tmp_path, "the", "duke", "10", "##66")
    names = dict(zip(("max_seq_length", "doc_stride", "max_query_length"), lengths, strict=True))
    features = squad_features(source, vocab, tmp_path, split=split, drop_unanswerable_windows=drop, **names)
    questions, _ = compare(features, plain(source, vocab, split == "training", lengths, drop_unanswerable=drop))
    assert questions > 10


def test_what_is_left_out_of_training_is_counted_by_its_reason_and_kept_for_evaluation(tmp_path: Path) -> None:
    source, vocab = odd_file(tmp_path / "odd.json"), write_vocabulary(tmp_path)
    counts = squad_summary(source, vocab, tmp_path, split="training").counts
    left_out = {name: counts.names[name] for name in counts.numbers if name.startswith("left out")}
    assert left_out == {
        "left out: duplicate ids": ["q1"],
        "left out: the answer is not found at its place": ["q4", "q8", "far too late", "no start", "before"],
        "left out: no answer": ["no text", "no answer"],
        "left out: the answer has no word pieces": ["q7"],
    }
    evaluated = squad_summary(source, vocab, tmp_path, split="evaluation")
    assert evaluated.counts.get("questions") == 19
    assert [name for name in evaluated.counts.numbers if name.startswith("left out")] == ["left out: duplicate ids"]
    assert any("duplicate" in note for note in evaluated.notes), "never silent"


def spans(features: SquadFeatures) -> list[list[tuple[int, int]]]:
    """Targets of each question's windows, as tokens of the context; () where there is none."""
    found = []
    for number in range(len(features.question_ids)):
        rows = range(*features.question_windows[number : number + 2].tolist())
        shifts = [int(features.window_first[row] - features.document_starts[row]) for row in rows]
        places = [(int(features.start_positions[row]), int(features.end_positions[row])) for row in rows]
        found.append([(a + s, b + s) if a else () for (a, b), s in zip(places, shifts, strict=True)])
    return found  # type: ignore[return-value]


def test_impossible_questions_are_trained_to_point_at_cls_and_are_never_dropped(tmp_path: Path) -> None:
    context = "a b c d e f g h i j k l m n o p"
    rows = paragraph(
        context,
        question("yes", "?", ("p", context.index("p")), is_impossible=False),
        question("no", "?", is_impossible=True),
    )
    source, vocab = write_squad(tmp_path / "a.json", rows, version="v2.0"), write_vocabulary(tmp_path)
    kept = squad_features(source, vocab, tmp_path, split="training", **SHORT)
    assert kept.settings.version == "2.0"
    assert spans(kept) == [[(), (), (15, 15)], [(), (), ()]]
    dropped = squad_features(source, vocab, tmp_path, split="training", drop_unanswerable_windows=True, **SHORT)
    assert spans(dropped) == [[(15, 15)], [(), (), ()]]
    assert dropped.max_context[0].tolist() == kept.max_context[2].tolist(), "as if all windows were there"


def test_an_empty_context_has_one_empty_window(tmp_path: Path) -> None:
    source = write_squad(tmp_path / "a.json", paragraph(" \n", question("a")), paragraph("a b", question("b")))
    features = squad_features(source, write_vocabulary(tmp_path), tmp_path, split="evaluation")
    assert features.window_tokens.tolist() == [0, 2]
    compare(features, plain(source, tmp_path / "vocab.txt", False, (384, 128, 64)))


def test_ids_need_four_bytes_for_a_vocabulary_beyond_two(tmp_path: Path) -> None:
    vocab = write_vocabulary(tmp_path, *(f"w{number}" for number in range(70_000)))
    source = write_squad(tmp_path / "a.json", paragraph("w69999 a", question("a", "w5?", ("w69999", 0))))
    features = squad_features(source, vocab, tmp_path, split="training")
    assert features.input_ids.values.dtype == "<i4" and int(features.input_ids.values.max()) > 65_535
    compare(features, plain(source, vocab, True, (384, 128, 64)))


def test_a_question_is_cut_and_counted_and_windows_leave_room_for_it(tmp_path: Path) -> None:
    source = write_squad(tmp_path / "a.json", paragraph("a b c", question("a", "w " * 65)))
    summary = squad_summary(source, write_vocabulary(tmp_path), tmp_path, split="evaluation")
    assert summary.counts.get("questions cut") == 1
    with refused("option-value", "--max-seq-length 67", 68):
        squad_summary(source, tmp_path / "vocab.txt", tmp_path, split="evaluation", max_seq_length=67)
    assert read_features(summary.features).counts.get("questions cut") == 1
