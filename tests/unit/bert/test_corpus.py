import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import ROOT
from support.refusals import refused
from support.rights import without_capabilities
from support.shared_files import OWN, samples

from bert.corpus import clean as clean_module
from bert.corpus.clean import clean, without_frame
from bert.corpus.files import BLOCK_BYTES, Source, find_encoding, find_inputs, identify, is_dump
from bert.corpus.generated import generate_corpus
from bert.data.pool import Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.errors import Code


def ignore(stage: str, done: int, total: int | None) -> None:
    pass


def stage_folder(path: Path) -> StageFolder:
    folder = StageFolder(path, "clean", 1, {}, "")
    folder.begin()
    return folder


def cleaned(source: Path, target: Path, workers: Workers | None = None) -> Finished:
    sources = identify(find_inputs(source).texts, source, target / "digests.json")
    found = clean(sources, stage_folder(target / "cleaned" / "d"), workers or Workers(1), Part(), ignore)
    assert found is not None
    return found


def text_of(found: Finished) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in found.files)


def cleaned_bytes(tmp_path: Path, raw: bytes) -> tuple[str, Counts]:
    """Clean one file `a.txt` with these bytes."""
    folder = tmp_path / hashlib.sha256(raw).hexdigest()[:12]
    folder.mkdir()
    (folder / "a.txt").write_bytes(raw)
    found = cleaned(folder, folder / "out")
    return text_of(found), found.counts


def test_hard_wrapped_lines_are_joined_and_blank_lines_separate_paragraphs(tmp_path: Path) -> None:
    raw = b"One is\n  here.  Two\tas\x0bwell.\n \t\nThree.\n\n\n\nFour\xc2\xa0five.\n"
    assert cleaned_bytes(tmp_path, raw)[0] == "One is here. Two as well.\nThree.\nFour five.\n\n"


def test_line_ends_and_encodings_do_not_change_the_text(tmp_path: Path) -> None:
    text = "One is\nhere. Two\nas well.\n\nThree \u00e9clair.\n"
    variants = {
        "": text.encode(),
        " ": text.replace("\n", "\r\n").encode(),
        "  ": text.replace("\n", "\r").encode(),
        "   ": b"\xef\xbb\xbf" + text.encode(),
        "UTF-16 files": text.encode("utf-16"),
        "UTF-32 files": text.encode("utf-32"),
        "latin-1 files": text.encode("latin-1"),
    }
    for name, raw in variants.items():
        found, counts = cleaned_bytes(tmp_path, raw)
        assert found == "One is here. Two as well.\nThree \u00e9clair.\n\n"
        assert {kind: examples for kind, examples in counts.names.items() if counts.get(kind)} == (
            {name: ["a.txt"]} if name.strip() else {}
        )
    big_endian = b"\xfe\xff" + text.encode("utf-16-be")
    assert cleaned_bytes(tmp_path, big_endian)[0] == found


def test_windows_quotes_are_told_from_latin1_and_a_damaged_byte_from_another_encoding(tmp_path: Path) -> None:
    found, counts = cleaned_bytes(tmp_path, "\u201cYes,\u201d said Zo\u00eb.".encode("cp1252"))
    assert (found, counts.get("windows-1252 files")) == ("\u201cYes,\u201d said Zo\u00eb.\n\n", 1)
    found, counts = cleaned_bytes(tmp_path, "Zo\u00eb \u00e9t\u00e9 ".encode() * 20 + b"bad \xff byte \xc3")
    assert counts.get("damaged UTF-8 files") == 1 and found.count("Zo\u00eb") == 20 and "bad \ufffd byte" in found
    found, counts = cleaned_bytes(tmp_path, b"Zo\xeb and \x81 here.")
    assert (found, counts.get("latin-1 files")) == ("Zo\u00eb and here.\n\n", 1)


def test_characters_at_the_border_of_two_blocks_survive(tmp_path: Path) -> None:
    for offset in range(4):
        for odd in ("\u00e9", "\u4f60", "\U0001f44d", "\x85", "\x80"):
            text = "a" * (BLOCK_BYTES - offset) + odd + "b\r\n\r\nc"
            kept = text.replace("\x80", "").replace("\x85", " ")
            (tmp_path / "a.txt").write_bytes(text.encode())
            source = Source(tmp_path / "a.txt", "a.txt", "")
            blocks = list(clean_module.TextBlocks(source, find_encoding(source)))
            found = "\n".join(clean_module._joined(clean_module._raw_paragraphs(blocks, Counts()), Counts()))
            assert found.replace("\n", "").replace(" ", "") == "".join(kept.split())


