"""Books and other text as documents of paragraphs, the files of a corpus, generated text, sentences."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.refusals import refused

from bert.corpus import sentences as module
from bert.corpus import texts
from bert.corpus.files import Source, find_inputs, identify, is_dump
from bert.corpus.sentences import MOST_SENTENCE_CHARACTERS, _blingfire, by_rules, segment, split_sentences
from bert.corpus.texts import generate_corpus, text_units
from bert.data.finished import Counts, Finished, Stage
from bert.data.pool import Workers
from common.errors import Code


def read(folder: Path) -> tuple[list[list[str]], Counts]:
    counts = Counts()
    sources = [Source(path, path.name, "") for path in find_inputs(folder)[1]]
    return [found for unit in text_units(sources) for found in unit.documents(counts)], counts


def read_bytes(tmp_path: Path, raw: bytes) -> tuple[list[str], Counts]:
    """Read one file `a.txt` with these bytes, of one document."""
    (tmp_path / "a.txt").write_bytes(raw)
    documents, counts = read(tmp_path)
    return (documents or [[]])[0], counts


def test_hard_wrapped_lines_are_joined_and_blank_lines_separate_paragraphs(tmp_path: Path) -> None:
    raw = b"One is\n  here.  Two\tas\x0bwell.\n \t\nThree.\n\n\n\nFour\xc2\xa0five.\n\n* * *\n"
    assert read_bytes(tmp_path, raw)[0] == ["One is here. Two as well.", "Three.", "Four five."]


def test_line_ends_and_encodings_do_not_change_the_text(tmp_path: Path) -> None:
    text = "One is\nhere. Two\nas well.\n\nThree \u00e9clair.\n"
    variants = [
        (text.encode(), {}),
        (text.replace("\n", "\r\n").encode(), {}),
        (text.replace("\n", "\r").encode(), {}),
        (b"\xef\xbb\xbf" + text.encode(), {}),
        (text.encode("utf-16"), {"UTF-16 files": ["a.txt"]}),
        (b"\xfe\xff" + text.encode("utf-16-be"), {"UTF-16 files": ["a.txt"]}),
        (text.encode("utf-32"), {"UTF-32 files": ["a.txt"]}),
        (text.encode("latin-1"), {"latin-1 files": ["a.txt"]}),
    ]
    for raw, named in variants:
        found, counts = read_bytes(tmp_path, raw)
        assert found == ["One is here. Two as well.", "Three \u00e9clair."] and counts.names == named


@pytest.mark.parametrize(
    ("raw", "text", "count"),
    [
        ("\u201cYes,\u201d said Zo\u00eb.".encode("cp1252"), "\u201cYes,\u201d said Zo\u00eb.", "windows-1252 files"),
        ("Zo\u00eb ".encode() * 20 + b"bad \xff byte", "Zo\u00eb " * 20 + "bad \ufffd byte", "damaged UTF-8 files"),
        (b"Zo\xeb and \x81 here.", "Zo\u00eb and here.", "latin-1 files"),
    ],
)
def test_encodings_and_damage_are_told_apart(tmp_path: Path, raw: bytes, text: str, count: str) -> None:
    found, counts = read_bytes(tmp_path, raw)
    assert (found, counts.get(count)) == ([text], 1)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    for raw in (bytes(range(4)) * 100, "UTF-16 without its mark".encode("utf-16-le")):
        with refused("file-encoding", "a.txt", "UTF-8"):
            read_bytes(tmp_path, raw)


FRAMES = {
    "2000s": (
        "Licence words.\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\n\nProduced by A. B. and\nothers\n\n"
        "The story.\n\n"
        "End of Project Gutenberg's X, by\nY\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\nMore licence.\n"
    ),
    "small print": (
        "**The Project Gutenberg Etext of X**\n\nOctober, 1994\n\n***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN "
        "ETEXTS**START***\nWhy is this here?\n\nLawyers.\n\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN "
        "ETEXTS*Ver.04.29.93*END*\n\nThe story.\n\nEnd of the Project Gutenberg Etext of X\n"
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_gutenberg_frame_is_left_out(name: str, tmp_path: Path) -> None:
    found, counts = read_bytes(tmp_path, FRAMES[name].encode())
    assert found == ["The story."] and counts.names["Gutenberg frames"] == ["a.txt"]


def test_a_large_file_becomes_several_documents_at_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraphs = [f"Paragraph {number} is here. It has two sentences." for number in range(100)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    monkeypatch.setattr(texts, "DOCUMENT_CHARACTERS", 1000)
    documents, _ = read(tmp_path)
    assert len(documents) == 5 and [line for document in documents for line in document] == paragraphs
    assert all(1000 <= sum(map(len, document)) < 1100 for document in documents[:-1])


def test_a_large_file_is_cut_at_line_ends_and_small_files_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "UNIT_BYTES", 1000)
    (tmp_path / "b.txt").write_text("".join(f"Paragraph {number} is here.\n\n" for number in range(240)))
    for name in "acd":
        (tmp_path / f"{name}.txt").write_text(f"File {name}.")
    sources = [Source(path, path.name, "") for path in find_inputs(tmp_path)[1]]
    units = list(text_units(sources))
    assert [unit.name for unit in units] == [f"text-{number:06d}.txt" for number in range(len(units))]
    assert [len(unit.sources) for unit in units] == [1] * (len(units) - 1) + [2] and len(units) == 8
    assert sum(unit.size for unit in units) == sum(source.path.stat().st_size for source in sources)
    lines = [line for document in read(tmp_path)[0] for line in document]
    assert lines == ["File a.", *(f"Paragraph {number} is here." for number in range(240)), "File c.", "File d."]


def test_a_generated_corpus_depends_on_the_seed_only(tmp_path: Path) -> None:
    made = []
    for seed in (1, 2):
        generate_corpus(tmp_path / str(seed), seed, 60_000)
        made.append({hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / str(seed)).glob("*.txt")})
    assert not made[0] & made[1]
    # The draws are integers, so these bytes are the same on every machine and must stay so.
    first = hashlib.sha256((tmp_path / "1/generated-000000.txt").read_bytes()).hexdigest()
    assert first.startswith("6f1d5526ed38c708")


def test_dumps_and_texts_are_found_at_any_depth_and_own_folders_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a/A.TXT", "x.xml.bz2", "p.xml-p1p41242.bz2", "y.xml", "z.xml.gz", "paper.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for own in ("sentences", "hdf5_lower_case_1_seq_len_128", "sharded_x"):
        (tmp_path / own).mkdir()
        (tmp_path / own / "mine.txt").write_text("x")
    dumps, texts = find_inputs(tmp_path)
    assert [path.name for path in texts] == ["A.TXT", "b.txt"]
    assert [path.name for path in dumps] == ["p.xml-p1p41242.bz2", "x.xml.bz2", "y.xml", "z.xml.gz"]
    assert not is_dump(Path("sitemap.xml.html"))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("x")
    cases: list[tuple[str, Code]] = [("", "data-missing"), ("no", "path-missing"), ("a.pdf", "path-kind")]
    for name, code in cases:
        with refused(code, tmp_path / name, ".txt", ".xml.bz2"):
            find_inputs(tmp_path / name)


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    memory = tmp_path / "memory.json"
    (first,) = identify([path], tmp_path, memory)
    written = memory.stat().st_mtime_ns
    assert identify([path], tmp_path, memory) == [first] and memory.stat().st_mtime_ns == written
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    (second,) = identify([path], tmp_path, memory)
    assert second.digest != first.digest and second.name == first.name
    memory.write_text("broken")
    assert identify([path], tmp_path, memory) == [second]


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
    sources = [identify(paths, source, target / "digests.json") for paths in find_inputs(source)]
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
