"""The pipeline from text to shards: its stages and workers, what it writes where, what it keeps and refuses."""

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.refusals import refused

from bert.corpus.texts import generate_corpus
from bert.data.finished import Counts, Finished, Stage
from bert.data.pool import Workers
from bert.data.vocabulary import load_vocabulary
from bert.tasks.pretrain.hdf5 import tokenize
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.prepare import PrepareConfig, prepare
from bert.tasks.pretrain.shards import folder_info, read_shard
from common.errors import Code, UsageError


def die(unit: int) -> int:
    if unit == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def out_of_memory(unit: int) -> int:
    raise MemoryError


def process_of(unit: int) -> int:
    time.sleep(0.2)
    return os.getpid()


@pytest.mark.timeout(120)
def test_a_worker_that_dies_is_one_error_and_the_next_pool_is_not_disturbed() -> None:
    for function in (die, out_of_memory):
        with refused("worker-lost", "--workers 2"), Workers(2) as workers:
            list(workers.map(function, range(8)))
    with Workers(2) as workers:
        assert list(workers.map(abs, range(-3, 0))) == [3, 2, 1]


def test_no_process_is_left_after_an_interruption_and_units_at_work_are_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
        processes = set(workers.map(process_of, range(6)))
        next(workers.map(time.sleep, [0, 100, 100]))
        raise KeyboardInterrupt
    assert time.monotonic() - began < 60 and len(processes) == 2
    assert not any(map(psutil.pid_exists, processes))


def test_one_worker_is_the_process_itself() -> None:
    with Workers(1) as workers:
        assert set(workers.map(process_of, range(2))) == {os.getpid()}
    with refused("option-value", "--workers 0"):
        Workers(0)


@dataclass(frozen=True)
class Letter:
    name: str
    size: int = 2


def stage(path: Path, source: str = "input", **settings: object) -> Stage:
    return Stage(path, "letters", 1, settings, source)


def write(unit: Letter, path: Path) -> Counts:
    if unit.name == "x":
        raise UsageError("option-value", "no x")
    path.write_text(unit.name)
    return Counts({"letters": 2}, {"letters": [unit.name]})


def make(folder: Stage, names: Sequence[str], workers: int = 1, calls: list[object] | None = None) -> Finished:
    with Workers(workers) as pool:
        seen = [] if calls is None else calls
        return folder.make(write, map(Letter, names), pool, lambda *call: seen.append(call), 2 * len(names), Counts())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_finished_stage_is_found_again_with_its_counts(tmp_path: Path, workers: int) -> None:
    assert stage(tmp_path).finished() is None
    calls: list[object] = []
    done = make(stage(tmp_path), "ba", workers, calls)
    assert calls[0] == ("letters", 0, 4) and calls[-1] == ("letters", 4, 4)
    assert done == stage(tmp_path).finished()
    assert [file.read_text() for file in done.files] == ["b", "a"]
    assert (done.counts.get("letters"), done.counts.names["letters"]) == (4, ["b", "a"])


def test_what_is_whole_is_kept_and_the_rest_made(tmp_path: Path) -> None:
    with refused("option-value", "no x"):
        make(stage(tmp_path), "abx")
    written = (tmp_path / "a").stat().st_mtime_ns
    (tmp_path / ".c.5v3hkxvo.tmp").write_text("half")  # of a run that was killed
    assert stage(tmp_path).finished() is None
    done = make(stage(tmp_path), "abc")
    assert (tmp_path / "a").stat().st_mtime_ns == written and not [*tmp_path.glob("*.tmp")]
    assert done.counts.get("letters") == 6
    (tmp_path / "b").unlink()
    assert stage(tmp_path).finished() is None and make(stage(tmp_path), "abc") == done


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "novels"
    generate_corpus(folder, 7, 60_000)
    return folder


Summary = dict[str, Any]


def config(text: Path, output: Path, **changes: object) -> PrepareConfig:
    values = {"input": text, "output": output, "seq_lens": (32,), "dupe_factor": 1, "shards": 3, "vocab_size": 800}
    return PrepareConfig(**{**values, **changes})  # type: ignore[arg-type]


def only(summary: Summary) -> Summary:
    (length,) = summary["lengths"]
    return length


def folder_of(summary: Summary) -> Path:
    return Path(only(summary)["folder"])


def everything(output: Path) -> dict[str, str]:
    """All files of all stages but for the memory of the inputs, with hashes of their bytes."""
    return {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in output.rglob("*")
        if path.is_file() and path.name not in (".lock", ".inputs.json")
    }