def test_control_characters_and_nul_bytes_are_taken_out_and_empty_files_counted(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b" \n\n \n")
    (tmp_path / "marks.txt").write_bytes(b"* * *\n\n1805.\n")
    (tmp_path / "nul.txt").write_bytes("A sent\0ence \x01 he\x7fre\u0090. ".encode() + b"More words. " * 20)
    found = cleaned(tmp_path, tmp_path / "out")
    assert text_of(found) == "A sentence here. " + "More words. " * 19 + "More words.\n\n"
    counts = found.counts
    assert [counts.get(name) for name in ("files", "empty files", "NUL bytes", "documents")] == [4, 3, 1, 1]
    assert counts.get("paragraphs without a letter") == 2
    assert counts.names["empty files"] == ["blank.txt", "empty.txt", "marks.txt"]


def test_files_that_are_no_text_are_refused_by_name(tmp_path: Path) -> None:
    for raw, what in (
        (bytes(range(4)) * 100, "NUL"),
        (random.Random(0).randbytes(5000).replace(b"\0", b""), "control characters"),
        ("UTF-16 without its mark".encode("utf-16-le"), "NUL"),
    ):
        with refused("file-encoding", "a.txt", what, "UTF-8"):
            cleaned_bytes(tmp_path, raw)
    source = Source(tmp_path / "gone.txt", "gone.txt", "")
    with refused("path-missing", tmp_path / "gone.txt"):
        clean([source], stage_folder(tmp_path / "c"), Workers(1), Part(), ignore)


