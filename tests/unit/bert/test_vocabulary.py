from pathlib import Path

import pytest
from support.refusals import refused

from bert.corpus.texts import documents
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary, load_vocabulary, sample_lines, train_vocabulary
from common.errors import Code

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


def test_training_gives_the_same_pieces_every_time() -> None:
    text = b"".join(documents(5, 60_000)).decode().split(". ")
    assert len({train_vocabulary(text, 900, True).fingerprint for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        ("\n".join([*SPECIAL_PIECES, "a", "b", "a"]), "vocabulary-mismatch", "'a'"),
        ("\n".join([*SPECIAL_PIECES, "", "a"]), "vocabulary-mismatch", "line 6"),
        ('{"[PAD]": 0}', "vocabulary-mismatch", "[PAD]"),
        ("[PAD]\n[UNK]\n[CLS]\na", "vocabulary-mismatch", "[SEP] [MASK]"),
        (b"\xff\xfe\xfa", "file-encoding", "UTF-8"),
        (None, "path-missing", "vocab.txt"),
    ],
)
def test_a_bad_vocabulary_is_refused_by_name(
    tmp_path: Path, content: str | bytes | None, code: Code, fact: str
) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refused(code, path, fact):
        load_vocabulary(path, lower_case=True)


def test_a_vocabulary_that_cannot_hold_the_text_is_refused() -> None:
    # Lower-cased and without accents these are 55 letters, at the start of a word and inside one: 5 + 2 * 55.
    with refused("option-value", "64 pieces", 115):
        train_vocabulary(["".join(map(chr, range(0x400, 0x480)))], 64, lower_case=True)
    with refused("data-missing"):
        train_vocabulary([" "], 100, lower_case=True)
