"""The pipeline from text to shards: what it writes where, what it keeps, and calls that end in the middle."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.refusals import refused

from bert.corpus.texts import generate_corpus
from bert.data.vocabulary import load_vocabulary
from bert.tasks.pretrain.config import PrepareConfig
from bert.tasks.pretrain.prepare import LengthSummary, PrepareSummary, prepare
from bert.tasks.pretrain.shards import folder_info, read_shard
from common.errors import Code

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "novels"
    generate_corpus(folder, 7, 60_000)
    return folder


def config(text: Path, output: Path, **changes: object) -> PrepareConfig:
    values = {"input": text, "output": output, "seq_lens": (32,), "dupe_factor": 1, "shards": 3, "vocab_size": 800}
    return PrepareConfig(**{**values, **changes})  # type: ignore[arg-type]


def only(summary: PrepareSummary) -> LengthSummary:
    (length,) = summary.lengths
    return length


def everything(output: Path) -> dict[str, str]:
    """All files of all stages but for the memory of the inputs, with hashes of their bytes."""
    return {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in output.rglob("*")
        if path.is_file() and path.name not in (".lock", ".inputs.json")
    }


@pytest.fixture(scope="module")
def done(text: Path, tmp_path_factory: pytest.TempPathFactory) -> PrepareSummary:
    return prepare(config(text, tmp_path_factory.mktemp("done")))


def test_shards_lie_where_users_and_scripts_expect_them(done: PrepareSummary) -> None:
    folder = only(done).folder
    assert folder.name == "novels"
    assert folder.parent.name == (
        "hdf5_lower_case_1_seq_len_32_max_pred_5_masked_lm_prob_0.15_random_seed_12345_dupe_factor_1"
    )
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    shards = {*(f"novels_training_{i}.hdf5" for i in range(3)), "novels_test_0.hdf5"}
    assert names == {*shards, "vocab.txt", "metadata.json", "manifest.json"}
    sentences = folder.parent.parent / "sharded_training_shards_3_test_shards_1_fraction_0.1" / "novels"
    assert {path.stem for path in sentences.glob("*.txt")} == {Path(name).stem for name in shards}


def test_the_summary_tells_what_is_in_the_folder(text: Path, done: PrepareSummary) -> None:
    length = only(done)
    info, test = folder_info(length.folder), folder_info(length.folder, "test")
    assert (info.samples, test.samples) == (length.training_instances, length.test_instances)
    assert (info.seq_len, info.max_predictions, info.vocab_size) == (32, 5, done.vocab_size)
    assert max(info.counts) < 1.15 * min(info.counts)
    assert 0.05 < test.samples / (test.samples + info.samples) < 0.16
    masks = [read_shard(path).input_mask for path in (*info.paths, *test.paths)]
    assert length.padding_efficiency == pytest.approx(np.concatenate(masks).mean())
    assert done.documents == len(list(text.iterdir())) and done.vocab_trained
    assert (length.shards, length.shards_kept) == (4, 0)
    assert len(load_vocabulary(done.vocab_path, True).pieces) == done.vocab_size == 800


def test_the_number_of_processes_does_not_change_a_byte(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    prepare(config(text, tmp_path, workers=2))
    assert everything(tmp_path) == everything(only(done).folder.parent.parent)


def test_both_phases_are_made_by_one_call(text: Path, tmp_path: Path) -> None:
    first = prepare(config(text, tmp_path, seq_lens=(32, 64)))
    assert [(length.seq_len, length.max_predictions) for length in first.lengths] == [(32, 5), (64, 10)]
    later = prepare(config(text, tmp_path, seq_lens=(48,)))
    assert {stage.stage: stage.kept for stage in later.stages} == {"sentences": True, "shard": True, "hdf5": False}
    assert all(length.folder.is_dir() for length in first.lengths), "the other lengths stay"


def test_other_settings_or_text_are_refused_and_everything_stays(text: Path, tmp_path: Path) -> None:
    mine = tmp_path / "novels"
    mine.mkdir()
    for path in text.iterdir():
        (mine / path.name).write_bytes(path.read_bytes())
    prepare(config(mine, tmp_path / "out"))
    before = everything(tmp_path)
    with refused("folder-occupied", tmp_path / "out", "seed 12345, now 1"):
        prepare(config(mine, tmp_path / "out", seed=1))
    (mine / "generated-000000.txt").write_text("Something new happened. Nobody knew why.")
    with refused("folder-occupied", tmp_path / "out/sentences/novels", "input"):
        prepare(config(mine, tmp_path / "out"))
    (mine / "generated-000000.txt").write_bytes((text / "generated-000000.txt").read_bytes())
    assert everything(tmp_path) == before and prepare(config(mine, tmp_path / "out")).stages[-1].kept


def test_a_given_vocabulary_is_used_and_copied_and_its_capitals_are_a_note(
    text: Path, done: PrepareSummary, tmp_path: Path
) -> None:
    pieces = [*reversed(load_vocabulary(done.vocab_path, True).pieces), *(f"Name{number}" for number in range(200))]
    (tmp_path / "mine.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    summary = prepare(config(text, tmp_path / "out", vocab=tmp_path / "mine.txt"))
    copied = only(summary).folder / "vocab.txt"
    assert not summary.vocab_trained and copied.read_bytes() == (tmp_path / "mine.txt").read_bytes()
    first = read_shard(folder_info(copied.parent).paths[0])
    assert (first.input_ids[:, 0] == 800 - 1 - 2).all(), "[CLS] is looked up"
    assert any("200 pieces" in note for note in summary.notes) and not done.notes


def test_fewer_documents_than_shards_are_refused_with_what_fits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text("A sentence. Another one. " * 30)
    for shards in (8, 99_999_999):
        with refused("data-too-small", "4 document", "--shards "):
            prepare(config(tmp_path / "in", tmp_path / "out", shards=shards))
    summary = prepare(config(tmp_path / "in", tmp_path / "out", shards=3, vocab_size=64))
    assert only(summary).shards == 4 and any("single document" in note for note in summary.notes)


INVALID: list[tuple[dict[str, object], Code, tuple[object, ...]]] = [
    ({"generate": 20_000}, "option-missing", ("--input", "--generate")),
    ({"shards": 0}, "option-value", ("--shards 0", 1)),
    ({"test_fraction": 1.0}, "option-value", ("--test-fraction 1.0",)),
    ({"test_fraction": float("nan")}, "option-value", ("--test-fraction nan",)),
    ({"dataset": "a/b"}, "option-value", ("--dataset 'a/b'",)),
    ({"dataset": ".."}, "option-value", ("--dataset '..'",)),
    ({"seq_lens": (3,)}, "option-value", ("--seq-lens 3", 5)),
    ({"seq_lens": ()}, "option-value", ("--seq-lens",)),
    ({"seq_lens": (32, 32)}, "option-value", ("--seq-lens 32 32",)),
    ({"max_predictions": (5, 6)}, "option-conflict", ("--max-predictions", 2, 1, "--seq-lens")),
]


@pytest.mark.parametrize(("changes", "code", "facts"), INVALID)
def test_unusable_options_are_refused(
    tmp_path: Path, changes: dict[str, object], code: Code, facts: tuple[object, ...]
) -> None:
    with refused(code, *facts):
        config(tmp_path, tmp_path, **changes)


def test_two_preparations_into_one_folder_do_not_mix(text: Path, tmp_path: Path) -> None:
    met: list[str] = []

    def second(stage: str, done: int, total: int | None) -> None:
        with refused("folder-locked", tmp_path, "another preparation"):
            prepare(config(text, tmp_path, seq_lens=(64,)))
        met.append(stage)

    prepare(config(text, tmp_path), second)
    assert met


LARGE = {"dupe_factor": 40, "shards": 6}


@pytest.fixture(scope="module")
def undisturbed(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("undisturbed")
    prepare(config(text, output, **LARGE))
    return everything(output)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_call_that_is_ended_leaves_no_process_and_a_rerun_continues(
    text: Path, tmp_path: Path, undisturbed: dict[str, str], number: signal.Signals
) -> None:
    options = ["--seq-lens", "32", "--dupe-factor", "40", "--shards", "6", "--vocab-size", "800", "--workers", "2"]
    argv = [sys.executable, "-m", "bench.cli.main", "data", "pretrain", "--input", str(text), *options]
    argv += ["--output", str(tmp_path)]
    process = subprocess.Popen(argv, cwd=ROOT)
    wait_for(lambda: len(list(tmp_path.rglob("novels_training_*.hdf5"))) >= 2 and list(tmp_path.rglob("*.hdf5.*.tmp")))
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.wait(30)
    wait_for(lambda: not any(map(alive, workers)))
    assert len(workers) >= 2 and (number == signal.SIGKILL or not list(tmp_path.rglob(".*.tmp")))
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("novels_*.hdf5")}
    assert 2 <= len(finished) < 7, "it was stopped in the middle"
    (folder,) = {path.parent for path in finished}
    with refused("data-unprepared", folder):
        folder_info(folder)
    prepare(config(text, tmp_path, **LARGE))
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    assert everything(tmp_path) == undisturbed


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(("workers", "size"), [(1, "60k"), (1, "400k"), (2, "550k")])
def test_a_full_disk_is_named_and_a_rerun_continues(text: Path, tmp_path: Path, workers: int, size: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        with refused("disk-full", tmp_path):
            prepare(config(text, tmp_path, dupe_factor=30, workers=workers))
        assert not list(tmp_path.rglob("*.tmp")), "no half-written file takes the space"
        subprocess.run(["mount", "-o", "remount,size=4m", str(tmp_path)], check=True)
        assert only(prepare(config(text, tmp_path, dupe_factor=30))).shards == 4
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