FRAMES = {
    "2000s": (
        "Licence words.\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\n\nProduced by A. B. and\nothers\n\n"
        "The story.\n\n"
        "End of Project Gutenberg's X, by\nY\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\nMore licence.\n"
    ),
    "marker over two lines": (
        "Title: X\n\n***START OF THE PROJECT GUTENBERG EBOOK A VERY LONG\nTITLE***\n\nE-text prepared by A\n\n"
        "The story.\n\n"
        "***END OF THE PROJECT GUTENBERG EBOOK A VERY LONG\nTITLE***\n\nMore.\n"
    ),
    "small print": (
        "**The Project Gutenberg Etext of X**\n\nOctober, 1994\n\n***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN "
        "ETEXTS**START***\nWhy is this here?\n\nLawyers.\n\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN "
        "ETEXTS*Ver.04.29.93*END*\n\nThe story.\n\nEnd of the Project Gutenberg Etext of X\n"
    ),
    "no marker at the end": "A\n*** START OF THE PROJECT GUTENBERG EBOOK 7 ***\nThe story.\n",
    "no marker at the beginning": "The story.\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\n\nLicence.",
    "small print at the end": "The story.\n\n***START** THE SMALL PRINT! ***\n\nLawyers.\n",
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_gutenberg_frame_is_left_out(name: str, tmp_path: Path) -> None:
    found, counts = cleaned_bytes(tmp_path, FRAMES[name].encode())
    assert found == "The story.\n\n"
    assert counts.get("Gutenberg frames") == 1 and counts.names["Gutenberg frames"] == ["a.txt"]


def test_two_books_in_one_file_are_both_kept_and_text_about_gutenberg_too(tmp_path: Path) -> None:
    both = FRAMES["2000s"] + "\n" + FRAMES["marker over two lines"].replace("story", "other")
    assert cleaned_bytes(tmp_path, both.encode())[0] == "The story.\nThe other.\n\n"
    plain = "Project Gutenberg is a library.\nIt has books.\n\nProduced by hand, it began in 1971.\n"
    found, counts = cleaned_bytes(tmp_path, plain.encode())
    assert found == "Project Gutenberg is a library. It has books.\nProduced by hand, it began in 1971.\n\n"
    assert counts.get("Gutenberg frames") == counts.get("credits") == 0


def test_a_header_is_looked_for_in_the_first_part_of_a_file_only() -> None:
    paragraphs = ["x" * 1000] * 200
    marker = "*** START OF THIS PROJECT GUTENBERG EBOOK X ***"
    assert list(without_frame([*paragraphs[:100], marker, "y"], Counts(), "a")) == ["y"]
    assert list(without_frame([*paragraphs, marker, "y"], Counts(), "a")) == [*paragraphs, "y"]


def test_a_large_file_becomes_several_documents_at_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraphs = [f"Paragraph {number} is here. It has two sentences." for number in range(100)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    assert text_of(cleaned(tmp_path, tmp_path / "one")).count("\n\n") == 1
    monkeypatch.setattr(clean_module, "DOCUMENT_CHARACTERS", 1000)
    found = cleaned(tmp_path, tmp_path / "several")
    documents = text_of(found).split("\n\n")[:-1]
    assert len(documents) == found.counts.get("documents") == 5
    assert [line for document in documents for line in document.split("\n")] == paragraphs
    assert all(1000 <= sum(map(len, document.split("\n"))) < 1100 for document in documents[:-1])


def test_a_file_larger_than_a_part_becomes_several_parts_and_small_files_share_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_module, "PART_BYTES", 2 * BLOCK_BYTES)
    text = "".join(f"Paragraph {number} is here.\n\n" for number in range(240_000))
    (tmp_path / "b.txt").write_text(text)
    for name in "acd":
        (tmp_path / f"{name}.txt").write_text(f"File {name}.")
    found = cleaned(tmp_path, tmp_path / "out")
    assert [path.name for path in found.files] == [f"part-{number:06d}.txt" for number in range(6)]
    sizes = [path.stat().st_size for path in found.files]
    assert sizes[0] == 9 and sizes[-1] == 18 and max(sizes) < 2.3 * min(sizes[1:-1])
    assert text_of(found).replace("\n", "") == "File a." + text.replace("\n", "") + "File c.File d."
    (tmp_path / "out" / "cleaned" / "d" / "part-000002.txt").unlink()
    again = cleaned(tmp_path, tmp_path / "out")
    assert [path.stat().st_size for path in again.files] == sizes and again.counts.numbers == found.counts.numbers


def test_a_paragraph_without_end_is_cut_at_white_space(tmp_path: Path) -> None:
    text = "word " * 500_000
    found, counts = cleaned_bytes(tmp_path, text.encode())
    assert found.split() == text.split() and counts.get("cut paragraphs") == 2
    assert max(map(len, found.split("\n"))) <= clean_module.MOST_PARAGRAPH_CHARACTERS
    found, counts = cleaned_bytes(tmp_path, b"x" * 2_500_000)
    assert found.replace("\n", "") == "x" * 2_500_000 and counts.get("cut paragraphs") == 2


SCRIPT = """
import os, signal, sys
from pathlib import Path
from bert.corpus import clean as module
from bert.corpus.files import find_inputs, identify
from bert.data.pool import Workers
from bert.data.stages import Part, StageFolder
from common.errors import StorageError
source, target = Path(sys.argv[1]), Path(sys.argv[2])
module.PART_BYTES = 40_000
def progress(stage, done, total):
    if done == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
sources = identify(find_inputs(source).texts, source, target / "digests.json")
folder = StageFolder(target / "cleaned" / "d", "clean", 1, {}, "")
try:
    folder.begin()
    module.clean(sources, folder, Workers(1), Part(), progress)
except StorageError as error:
    sys.exit(f"{error.code} {error}")
"""


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.txt")}


def test_a_killed_stage_continues_and_parts_of_a_stage_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_corpus(tmp_path / "text", 1, 200_000)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "text"), str(tmp_path / "killed"), "2"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    folder = tmp_path / "killed" / "cleaned" / "d"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.txt")}
    assert len(before) == 2
    (folder / ".part-000002.txt.left.tmp").write_text("half")
    subprocess.run([*command[:-1], "-1"], cwd=ROOT, check=True)
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    assert not list(folder.glob(".*.tmp"))

    monkeypatch.setattr(clean_module, "PART_BYTES", 40_000)
    sources = identify(find_inputs(tmp_path / "text").texts, tmp_path / "text", tmp_path / "digests.json")
    shared = stage_folder(tmp_path / "shared")
    assert clean(sources, shared, Workers(1), Part(0, 2), ignore) is None
    ended = clean(sources, shared, Workers(1), Part(1, 2), ignore)
    assert ended is not None and ended.counts.get("files") == len(sources)
    assert digests(shared.path) == digests(folder) and len(digests(folder)) > 4


def test_books_lose_their_frame_and_nothing_else(tmp_path: Path) -> None:
    found = cleaned(OWN / "pretrain/books", tmp_path)
    text = text_of(found)
    counts = found.counts
    assert [counts.get(name) for name in ("files", "Gutenberg frames", "credits")] == [2, 2, 1]
    assert counts.names["latin-1 files"] == ["letters-8.txt"]
    for unwanted in ("GUTENBERG", "synthetic", "Produced by", "\r", "\ufeff"):
        assert unwanted not in text
    for wanted in (
        "\nIt was a little after seven o'clock when Mr. Brandt climbed the wall. The lake lay flat and grey below him",
        "\nCHAPTER II.\nThe Letter\n",
        '\nThe people here say "\xf1aque" for bread. Se\xf1or Pe\xf1a, who keeps the mill, gave me two loaves',
    ):
        assert wanted in text


