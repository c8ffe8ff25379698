"""`verify` finds one other value, says where it is, and takes no other storage for another content."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support import pretraining_shards as shards
from support.refusals import refused

from bert.tasks.pretrain.inspecting.verification import Comparison, verify
from common.errors import Code

FIRST = "small_training_0.hdf5"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    first = shards.write_folder(tmp_path / "a")
    shutil.copytree(first, tmp_path / "b")
    return first, tmp_path / "b"


def edited(pair: tuple[Path, Path], edit: Callable[[h5py.File], None]) -> Comparison:
    with h5py.File(pair[1] / FIRST, "r+") as file:
        edit(file)
    return verify(*pair)


def test_copies_are_identical_byte_for_byte(pair: tuple[Path, Path]) -> None:
    found = verify(*pair)
    assert found.passed and not found.equal
    assert len(found.identical) == 5 and {"vocab.txt", "metadata.json", FIRST} <= set(found.identical)


@pytest.mark.parametrize("name", shards.TYPES)
def test_one_other_value_is_found_and_its_place_is_named(pair: tuple[Path, Path], name: str) -> None:
    place = (33,) if name == "next_sentence_labels" else (33, 2)

    def edit(file: h5py.File) -> None:
        file[name][place] = file[name][place] + 1

    found = edited(pair, edit)
    (one,) = found.differences
    assert not found.passed and (one.file, one.dataset, one.first_row) == (FIRST, name, 33)
    at = "[33]" if len(place) == 1 else "[33, 2]"
    assert f"{name}{at} is " in one.what


def test_the_first_of_many_blocks_that_differs_is_named(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert.tasks.pretrain.folder._BLOCK_VALUES", 24 * 3)
    for folder in pair:
        shards.write(folder / FIRST, shards.instances(40, 0), chunks=None)

    def edit(file: h5py.File) -> None:
        file["input_ids"][17, 5] = file["input_ids"][39, 0] = 66

    (one,) = edited(pair, edit).differences
    assert one.first_row == 17


def test_other_compression_chunks_and_settings_are_equal(pair: tuple[Path, Path]) -> None:
    first, second = pair
    arrays = shards.instances(40, 0)
    shards.write(second / FIRST, arrays, {"bertbench_settings": "two"}, chunks=None)
    storage = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "chunks": True}
    shards.write(second / "small_training_1.hdf5", shards.instances(30, 1), {"bertbench_settings": "one"}, **storage)
    found = verify(first, second)
    assert found.passed and sorted(found.equal) == [FIRST, "small_training_1.hdf5"]


def _replace(name: str, values: Callable[[Any], Any]) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        known = file[name][:]
        del file[name]
        file[name] = values(known)

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda file: file.__delitem__("segment_ids"), "the dataset segment_ids is only in A"),
        (lambda file: file.create_dataset("more/weights", data=[1.0]), "the dataset more/weights is only in B"),
        (_replace("input_ids", lambda v: v.astype("int64")), "input_ids is int32[40, 24] in A, int64[40, 24] in B"),
        (_replace("input_mask", lambda v: v[:9]), "input_mask is int8[40, 24] in A, int8[9, 24] in B"),
        (lambda file: file.attrs.update(maker="me"), "attribute maker: none in A, me in B"),
        (lambda file: file["input_ids"].attrs.update(unit=1), "attribute unit of input_ids: none in A, 1 in B"),
    ],
)
def test_what_differs_besides_values_is_named(
    pair: tuple[Path, Path], edit: Callable[[h5py.File], None], said: str
) -> None:
    found = edited(pair, edit)
    assert not found.passed and [one.what for one in found.differences] == [said]


def test_any_hdf5_file_can_be_compared_and_nan_equals_itself(tmp_path: Path) -> None:
    for folder, extra in (("a", 1), ("b", 2)):
        path = tmp_path / folder / "some.h5"
        path.parent.mkdir()
        with h5py.File(path, "w") as file:
            file["x"] = np.array([1.0, np.nan, 3.0])
            file["name"] = "text"
            file["words"] = ["one", "two"]
            file["deep/scalar"] = 4
            ragged = file.create_dataset("ragged", (2,), dtype=h5py.vlen_dtype(np.int32))
            ragged[0], ragged[1] = [1, 2], [3]
            file.create_dataset("empty", shape=(0, 3), dtype="f4")
            file.attrs["bertbench_settings"] = str(extra)
    assert verify(tmp_path / "a", tmp_path / "b").passed
    for name, place, value in (("words", 1, "three"), ("deep/scalar", (), 5), ("x", 1, 2.0), ("ragged", 1, [3, 4])):
        shutil.copytree(tmp_path / "b", tmp_path / name)
        with h5py.File(tmp_path / name / "some.h5", "r+") as file:
            file[name][place] = value
        (one,) = verify(tmp_path / "a", tmp_path / name).differences
        assert one.dataset == name


def test_missing_shards_are_named_on_either_side(pair: tuple[Path, Path]) -> None:
    (pair[0] / FIRST).unlink()
    (pair[1] / "small_test_0.hdf5").unlink()
    said = {(one.file, one.what) for one in verify(*pair).differences}
    assert said == {(FIRST, "only in B"), ("small_test_0.hdf5", "only in A")}


def test_folders_at_other_depths_are_paired_by_file_name(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    shutil.move(pair[1], tmp_path / "deep" / "down" / "b")
    found = verify(pair[0], tmp_path / "deep")
    assert found.passed and len(found.identical) == 5


def test_a_truncated_shard_is_a_difference_that_names_the_file(pair: tuple[Path, Path]) -> None:
    whole = (pair[1] / FIRST).read_bytes()
    (pair[1] / FIRST).write_bytes(whole[:-100])
    (one,) = verify(*pair).differences
    assert one.file == FIRST and "cannot be compared" in one.what and str(pair[1] / FIRST) in one.what


def test_vocabulary_and_metadata_are_compared(pair: tuple[Path, Path]) -> None:
    second = pair[1]
    lines = (second / "vocab.txt").read_text(encoding="utf-8").split("\n")
    (second / "vocab.txt").write_text("\r\n".join(lines), encoding="utf-8", newline="")
    sizes = {"small_test_0.hdf5": 20, "small_training_1.hdf5": 30, FIRST: 40}
    text = (second / "metadata.json").read_text(encoding="utf-8")
    (second / "metadata.json").write_text(text.replace("{", '{"test_fraction": 0.1, ', 1), encoding="utf-8")
    found = verify(*pair)
    assert found.passed
    shards.write_beside(second, sizes, lower_case=False)
    (second / "vocab.txt").write_text("\n".join(["x", *lines[1:]]), encoding="utf-8")
    said = [one.what for one in verify(*pair).differences]
    assert "lower_case is True in A, False in B" in said and any("in line 1" in text for text in said)
    (second / "metadata.json").write_text("{", encoding="utf-8")
    assert any("cannot be compared" in one.what for one in verify(*pair).differences)


def test_bad_folders_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases: tuple[tuple[str, Code], ...] = (
        ("none", "path-missing"),
        ("empty", "data-missing"),
        ("a/vocab.txt", "path-kind"),
    )
    for other, code in cases:
        with refused(code, tmp_path / other):
            verify(pair[0], tmp_path / other)
    with refused("option-conflict", pair[0]):
        verify(pair[0], tmp_path / "empty" / ".." / "a")
