import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import refused
from support.shared_files import PUBLIC_VOCABULARY, VOCABULARY

from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary, load_vocabulary, sample_lines, train_vocabulary

ROOT = Path(__file__).resolve().parents[3]
TEXT = [
    f"The {word} unbelievable fox{word[0]} jumps over \u00e9clairs, no?" for word in ("quick", "lazy", "brown", "dog")
]


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return path


def test_ids_are_looked_up_wherever_the_special_pieces_stand(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.txt", ["a", "[MASK]", "[SEP]", "##b", "[UNK]", "[CLS]", "\u2028", "[PAD]"])
    vocabulary = load_vocabulary(path, lower_case=True)
    found = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert found == (7, 5, 2, 1)
    assert vocabulary.encode(["A ab", "zz", "", "[MASK]"])[:3] == [[0, 0, 3], [4], []]
    assert vocabulary.mask_id not in vocabulary.encode(["[MASK]"])[0], "text cannot smuggle special pieces in"


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        ([*SPECIAL_PIECES, "a", "b", "a"], ("'a'", "6 and 8")),
        (["a", "b", "##c"], ("3 lines", *SPECIAL_PIECES)),
        (["{", '"[PAD]": 0,', '"a": 1', "}"], ("JSON", "4 lines")),
        (['["[PAD]", "[UNK]"]'], ("JSON", "1 lines")),
        (["Chapter 1", "", "It was a dark night.", ""], ("4 lines", *SPECIAL_PIECES)),
        (["[PAD]", "[UNK]", "[CLS]", "a"], ("lacks [SEP] [MASK]:",)),
        ([*SPECIAL_PIECES, "", "a"], ("line 6",)),
    ],
)
def test_a_bad_vocabulary_is_refused_by_name(tmp_path: Path, lines: list[str], facts: tuple[str, ...]) -> None:
    path = write(tmp_path / "vocab.txt", lines)
    with refused("vocabulary-mismatch", path, *facts):
        load_vocabulary(path, lower_case=True)


def test_a_missing_or_binary_vocabulary_is_refused(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "none.txt"):
        load_vocabulary(tmp_path / "none.txt", lower_case=True)
    (tmp_path / "v.txt").write_bytes(b"\xff\xfe\xfa")
    with refused("file-encoding", tmp_path / "v.txt", "UTF-8"):
        load_vocabulary(tmp_path / "v.txt", lower_case=True)


def test_a_file_far_too_long_for_a_vocabulary_is_not_even_read(tmp_path: Path) -> None:
    with (tmp_path / "dump.xml").open("wb") as file:
        file.truncate(10**12)
    with refused("file-limit", tmp_path / "dump.xml", "1000000000000 bytes"):
        load_vocabulary(tmp_path / "dump.xml", lower_case=True)


def test_a_vocabulary_goes_to_other_processes_without_its_tokenizer() -> None:
    vocabulary = Vocabulary((*SPECIAL_PIECES, "a"), lower_case=True)
    size = len(pickle.dumps(vocabulary))
    assert vocabulary.encode(["a"]) == [[5]]
    assert len(pickle.dumps(vocabulary)) == size and pickle.loads(pickle.dumps(vocabulary)) == vocabulary


def test_a_sample_is_spread_over_all_files_and_stays_below_its_size(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for path in paths:
        path.write_text("".join(f"{path.stem} sentence {number}\n\n" for number in range(1000)), encoding="utf-8")
    everything = sample_lines(paths, 10**6)
    assert len(everything) == 3000 and everything[1000] == "b sentence 0" and "" not in everything
    some = sample_lines(paths, 5000)
    assert some == sample_lines(paths, 5000)
    assert {line[0] for line in some} == {"a", "b", "c"}
    assert 2000 < sum(len(line) + 1 for line in some) <= 5000


def test_a_sample_leaves_out_a_line_that_is_too_long_and_needs_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 500 + "\na\nb\u2028c\n", encoding="utf-8")
    assert sample_lines([tmp_path / "a.txt"], 300) == ["b\u2028c"]
    (tmp_path / "b.txt").write_bytes(b"\xff\n")
    with refused("file-encoding", tmp_path / "b.txt", "UTF-8"):
        sample_lines([tmp_path / "b.txt"], 100)
    with refused("path-missing", tmp_path / "none.txt"):
        sample_lines([tmp_path / "none.txt"], 100)