@pytest.mark.parametrize("books", samples("pretrain/books"))
def test_two_workers_clean_the_same_bytes_as_one(books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in books.iterdir())
    monkeypatch.setattr(clean_module, "PART_BYTES", size // 6)
    cleaned(books, tmp_path / "one")
    with Workers(2) as workers:
        cleaned(books, tmp_path / "two", workers)
    found = digests(tmp_path / "one" / "cleaned" / "d")
    assert found == digests(tmp_path / "two" / "cleaned" / "d") and len(found) >= 4


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    generate_corpus(tmp_path / "text", 1, 20_000)
    out, folder = tmp_path / "out", tmp_path / "out" / "cleaned"
    folder.mkdir(parents=True, mode=0o500)
    command = [*without_capabilities(), sys.executable, "-c", SCRIPT, str(tmp_path / "text"), str(out), "-1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("write-failed ") and str(folder) in done.stderr


def test_a_generated_corpus_depends_on_the_seed_only(tmp_path: Path) -> None:
    generate_corpus(tmp_path / "a", 1, 60_000)
    generate_corpus(tmp_path / "b", 1, 60_000)
    generate_corpus(tmp_path / "c", 2, 60_000)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert not set(digests(tmp_path / "a").values()) & set(digests(tmp_path / "c").values())
    # The draws are integers, so these bytes are the same on every machine and must stay so.
    assert digests(tmp_path / "a")["generated-000000.txt"].startswith("6f1d5526ed38c708")


def test_a_generated_corpus_looks_like_text(tmp_path: Path) -> None:
    from bert.corpus.sentences import split_sentences

    files = generate_corpus(tmp_path, 3, 300_000)
    sizes = [path.stat().st_size for path in files]
    assert 300_000 <= sum(sizes) < 303_000
    found = cleaned(tmp_path, tmp_path / "out")
    assert found.counts.get("documents") == len(files) >= 60
    sentences = [sentence for line in text_of(found).split("\n") for sentence in split_sentences(line)]
    lengths = [len(sentence.split()) for sentence in sentences]
    assert 18 < sum(lengths) / len(lengths) < 26 and min(lengths) < 8 and max(lengths) > 36
    words = [word.strip(".,?!").lower() for path in files for word in path.read_text().split()]
    counts = sorted((words.count(word) for word in set(words[:3000])), reverse=True)
    assert counts[0] > 10 * counts[30] and len(set(words)) > 3000


def test_a_smaller_generated_corpus_replaces_a_larger_one(tmp_path: Path) -> None:
    generate_corpus(tmp_path, 1, 60_000)
    (tmp_path / "mine.txt").write_text("Kept.")
    few = generate_corpus(tmp_path, 1, 12_000)
    assert set(tmp_path.glob("*.txt")) == {*few, tmp_path / "mine.txt"}
    with refused("option-value", "500 bytes", 10000):
        generate_corpus(tmp_path, 1, 500)


def test_dumps_and_texts_are_found_at_any_depth_and_own_folders_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a/A.TXT", "x.xml.bz2", "p.xml-p1p41242.bz2", "y.xml", "z.xml.gz", "paper.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for own in (
        "sentences",
        "extracted",
        "cleaned",
        "tokens_lower_case_1",
        "hdf5_lower_case_1_seq_len_128",
        "sharded_x",
    ):
        (tmp_path / own).mkdir()
        (tmp_path / own / "mine.txt").write_text("x")
    found = find_inputs(tmp_path)
    assert [path.name for path in found.texts] == ["A.TXT", "b.txt"]
    assert [path.name for path in found.dumps] == ["p.xml-p1p41242.bz2", "x.xml.bz2", "y.xml", "z.xml.gz"]
    assert not is_dump(Path("sitemap.xml.html"))


def test_links_are_followed_once_and_broken_ones_named(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books/a.txt").write_text("x")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "dir").symlink_to(tmp_path / "books")
    (folder / "loop").symlink_to(folder)
    (folder / "one.txt").symlink_to(tmp_path / "books/a.txt")
    assert [path.relative_to(folder).as_posix() for path in find_inputs(folder).texts] == ["dir/a.txt", "one.txt"]
    (folder / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    with refused("path-missing", folder / "broken.txt"):
        find_inputs(folder)


def test_a_folder_without_text_says_what_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("x")
    cases: tuple[tuple[Path, Code], ...] = (
        (tmp_path, "data-missing"),
        (tmp_path / "no", "path-missing"),
        (tmp_path / "a.pdf", "path-kind"),
    )
    for folder, code in cases:
        with refused(code, folder, ".txt", ".xml.bz2", ".xml.gz"):
            find_inputs(folder)


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


def test_names_that_are_no_utf8_are_read_and_shown(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xe9tude.txt")
    path.write_text("x")
    for _ in range(2):
        (source,) = identify([path], tmp_path, tmp_path / "memory.json")
        assert source.name == "\\udce9tude.txt" and source.path == path
        source.name.encode()
