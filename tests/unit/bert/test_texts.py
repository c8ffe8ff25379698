"""Books and other text as documents of paragraphs, the files of a corpus, generated text."""

import hashlib
import os
from pathlib import Path

import pytest
from support.refusals import refused

from bert.corpus import texts
from bert.corpus.files import Source, find_inputs, identify, is_dump
from bert.corpus.texts import generate_corpus, text_units
from bert.data.finished import Counts
from common.errors import Code


def read(folder: Path) -> tuple[list[list[str]], Counts]:
    counts = Counts()
    sources = [Source(path, path.name, "") for path in find_inputs(folder).texts]
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
    sources = [Source(path, path.name, "") for path in find_inputs(tmp_path).texts]
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
    found = find_inputs(tmp_path)
    assert [path.name for path in found.texts] == ["A.TXT", "b.txt"]
    assert [path.name for path in found.dumps] == ["p.xml-p1p41242.bz2", "x.xml.bz2", "y.xml", "z.xml.gz"]
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