@pytest.fixture(scope="module")
def done(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return prepare(config(text, tmp_path_factory.mktemp("done")))


def test_shards_lie_where_users_and_scripts_expect_them(done: Summary) -> None:
    folder = folder_of(done)
    assert folder.name == "novels"
    assert folder.parent.name == (
        "hdf5_lower_case_1_seq_len_32_max_pred_5_masked_lm_prob_0.15_random_seed_12345_dupe_factor_1"
    )
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    shards = {*(f"novels_training_{i}.hdf5" for i in range(3)), "novels_test_0.hdf5"}
    assert names == {*shards, "vocab.txt", "metadata.json", "manifest.json"}
    sentences = folder.parent.parent / "sharded_training_shards_3_test_shards_1_fraction_0.1" / "novels"
    assert {path.stem for path in sentences.glob("*.txt")} == {Path(name).stem for name in shards}


def real_tokens(shard: Instances) -> int:
    return int(shard.input_mask.sum())


def test_the_summary_tells_what_is_in_the_folder(text: Path, done: Summary) -> None:
    length = only(done)
    info, test = (folder_info(Path(length["folder"]), split) for split in ("training", "test"))
    assert (info.samples, test.samples) == (length["training_instances"], length["test_instances"])
    assert (info.seq_len, info.max_predictions, info.vocab_size) == (32, 5, done["vocab_size"])
    assert max(info.counts) < 1.15 * min(info.counts)
    assert 0.05 < test.samples / (test.samples + info.samples) < 0.16
    shards = [read_shard(path) for path in (*info.paths, *test.paths)]
    assert len({shard.input_ids.tobytes() for shard in shards}) == 4
    assert length["padding_efficiency"] == pytest.approx(sum(map(real_tokens, shards)) / sum(map(len, shards)) / 32)
    vocabulary = load_vocabulary(Path(done["vocab_path"]), True)
    tokens = [tokenize(path, vocabulary).ids for path in Path(done["stages"][1]["folder"]).glob("*.txt")]
    found, unknown = done["stages"][-1]["counts"], vocabulary.ids["[UNK]"]
    assert found["tokens"] == sum(map(len, tokens)) and found["tokens in instances"] == sum(map(real_tokens, shards))
    assert found["unknown tokens"] == sum(int((ids == unknown).sum()) for ids in tokens)
    assert done["documents"] == len(list(text.iterdir())) and done["vocab_trained"]
    assert (length["shards"], length["shards_kept"]) == (4, 0)
    assert len(vocabulary.pieces) == done["vocab_size"] == 800


def test_another_length_keeps_what_is_made(text: Path, done: Summary, tmp_path: Path) -> None:
    output = shutil.copytree(folder_of(done).parent.parent, tmp_path / "out")
    before = everything(output)
    later = prepare(config(text, output, seq_lens=(32, 48)))
    lengths = [(length["seq_len"], length["max_predictions"], length["shards_kept"]) for length in later["lengths"]]
    assert lengths == [(32, 5, 4), (48, 7, 0)]
    assert [stage["kept"] for stage in later["stages"]] == [True, True, True, False]
    assert everything(output).items() >= before.items()


def test_other_settings_or_text_are_refused_and_everything_stays(text: Path, done: Summary, tmp_path: Path) -> None:
    mine = shutil.copytree(text, tmp_path / "novels")
    output = shutil.copytree(folder_of(done).parent.parent, tmp_path / "out")
    before = everything(output)
    with refused("folder-occupied", output, "seed 12345, now 1"):
        prepare(config(mine, output, seed=1))
    (mine / "generated-000000.txt").write_text("Something new happened. Nobody knew why.")
    with refused("folder-occupied", output / "sentences/novels", "input"):
        prepare(config(mine, output))
    shutil.copy(text / "generated-000000.txt", mine)
    assert prepare(config(mine, output))["stages"][-1]["kept"] and everything(output) == before


def test_a_given_vocabulary_is_used_and_copied_and_its_capitals_are_a_note(
    text: Path, done: Summary, tmp_path: Path
) -> None:
    before = load_vocabulary(Path(done["vocab_path"]), True).pieces
    pieces = [*reversed(before), *(f"Name{number}" for number in range(200))]
    (tmp_path / "mine.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    summary = prepare(config(text, tmp_path / "out", vocab=tmp_path / "mine.txt"))
    copied = folder_of(summary) / "vocab.txt"
    assert not summary["vocab_trained"] and copied.read_bytes() == (tmp_path / "mine.txt").read_bytes()
    first = read_shard(folder_info(copied.parent).paths[0])
    assert (first.input_ids[:, 0] == 800 - 1 - 2).all(), "[CLS] is looked up"
    assert any("200 pieces" in note for note in summary["notes"]) and not done["notes"]


INVALID: list[tuple[dict[str, object], Code, tuple[object, ...]]] = [
    ({"generate": 20_000}, "option-missing", ("--input", "--generate")),
    ({"shards": 0}, "option-value", ("--shards 0", 1)),
    ({"test_fraction": 1.0}, "option-value", ("--test-fraction 1.0",)),
    ({"dataset": "a/b"}, "option-value", ("--dataset 'a/b'",)),
    ({"seq_lens": (3,)}, "option-value", ("--seq-lens 3", 5)),
    ({"seq_lens": (32, 32)}, "option-value", ("--seq-lens 32 32",)),
    ({"max_predictions": (5, 6)}, "option-conflict", ("--max-predictions", 2, 1, "--seq-lens")),
]


@pytest.mark.parametrize(("changes", "code", "facts"), INVALID)
def test_unusable_options_are_refused(
    tmp_path: Path, changes: dict[str, object], code: Code, facts: tuple[object, ...]
) -> None:
    with refused(code, *facts):
        config(tmp_path, tmp_path, **changes)
