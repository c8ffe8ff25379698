import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.refusals import refused

from bert.corpus import sentences as module
from bert.corpus.files import find_inputs, identify
from bert.corpus.sentences import MOST_SENTENCE_CHARACTERS, _blingfire, by_rules, segment, split_sentences
from bert.data.finished import Finished, Stage
from bert.data.pool import Workers

_LATIN = "He said no. Mr Dr. U.S. e.g. 3.5 1 No. I i http://x.y/z a@b.c \u00e9 \u00df \u0130 e\u0301"
_MARKS = "... \u2026 ! ? \u3002 \uff01 \u201c \u201d \" ' ( ) [ ] , ; - \u2014 * _ < &amp; @ ( ,"
_OTHERS = (
    "\u4f60\u597d \u518d\u89c1\u3002 \U0001f44d\U0001f3fd \U0001f9d1\u200d\U0001f680 \u0301 "
    "\ufffd \u200b \ufeff \u00ad \u2060 \ufffe \u0627\u060c \u061f \U0010ffff"
)
WORDS = f"{_LATIN} {_MARKS} {_OTHERS}".split()


needs_blingfire = pytest.mark.skipif(_blingfire() is None, reason="blingfire is not installed")
EVERY = [pytest.param("blingfire", marks=needs_blingfire), "rules"]


@pytest.fixture(params=EVERY)
def splitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "rules":
        monkeypatch.setattr(module, "_blingfire", lambda: None)


def split_by(name: str, paragraphs: list[str]) -> list[str]:
    if name == "blingfire":
        return split_sentences(paragraphs)
    return [sentence for paragraph in paragraphs for sentence in by_rules(paragraph)]


paragraphs_of_words = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", " ", " "])), min_size=1, max_size=25).map(
        lambda pairs: " ".join("".join(word + gap for word, gap in pairs).split())
    ),
    min_size=1,
    max_size=6,
)


def squeezed(text: str) -> str:
    return "".join(text.split())


def segmented(source: Path, target: Path, workers: Workers | None = None) -> Finished:
    found = find_inputs(source)
    sources = [identify(paths, source, target / "digests.json") for paths in (found.dumps, found.texts)]
    stage = Stage(target / "s", "sentences", 1, {}, "")
    return segment(*sources, stage, workers or Workers(1), lambda *_: None)


def text_of(found: Finished) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in found.files)


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
    assert list(by_rules(" ".join(paragraph.split()))) == sentences


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=examples(200), deadline=None)
@given(paragraphs=paragraphs_of_words)
def test_no_visible_character_is_lost_and_paragraphs_are_cut_as_alone(name: str, paragraphs: list[str]) -> None:
    together = split_by(name, paragraphs)
    assert together == [sentence for paragraph in paragraphs for sentence in split_by(name, [paragraph])]
    invisible = "[\u200b\ufeff\u00ad\u2060\ufffe]"  # blingfire drops them between sentences
    assert re.sub(invisible, "", squeezed("".join(together))) == re.sub(invisible, "", squeezed("".join(paragraphs)))
    assert all(sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in together)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", EVERY)
def test_splitting_takes_linear_time_on_hostile_text(name: str) -> None:
    for text in ("a." * 100_000, "." * 100_000, "A. " * 60_000, "x" * 200_000, '"' * 100_000 + ".", "\u3002" * 60_000):
        split_by(name, [text])


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
    assert split_sentences([" ".join(sentences)]) == sentences
    # A paragraph ends whatever it ends with.
    ends = ["See p.", "5 and Dr.", "Meier"]
    assert split_sentences(ends) == ends


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("splitter")
@pytest.mark.parametrize("text", ["word " * 100_000, "\u4f60" * 100_000])
def test_text_without_a_sentence_end_is_cut_at_white_space(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    found = segmented(tmp_path, tmp_path / "out")
    sentences = text_of(found).split("\n")[:-2]
    assert " ".join(sentences).split() == text.split() or "".join(sentences) == text
    assert len(sentences) == found.counts.get("sentences") < 300
    assert max(map(len, sentences)) <= MOST_SENTENCE_CHARACTERS


def test_input_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n")
    with refused("data-missing", "1 input file"):
        segmented(tmp_path, tmp_path / "out")
