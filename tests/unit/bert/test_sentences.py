import builtins
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.refusals import refused
from support.shared_files import OWN, samples

from bert.corpus import sentences as module
from bert.corpus.clean import clean
from bert.corpus.files import find_inputs, identify
from bert.corpus.sentences import (
    MOST_SENTENCE_CHARACTERS,
    _blingfire,
    _by_rules,
    segment,
    split_sentences,
    splitter_settings,
)
from bert.data.pool import Workers
from bert.data.stages import Counts, Finished, Part, StageFolder

_LATIN = "He said no. Mr Dr. U.S. e.g. 3.5 1 No. I i http://x.y/z a@b.c \u00e9 \u00df \u0130 e\u0301"
_MARKS = "... \u2026 ! ? \u3002 \uff01 \u201c \u201d \" ' ( ) [ ] , ; - \u2014 * _ < &amp; @ ( ,"
_OTHERS = (
    "\u4f60\u597d \u518d\u89c1\u3002 \U0001f44d\U0001f3fd \U0001f9d1\u200d\U0001f680 \u0301 "
    "\ufffd \u200b \ufeff \u00ad \u2060 \ufffe \u0627\u060c \u061f \U0010ffff"
)
WORDS = f"{_LATIN} {_MARKS} {_OTHERS}".split()


SPLITTERS: dict[str, Any] = {"blingfire": _blingfire(), "rules": _by_rules}
needs_blingfire = pytest.mark.skipif(_blingfire() is None, reason="blingfire is not installed")
EVERY = [pytest.param(name, marks=needs_blingfire if name == "blingfire" else ()) for name in SPLITTERS]


@pytest.fixture(params=EVERY)
def splitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_blingfire", lambda: SPLITTERS["blingfire"] if request.param == "blingfire" else None)


paragraphs_of_words = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", " ", " "])), min_size=1, max_size=25).map(
        lambda pairs: " ".join("".join(word + gap for word, gap in pairs).split())
    ),
    min_size=1,
    max_size=6,
)


def ignore(stage: str, done: int, total: int | None) -> None:
    pass


def squeezed(text: str) -> str:
    return "".join(text.split())


def stage_folder(path: Path) -> StageFolder:
    folder = StageFolder(path, "sentences", 1, {}, "")
    folder.begin()
    return folder


def segmented(text: str, folder: Path, workers: Workers | None = None) -> tuple[str, Counts]:
    part = folder / "cleaned" / "d" / "part-000000.txt"
    part.parent.mkdir(parents=True)
    part.write_text(text, encoding="utf-8")
    found = segment([part], stage_folder(folder / "s"), workers or Workers(1), Part(), ignore)
    assert found is not None
    assert [path.name for path in found.files] == ["cleaned-part-000000.txt"]
    return found.files[0].read_text(encoding="utf-8"), found.counts


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One two. Three four!  Five?", ["One two.", "Three four!", "Five?"]),
        ("He met Mr. Smith and Dr. J. Watson.\nThey left.", ["He met Mr. Smith and Dr. J. Watson.", "They left."]),
        ('"Go!" he said. "Now."', ['"Go!" he said.', '"Now."']),
        ("\u201cNever.\u201d \u201cWhy?\u201d She wept.", ["\u201cNever.\u201d", "\u201cWhy?\u201d", "She wept."]),
        ("It cost 3.5 pounds. 7 men paid.", ["It cost 3.5 pounds.", "7 men paid."]),
        ("See No. 7 there. He said no. She left.", ["See No. 7 there.", "He said no.", "She left."]),
        ("So did I. He went.", ["So did I.", "He went."]),
        ("\u4f60\u597d\u3002\u518d\u89c1\u3002", ["\u4f60\u597d\u3002", "\u518d\u89c1\u3002"]),
        ("e.g. this one stays", ["e.g. this one stays"]),
        ("", []),
    ],
)
def test_rules_end_sentences_where_a_reader_would(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences


@needs_blingfire
def test_blingfire_ends_sentences_and_paragraphs() -> None:
    split = SPLITTERS["blingfire"]
    paragraphs = [
        "One two. Three 3.5 four! He met Mr. Smith.",
        "A heading",
        "she went on. \u4f60\u597d\u3002\u518d\u89c1",
    ]
    assert [sentence.decode() for sentence in split([text.encode() for text in paragraphs])] == [
        "One two.",
        "Three 3.5 four!",
        "He met Mr. Smith.",
        "A heading",
        "she went on.",
        "\u4f60\u597d\u3002",
        "\u518d\u89c1",
    ]
    assert split([]) == split([b""]) == split([b" "]) == []


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=examples(300), deadline=None)
@given(paragraphs=paragraphs_of_words)
def test_no_character_is_lost_and_a_block_is_cut_as_its_paragraphs_alone(name: str, paragraphs: list[str]) -> None:
    split = SPLITTERS[name]
    blocks = [paragraph.encode() for paragraph in paragraphs]
    together = split(blocks)
    assert together == [sentence for block in blocks for sentence in split([block])]
    assert squeezed(b" ".join(together).decode()) == squeezed(" ".join(paragraphs))
    assert all(sentence and sentence == sentence.strip() and b"\n" not in sentence for sentence in together)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_survives_lone_surrogates_replaced(name: str, text: str) -> None:
    paragraph = " ".join(text.replace("\0", "").split()).encode("utf-8", errors="replace")
    found = SPLITTERS[name]([paragraph])
    assert squeezed(b" ".join(found).decode()) == squeezed(paragraph.decode())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", EVERY)
