import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refused

from bert.data.pool import Workers
from bert.data.stages import Finished, Part, StageFolder
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.pretrain import tokens
from bert.tasks.pretrain.tokens import COUNTED, STAGE, TOKENIZED_BY, VERSION, read_tokens, tokenize
from common.errors import Code, InputError

VOCABULARY = Vocabulary((*SPECIAL_PIECES, "the", "un", "##able", ",", "a"), lower_case=True)
WHOLE = Part()
TEXT = "the a\nUnable, zz\n\n\n\u200b\n\na\nthe\n\n"


def folder_of(path: Path) -> StageFolder:
    folder = StageFolder(path, STAGE, VERSION, {}, "source")
    folder.begin()
    return folder


def shards_of(folder: Path, *texts: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"books_training_{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    return paths


def run(
    shards: list[Path], out: Path, vocabulary: Vocabulary = VOCABULARY, workers: int = 1, part: Part = WHOLE
) -> Finished | None:
    with Workers(workers) as pool:
        return tokenize(shards, folder_of(out), vocabulary, pool, part, lambda stage, done, total: None)


def test_a_shard_becomes_ids_with_the_ends_of_sentences_and_documents(tmp_path: Path) -> None:
    finished = run(shards_of(tmp_path / "text", TEXT), tmp_path / "out")
    assert finished is not None and [file.name for file in finished.files] == ["books_training_0.npz"]
    shard = read_tokens(finished.files[0])
    assert shard.ids.tolist() == [5, 9, 6, 7, 8, 1, 9, 5] and shard.ids.dtype == np.uint16
    assert shard.sentence_ends.tolist() == [2, 6, 7, 8] and shard.sentence_ends.dtype == np.int64
    assert shard.document_ends.tolist() == [2, 4] and shard.document_ends.dtype == np.int64
    tokenized = {TOKENIZED_BY.format("nanotoken"): 1}
    assert finished.counts.numbers == {**dict(zip(COUNTED, (2, 4, 8, 1), strict=True)), **tokenized}


@pytest.mark.parametrize(
    ("text", "sentences", "documents"),
    [("", [], []), ("\n\n\n", [], []), ("\u200b\n\n", [], []), ("a", [1], [1]), ("a\nthe\n", [1, 2], [2])],
)
def test_text_without_documents_and_text_without_a_last_line_end_are_taken(
    tmp_path: Path, text: str, sentences: list[int], documents: list[int]
) -> None:
    finished = run(shards_of(tmp_path / "text", text), tmp_path / "out")
    assert finished is not None
    shard = read_tokens(finished.files[0])
    assert (shard.sentence_ends.tolist(), shard.document_ends.tolist()) == (sentences, documents)


def test_the_bytes_do_not_depend_on_workers_blocks_or_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shards_of(tmp_path / "text", *(TEXT * count + "a" for count in (1, 7, 40)))
    contents = []
    for name, workers, block in (("one", 1, 2**22), ("two", 2, 2**22), ("small", 1, 5)):
        monkeypatch.setattr(tokens, "_BLOCK", block)
        finished = run(shards, tmp_path / name, workers=workers)
        assert finished is not None
        contents.append([file.read_bytes() for file in finished.files])
    assert contents[0] == contents[1] == contents[2]


def test_finished_shards_are_kept_and_parts_share_the_work(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "text", TEXT, TEXT * 2, TEXT * 3)
    assert run(shards, tmp_path / "out", part=Part(1, 2)) is None
    made = tmp_path / "out/books_training_1.npz"
    assert [file.name for file in (tmp_path / "out").glob("*.npz")] == [made.name]
    before = made.stat().st_mtime_ns
    finished = run(shards, tmp_path / "out", part=Part(0, 2))
    assert finished is not None and len(finished.files) == 3
    assert made.stat().st_mtime_ns == before
    assert finished.counts.get("sentences") == 4 * (1 + 2 + 3)
    assert run(shards, tmp_path / "out") == finished


def test_progress_counts_the_shards_of_this_part(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "text", TEXT, TEXT, TEXT)
    seen = []
    with Workers(1) as pool:
        tokenize(shards, folder_of(tmp_path), VOCABULARY, pool, Part(0, 2), lambda *call: seen.append(call))
    assert seen == [(STAGE, 0, 2), (STAGE, 1, 2), (STAGE, 2, 2)]


def test_text_that_is_gone_or_not_utf_8_is_named_and_finished_shards_are_kept(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "text", TEXT, TEXT)
    shards[1].write_bytes(b"a \xff\n")
    with refused("file-encoding", shards[1], "UTF-8"):
        run(shards, tmp_path / "out")
    assert (tmp_path / "out/books_training_0.npz").exists()
    shards[1].unlink()
    with refused("path-missing", shards[1]):
        run(shards, tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").glob("*.npz")) == ["books_training_0.npz"]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shards_of(tmp_path / "text", TEXT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens, "_write", full)
    with refused("disk-full", tmp_path / "out"):
        run(shards, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*npz*"))


def written(path: Path) -> Path:
    finished = run(shards_of(path / "text", TEXT * 50), path / "out")
    assert finished is not None
    return finished.files[0]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    damaged = [whole[: len(whole) // 2], b"", b"PK\x03\x04", b"text\n" * 100, whole[:-10], whole[100:]]
    damaged += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 37)]
    found = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            shard = read_tokens(path)
        except InputError as error:
            assert str(path) in str(error) and error.code == "file-damaged"
            found += 1
        else:  # a bit that says nothing, such as a time
            assert (len(shard.ids), len(shard.sentence_ends)) == (400, 200)
    assert found > 0.8 * len(damaged)


@pytest.mark.parametrize(
    ("ids", "sentence_ends", "document_ends"),
    [
        (np.zeros(4, np.uint16), np.array([2, 5]), np.array([2])),
        (np.zeros(4, np.uint16), np.array([2, 2, 4]), np.array([3])),
        (np.zeros(4, np.uint16), np.array([3, 2, 4]), np.array([3])),
        (np.zeros(4, np.uint16), np.array([2, 4]), np.array([1])),
        (np.zeros(4, np.uint16), np.array([2, 4]), np.array([0, 2])),
        (np.zeros(4, np.uint16), np.array([2.0, 4.0]), np.array([2])),
        (np.zeros((2, 2), np.uint16), np.array([2]), np.array([1])),
        (np.full(4, -1, np.int32), np.array([2, 4]), np.array([2])),
        (np.zeros(4, np.float32), np.array([2, 4]), np.array([2])),
        (np.zeros(4, np.uint16), np.array([[2, 4]]), np.array([2])),
        (np.array([None, 1, 2, 3]), np.array([2, 4]), np.array([2])),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    tmp_path: Path, ids: np.ndarray, sentence_ends: np.ndarray, document_ends: np.ndarray
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, ids=ids, sentence_ends=sentence_ends, document_ends=document_ends)
    with refused("file-damaged", path):
        read_tokens(path)


def test_another_archive_one_array_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", other=np.zeros(3))
    with (tmp_path / "b.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    cases: tuple[tuple[str, Code], ...] = (
        ("a.npz", "file-damaged"),
        ("b.npz", "file-damaged"),
        ("none.npz", "path-missing"),
    )
    for name, code in cases:
        with refused(code, name):
            read_tokens(tmp_path / name)


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    vocabulary = Vocabulary((*SPECIAL_PIECES, *(f"w{number}" for number in range(70_000))), True)
    finished = run(shards_of(tmp_path / "text", "w69999 w0\n"), tmp_path / "out", vocabulary)
    assert finished is not None
    ids = read_tokens(finished.files[0]).ids
    assert ids.dtype == np.int32 and ids.tolist() == [70_004, 5]


def test_without_nanotoken_the_files_are_the_same_and_the_record_says_what_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = shards_of(tmp_path / "text", TEXT)
    fast = run(shards, tmp_path / "fast")
    tokens.forget_words()
    monkeypatch.setitem(sys.modules, "nanotoken", None)
    slow = run(shards, tmp_path / "slow", Vocabulary(VOCABULARY.pieces, lower_case=True))
    tokens.forget_words()
    assert fast is not None and slow is not None
    assert slow.files[0].read_bytes() == fast.files[0].read_bytes()
    name = TOKENIZED_BY.format("tokenizers")
    assert slow.counts.get(name) == 1 and fast.counts.get(name) == 0
