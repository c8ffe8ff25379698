import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import refused

from bert.data.pool import Workers
from bert.data.stages import Finished, Part, StageFolder, read_finished
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.pretrain import hdf5
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.hdf5 import make_shards
from bert.tasks.pretrain.shards import check_shard, read_shard

VOCABULARY = Vocabulary((*SPECIAL_PIECES, *(f"w{number}" for number in range(200))), True)
NAMES = ["d_training_0.hdf5", "d_training_1.hdf5", "d_training_10.hdf5", "d_test_0.hdf5"]


def write_tokens(path: Path, documents: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 15, documents * 20)
    path.parent.mkdir(exist_ok=True, parents=True)
    np.savez(
        path,
        ids=rng.integers(5, 205, sizes.sum()).astype(np.uint16),
        sentence_ends=np.cumsum(sizes),
        document_ends=np.arange(20, documents * 20 + 1, 20),
    )
    return path


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tokens")
    return [write_tokens(folder / f"{Path(name).stem}.npz", 12, seed) for seed, name in enumerate(NAMES)]


def config(**changes: Any) -> InstanceConfig:
    return InstanceConfig(**{"seq_len": 32, "max_predictions": 5, "dupe_factor": 2, **changes})


def stage(path: Path, **settings: Any) -> StageFolder:
    folder = StageFolder(path, hdf5.STAGE, hdf5.VERSION, settings, "tokens")
    folder.begin()
    return folder


