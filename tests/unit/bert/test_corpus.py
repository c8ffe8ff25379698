import hashlib
import random
from pathlib import Path

import pytest

from bert.data.corpus import CorpusReport, generate_corpus, read_documents, read_text, split_sentences, text_files
from common.errors import InputError, UsageError


def documents_of(folder: Path, report: CorpusReport | None = None, characters: int = 32_768):
    return list(read_documents(text_files(folder), folder, report or CorpusReport(), characters))


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
        (" * * * ", []),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences


def test_no_character_is_lost_between_sentences() -> None:
    text = 'A b. "C d?" E f! (G h.) I. J k... l m. Mr. N; 3.4. O'
    assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.timeout(20)
def test_splitting_takes_linear_time_on_hostile_text() -> None:
    for text in ("a." * 300_000, "." * 300_000, "A. " * 100_000, "x" * 600_000, '"' * 300_000 + "."):
        split_sentences(text)


def test_a_large_file_becomes_several_documents_at_blank_lines(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {number} is here. It has two sentences." for number in range(100)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    documents = documents_of(tmp_path, characters=1000)
    assert len(documents) > 3
    assert [document.name for document in documents[:2]] == ["book.txt#1", "book.txt#2"]
    joined = [sentence for document in documents for sentence in document.sentences]
    assert joined == [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]
    assert [d.name for d in documents_of(tmp_path)] == ["book.txt"]


def test_line_ends_and_byte_order_marks_do_not_change_the_sentences(tmp_path: Path) -> None:
    text = "One is\nhere. Two\nas well.\n\nThree \u00e9clair.\n"
    variants = {
        "lf": text.encode(),
        "crlf": text.replace("\n", "\r\n").encode(),
        "cr": text.replace("\n", "\r").encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "utf16": text.encode("utf-16"),
        "latin1": text.encode("latin-1"),
    }
    found = {}
    for name, raw in variants.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.txt").write_bytes(raw)
        report = CorpusReport()
        found[name] = documents_of(folder, report)[0].sentences
        assert report.latin1_files == (["a.txt"] if name == "latin1" else [])
        assert any("latin-1: a.txt" in note for note in report.notes()) == (name == "latin1")
    assert set(found.values()) == {("One is here.", "Two as well.", "Three \u00e9clair.")}


def test_empty_files_and_nul_bytes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b" \n\n \n")
    (tmp_path / "nul.txt").write_bytes(b"A sentence\0 here. " + b"More words. " * 20)
    report = CorpusReport()
    documents = documents_of(tmp_path, report)
    assert [document.sentences[0] for document in documents] == ["A sentence here."]
    assert (report.files, report.empty_files, report.nul_bytes) == (3, 2, 1)


def test_a_binary_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(bytes(range(4)) * 100)
    with pytest.raises(InputError, match=r"bad\.txt.*NUL"):
        documents_of(tmp_path)


def test_the_gutenberg_frame_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "Licence words.\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\nThe story.\n\n"
        "*** END OF THE PROJECT GUTENBERG EBOOK X ***\nMore licence.\n"
    )
    report = CorpusReport()
    assert documents_of(tmp_path, report)[0].sentences == ("The story.",)
    assert report.framed_files == 1


def test_folders_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        text_files(tmp_path / "none")
    with pytest.raises(InputError, match=r"no \.txt file"):
        text_files(tmp_path)
    (tmp_path / "a.TXT").write_text("A.")
    with pytest.raises(InputError, match="is a file"):
        text_files(tmp_path / "a.TXT")
    prepared = tmp_path / "hdf5_lower_case_1_x" / "d"
    prepared.mkdir(parents=True)
    (prepared / "vocab.txt").write_text("[PAD]")
    assert text_files(tmp_path) == [tmp_path / "a.TXT"]


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_generated_corpus_depends_on_the_seed_only(tmp_path: Path) -> None:
    generate_corpus(tmp_path / "a", 1, 60_000)
    generate_corpus(tmp_path / "b", 1, 60_000)
    generate_corpus(tmp_path / "c", 2, 60_000)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert not set(digest(tmp_path / "a").values()) & set(digest(tmp_path / "c").values())
    # The draws are integers, so these bytes are the same on every machine and must stay so.
    assert digest(tmp_path / "a")["generated-000000.txt"].startswith("6f1d5526ed38c708")


def test_a_generated_corpus_looks_like_text(tmp_path: Path) -> None:
    files = generate_corpus(tmp_path, 3, 300_000)
    sizes = [path.stat().st_size for path in files]
    assert 300_000 <= sum(sizes) < 303_000
    documents = documents_of(tmp_path)
    assert len(documents) == len(files) >= 60
    lengths = [len(sentence.split()) for document in documents for sentence in document.sentences]
    assert 18 < sum(lengths) / len(lengths) < 26 and min(lengths) < 8 and max(lengths) > 36
    words = [word.strip(".,?!").lower() for path in files for word in path.read_text().split()]
    counts = sorted((words.count(word) for word in set(words[:3000])), reverse=True)
    assert counts[0] > 10 * counts[30] and len(set(words)) > 3000


def test_a_smaller_generated_corpus_replaces_a_larger_one(tmp_path: Path) -> None:
    generate_corpus(tmp_path, 1, 60_000)
    (tmp_path / "mine.txt").write_text("Kept.")
    few = generate_corpus(tmp_path, 1, 12_000)
    assert set(tmp_path.glob("*.txt")) == {*few, tmp_path / "mine.txt"}
    with pytest.raises(UsageError, match="10000"):
        generate_corpus(tmp_path, 1, 500)


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(5000).replace(b"\0", b"")
    (tmp_path / "noise.txt").write_bytes(noise)
    with pytest.raises(InputError, match=r"noise\.txt is not a text file .* control characters"):
        read_text(tmp_path / "noise.txt", "noise.txt", CorpusReport())