def test_casing_is_an_option(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.txt", [*SPECIAL_PIECES, "\u00e9clair", "eclair", "\u00c9clair"])
    assert load_vocabulary(path, lower_case=True).encode(["\u00c9clair"]) == [[6]]
    assert load_vocabulary(path, lower_case=False).encode(["\u00c9clair"]) == [[7]]


def test_a_trained_vocabulary_spells_its_text_and_survives_the_file(tmp_path: Path) -> None:
    vocabulary = train_vocabulary(TEXT, 200, lower_case=True)
    assert vocabulary.pieces[:5] == SPECIAL_PIECES
    assert len(set(vocabulary.pieces)) == len(vocabulary.pieces) <= 200
    assert vocabulary.ids["[UNK]"] not in {piece for ids in vocabulary.encode(TEXT) for piece in ids}
    assert "the" in vocabulary.pieces and "##!" not in vocabulary.pieces and "##," not in vocabulary.pieces
    vocabulary.save(tmp_path / "vocab.txt")
    again = load_vocabulary(tmp_path / "vocab.txt", lower_case=True)
    assert again == vocabulary and again.fingerprint == vocabulary.fingerprint
    assert Vocabulary(vocabulary.pieces, False).fingerprint != vocabulary.fingerprint


def test_training_gives_the_same_pieces_in_every_process() -> None:
    program = (
        "from pathlib import Path; from bert.data.vocabulary import train_vocabulary\n"
        "from bert.corpus.texts import documents\n"
        "text = b''.join(documents(5, 60000)).decode().split('. ')\n"
        "print(train_vocabulary(text, 900, True).fingerprint)"
    )
    found = [
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert len(set(found)) == 1 and len(found[0].strip()) == 32


def test_a_vocabulary_that_cannot_hold_the_text_is_refused() -> None:
    with refused("option-value", "10 pieces", 64):
        train_vocabulary(TEXT, 10, lower_case=True)
    # Lower-cased and without accents these are 55 letters, at the start of a word and inside one: 5 + 2 * 55.
    with refused("option-value", "64 pieces", 115):
        train_vocabulary(["".join(map(chr, range(0x400, 0x480)))], 64, lower_case=True)
    with refused("data-missing"):
        train_vocabulary([" "], 100, lower_case=True)


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        (VOCABULARY, (3000, 2, 4)),
        pytest.param(PUBLIC_VOCABULARY, (30522, 101, 103), marks=pytest.mark.public),
    ],
    ids=["own", "public"],
)
def test_pieces_are_those_of_the_published_tokenizer(path: Path, facts: tuple[int, int, int]) -> None:
    from transformers import BertTokenizer

    sentences = [
        "Unaffordable! \u00e9clair \u4f60\u597d, don't 3.14 \u00bd",
        "John Johanson's house \u00fcber-na\u00efve\tTabs\u00a0and\u200bmore",
        "x" * 101 + " " + "Antidisestablishmentarianism" + " \U0001f600 a_b",
    ]
    theirs = BertTokenizer.from_pretrained(str(path.parent), vocab_file=str(path), do_lower_case=True)
    vocabulary = load_vocabulary(path, lower_case=True)
    assert (len(vocabulary.pieces), vocabulary.cls_id, vocabulary.mask_id) == facts
    for sentence, ids in zip(sentences, vocabulary.encode(sentences), strict=True):
        assert ids == theirs.encode(sentence, add_special_tokens=False)