def make(tokens: list[Path], path: Path, workers: int = 1, part: Part = Part(), **changes: Any) -> Finished | None:  # noqa: B008
    options = {name: changes.pop(name) for name in ("length_bins", "gzip_level") if name in changes}
    progress = changes.pop("progress", lambda stage, done, total: None)
    folder = stage(path, **changes, **options)
    with Workers(workers) as pool:
        return make_shards(tokens, folder, VOCABULARY, config(**changes), pool, part, progress, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_stage_is_complete_and_counts_what_it_made(tokens: list[Path], tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    finished = make(tokens, tmp_path / "a", progress=lambda *step: seen.append(step))
    assert finished is not None and [path.name for path in finished.files] == NAMES
    assert seen == [("hdf5", number, 4) for number in range(5)]
    shards = [read_shard(path) for path in finished.files]
    counts = finished.counts
    assert counts.get("training instances") == sum(map(len, shards[:3]))
    assert counts.get("test instances") == len(shards[3])
    assert counts.get(hdf5.RANDOM_PAIRS) == sum(int(shard.next_sentence_labels.sum()) for shard in shards)
    assert counts.get(hdf5.REAL_TOKENS) == sum(int(shard.input_mask.sum()) for shard in shards)
    assert counts.get(hdf5.ALL_TOKENS) == sum(len(shard) * 32 for shard in shards)
    assert counts.get(hdf5.PREDICTIONS) == sum(int((shard.masked_lm_positions > 0).sum()) for shard in shards)
    assert {check_shard(path).settings for path in finished.files} == {finished.fingerprint}
    assert read_finished(tmp_path / "a", "hdf5") == finished


def test_two_processes_write_the_same_bytes_as_one(tokens: list[Path], tmp_path: Path) -> None:
    make(tokens, tmp_path / "one", 1)
    make(tokens, tmp_path / "two", 2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_bins_and_plain_storage_reach_the_files(tokens: list[Path], tmp_path: Path) -> None:
    make(tokens, tmp_path / "a")
    make(tokens, tmp_path / "b", length_bins=8, gzip_level=0)
    usual, other = (check_shard(tmp_path / folder / NAMES[0]) for folder in "ab")
    assert (usual.mappable, usual.bin_lengths) == (False, ())
    assert (other.mappable, other.bin_lengths, usual.samples) == (True, (8, 16, 24, 32), sum(other.bin_counts))


def test_parts_together_make_the_same_stage(tokens: list[Path], tmp_path: Path) -> None:
    make(tokens, tmp_path / "whole")
    assert make(tokens, tmp_path / "parts", part=Part(1, 3)) is None
    assert (tmp_path / "parts" / NAMES[1]).exists() and not (tmp_path / "parts" / NAMES[0]).exists()
    assert make(tokens, tmp_path / "parts", part=Part(2, 3)) is None
    assert make(tokens, tmp_path / "parts", part=Part(0, 3)) is not None
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_whole_shards_are_kept_and_damaged_or_lost_ones_made_again(tokens: list[Path], tmp_path: Path) -> None:
    make(tokens, tmp_path / "a")
    before = contents(tmp_path / "a")
    times = {name: (tmp_path / "a" / name).stat().st_mtime_ns for name in NAMES}
    os.truncate(tmp_path / "a" / NAMES[0], 3000)
    (tmp_path / "a" / NAMES[1]).unlink()
    (tmp_path / "a" / f".{NAMES[2]}.json").write_text("{")
    seen: list[int] = []
    assert make(tokens, tmp_path / "a", progress=lambda stage, done, total: seen.append(done)) is not None
    assert contents(tmp_path / "a") == before and seen == [1, 2, 3, 4]
    assert (tmp_path / "a" / NAMES[3]).stat().st_mtime_ns == times[NAMES[3]]
    seen.clear()
    assert make(tokens, tmp_path / "a", progress=lambda stage, done, total: seen.append(done)) is not None
    assert seen == [4], "of a complete stage all is done at once"


def test_other_settings_make_other_shards(tokens: list[Path], tmp_path: Path) -> None:
    make(tokens, tmp_path / "a")
    before = contents(tmp_path / "a")
    make(tokens, tmp_path / "a", seed=1)
    after = contents(tmp_path / "a")
    assert all(before[name] != after[name] for name in NAMES)
    make(tokens, tmp_path / "a")
    assert contents(tmp_path / "a") == before


def test_a_shard_of_other_settings_is_made_again_even_where_the_folder_says_it_is_finished(
    tokens: list[Path], tmp_path: Path
) -> None:
    make(tokens, tmp_path / "a")
    make(tokens, tmp_path / "b", seed=1)
    before = contents(tmp_path / "a")
    (tmp_path / "b" / NAMES[0]).replace(tmp_path / "a" / NAMES[0])
    make(tokens, tmp_path / "a")
    assert contents(tmp_path / "a") == before


def test_shards_of_equal_text_are_masked_differently(tmp_path: Path) -> None:
    paths = [write_tokens(tmp_path / "tokens" / f"{Path(name).stem}.npz", 12) for name in NAMES]
    finished = make(paths, tmp_path / "a")
    assert finished is not None
    assert len({read_shard(path).input_ids.tobytes() for path in finished.files}) == 4


def test_one_bad_shard_leaves_the_finished_ones(tokens: list[Path], tmp_path: Path) -> None:
    empty = tmp_path / "d_training_2.npz"
    np.savez(
        empty, ids=np.empty(0, np.uint16), sentence_ends=np.empty(0, np.int64), document_ends=np.empty(0, np.int64)
    )
    with refused("data-too-small", "d_training_2.hdf5"):
        make([*tokens[:2], empty], tmp_path / "a")
    assert (tmp_path / "a" / NAMES[1]).exists() and not (tmp_path / "a" / "d_training_2.hdf5").exists()


def test_ids_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d_training_0.npz"
    np.savez(path, ids=np.array([5, 205], np.uint16), sentence_ends=np.array([2]), document_ends=np.array([1]))
    with refused("vocabulary-mismatch", path, "id 205"):
        make([path], tmp_path / "a")


def test_a_name_that_is_none_of_a_shard_is_refused(tmp_path: Path) -> None:
    with refused("record-foreign", "other.npz"):
        make([write_tokens(tmp_path / "other.npz", 2)], tmp_path / "a")