def test_splitting_takes_linear_time_on_hostile_text(name: str) -> None:
    for text in ("a." * 100_000, "." * 100_000, "A. " * 60_000, "x" * 200_000, '"' * 100_000 + ".", "\u3002" * 60_000):
        SPLITTERS[name]([text.encode()])


@pytest.mark.parametrize(
    "paragraph",
    [
        "Yahoo! übernahm die Firma.",
        "«Да!» он ушёл.",
        "Wham! была группой.",
        "Où? à Paris.",
        "Wham! \u03ad\u03c0\u03b1\u03b9\u03be\u03b5.",  # Greek
    ],
)
def test_no_sentence_begins_with_a_small_letter_of_any_script(paragraph: str) -> None:
    assert split_sentences(paragraph) == [paragraph]
    assert len(split_sentences(f"{paragraph} Übel! Ölig. Ясно.")) == 4


@pytest.mark.parametrize("error", [ImportError("No module named 'blingfire'"), OSError("wrong ELF class")])
def test_where_blingfire_does_not_run_the_rules_split(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "blingfire":
            raise error
        return real(name, *arguments, **options)

    _blingfire.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    assert splitter_settings() == {"splitter": "rules", "version": "4"}
    assert segmented("A b. C d.\n\n", tmp_path)[0] == "A b.\nC d.\n\n"
    _blingfire.cache_clear()


@needs_blingfire
@pytest.mark.parametrize(
    "sentences",
    [
        ["It was agreed.", "Dr. Yunus received his PhD."],
        ["The theory of music (Stein 2005, p. 79) is old.", "She left."],
        ["It was 5 p.m.", "He left."],
    ],
)
def test_abbreviations_end_no_sentence_and_real_ends_stay(sentences: list[str]) -> None:
    split = SPLITTERS["blingfire"]
    assert [sentence.decode() for sentence in split([" ".join(sentences).encode()])] == sentences
    # A paragraph ends whatever it ends with.
    ends = [b"See p.", b"5 and Dr.", b"Meier"]
    assert split(ends) == ends


def test_documents_stay_apart_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    text, counts = segmented("One. Two.\nThree.\n\n\nFour\n\n \n\nFive. Six", tmp_path)
    assert text == "One.\nTwo.\nThree.\n\nFour\n\nFive.\nSix\n\n"
    numbers = {
        name: counts.get(name) for name in ("documents", "empty documents", "sentences", "characters", "cut sentences")
    }
    assert numbers == {"documents": 3, "empty documents": 1, "sentences": 6, "characters": 26, "cut sentences": 0}


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("splitter")
def test_text_without_a_sentence_end_is_cut_at_white_space(tmp_path: Path) -> None:
    text, counts = segmented("word " * 400_000 + "\n\n", tmp_path / "words")
    assert text.split() == ["word"] * 400_000
    assert 400 < counts.get("sentences") < 1000 and counts.get("cut sentences") >= 1
    assert max(map(len, text.split("\n"))) <= MOST_SENTENCE_CHARACTERS and " \n" not in text and "\n " not in text
    text, _ = segmented("\u4f60" * 400_000 + "\n\n", tmp_path / "one word")
    assert text.replace("\n", "") == "\u4f60" * 400_000
    assert max(map(len, text.split("\n"))) == MOST_SENTENCE_CHARACTERS


def test_parts_of_two_stages_go_together_and_equal_names_are_refused(tmp_path: Path) -> None:
    parts = [tmp_path / stage / "d" / "part-000000.txt" for stage in ("extracted", "cleaned")]
    for part in parts:
        part.parent.mkdir(parents=True)
        part.write_text("A.\n\n")
    found = segment(parts, stage_folder(tmp_path / "s"), Workers(1), Part(), ignore)
    assert found is not None
    assert [path.name for path in found.files] == ["extracted-part-000000.txt", "cleaned-part-000000.txt"]
    with refused("data-ambiguous", "cleaned-part-000000.txt"):
        segment([parts[1], parts[1]], stage_folder(tmp_path / "t"), Workers(1), Part(), ignore)


def cleaned_books(books: Path, folder: Path) -> Finished:
    sources = identify(find_inputs(books).texts, books, folder / "digests.json")
    stage = StageFolder(folder / "cleaned" / "d", "clean", 1, {}, "")
    stage.begin()
    found = clean(sources, stage, Workers(1), Part(), ignore)
    assert found is not None
    return found


@pytest.mark.parametrize("folder", samples("pretrain/books"))
@pytest.mark.usefixtures("splitter")
def test_books_keep_every_character_and_their_documents(folder: Path, tmp_path: Path) -> None:
    books = cleaned_books(folder, tmp_path)
    found = segment(books.files, stage_folder(tmp_path / "s"), Workers(1), Part(), ignore)
    assert found is not None and found.counts.get("documents") == books.counts.get("documents")
    text, before = found.files[0].read_text(), books.files[0].read_text()
    assert [squeezed(document) for document in text.split("\n\n")] == [
        squeezed(document) for document in before.split("\n\n")
    ]
    sentences = [line for line in text.split("\n") if line]
    assert found.counts.get("sentences") == len(sentences)
    assert found.counts.get("characters") == sum(map(len, sentences)) and found.counts.get("cut sentences") == 0
    if folder.is_relative_to(OWN):
        assert "There were thirteen." in sentences
    else:
        assert 18_000 < len(sentences) < 20_000
        assert "To Sherlock Holmes she is always THE woman." in sentences
    assert not any(re.fullmatch(r"[\W_]+", sentence) for sentence in sentences)


@pytest.mark.parametrize("folder", samples("pretrain/books"))
def test_two_workers_and_a_repeated_run_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    books = cleaned_books(folder, tmp_path)
    documents = books.files[0].read_bytes().split(b"\n\n")[:-1]
    parts = []
    for number in range(4):
        parts.append(tmp_path / "cleaned" / "p" / f"part-{number}.txt")
        parts[-1].parent.mkdir(exist_ok=True)
        parts[-1].write_bytes(b"".join(document + b"\n\n" for document in documents[number::4]))
    one = segment(parts, stage_folder(tmp_path / "one"), Workers(1), Part(), ignore)
    with Workers(2) as workers:
        two = segment(parts, stage_folder(tmp_path / "two"), workers, Part(), ignore)
    assert one is not None and two is not None and one.counts.numbers == two.counts.numbers
    assert [path.read_bytes() for path in one.files] == [path.read_bytes() for path in two.files]
    kept, gone = one.files[0].stat().st_mtime_ns, one.files[1].read_bytes()
    one.files[1].unlink()
    again = segment(parts, stage_folder(tmp_path / "one"), Workers(1), Part(), ignore)
    assert again is not None and again.files[1].read_bytes() == gone
    assert again.files[0].stat().st_mtime_ns == kept and again.counts.numbers == two.counts.numbers
