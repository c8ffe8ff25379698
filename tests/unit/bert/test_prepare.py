import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert.data.corpus import generate_corpus
from bert.data.formatted import Formatted, Span, assign
from bert.data.hdf5 import Hdf5Batches, find_shards, folder_info, read_shard
from bert.data.prepare import PrepareConfig, PrepareSummary, prepare
from bert.data.vocabulary import load_vocabulary
from bert.tasks.base import DataSpec
from common.errors import InputError, LockedError, StorageError, UsageError

ROOT = Path(__file__).resolve().parents[3]
BOOKS = ROOT / "../shared/data/pretrain/books"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "novels"
    generate_corpus(folder, 7, 60_000)
    return folder


def config(text: Path, output: Path, **changes: object) -> PrepareConfig:
    values = {
        "input": text,
        "output": output,
        "seq_len": 32,
        "dupe_factor": 1,
        "shards": 3,
        "vocab_size": 800,
        **changes,
    }
    return PrepareConfig(**values)  # type: ignore[arg-type]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.hdf5")}


@pytest.fixture(scope="module")
def done(text: Path, tmp_path_factory: pytest.TempPathFactory) -> PrepareSummary:
    return prepare(config(text, tmp_path_factory.mktemp("done")))


def test_shards_lie_where_users_and_scripts_expect_them(done: PrepareSummary) -> None:
    assert done.folder.name == "novels"
    assert done.folder.parent.name == (
        "hdf5_lower_case_1_seq_len_32_max_pred_5_masked_lm_prob_0.15_random_seed_12345_dupe_factor_1"
    )
    names = {path.name for path in done.folder.iterdir()}
    shards = {*(f"novels_training_{i}.hdf5" for i in range(3)), "novels_test_0.hdf5"}
    assert names == {*shards, "vocab.txt", "metadata.json"}


def test_the_summary_tells_what_is_in_the_folder(text: Path, done: PrepareSummary) -> None:
    info, test = folder_info(done.folder), folder_info(done.folder, "test")
    assert (info.samples, test.samples) == (done.training_instances, done.test_instances)
    assert (info.seq_len, info.max_predictions, info.vocab_size) == (32, 5, done.vocab_size)
    masks = [read_shard(path).input_mask for path in (*info.paths, *test.paths)]
    assert done.padding_efficiency == pytest.approx(np.concatenate(masks).mean())
    assert done.padding_efficiency > 0.85
    assert (
        done.documents == len(list(text.iterdir()))
        and done.shards == 4
        and done.shards_kept == 0
        and done.vocab_trained
    )
    assert len(load_vocabulary(done.vocab_path, True).pieces) == done.vocab_size == 800
    assert json.loads(json.dumps(done.to_json()))["folder"] == str(done.folder)


def test_shards_are_balanced_and_the_test_share_is_as_asked(done: PrepareSummary) -> None:
    sizes = folder_info(done.folder).samples_per_shard
    assert max(sizes) < 1.15 * min(sizes)
    assert 0.05 < done.test_instances / (done.test_instances + done.training_instances) < 0.16


def test_a_loader_reads_what_was_prepared(done: PrepareSummary) -> None:
    spec = DataSpec(source=str(done.folder), seq_len=32, micro_batch_size=8, vocab_size=done.vocab_size)
    vocabulary = load_vocabulary(done.vocab_path, True)
    batch = next(iter(Hdf5Batches(spec)))
    assert (batch.tensors["input_ids"][:, 0] == vocabulary.cls_id).all()
    assert vocabulary.mask_id in batch.tensors["input_ids"]


def test_the_number_of_processes_does_not_change_a_byte(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    again = prepare(config(text, tmp_path, workers=2))
    assert digests(again.folder) == digests(done.folder)
    assert again.vocab_path.read_bytes() == done.vocab_path.read_bytes()
    other = prepare(config(text, tmp_path, seed=1))
    assert not set(digests(other.folder).values()) & set(digests(done.folder).values())


def test_finished_shards_are_kept_and_damaged_or_missing_ones_made_again(text: Path, tmp_path: Path) -> None:
    first = prepare(config(text, tmp_path))
    before = digests(first.folder)
    kept, cut, gone = (first.folder / f"novels_training_{i}.hdf5" for i in range(3))
    written = kept.stat().st_mtime_ns
    cut.write_bytes(cut.read_bytes()[:5000])
    gone.unlink()
    stages: list[tuple[str, int, int]] = []
    second = prepare(config(text, tmp_path), lambda *call: stages.append(call))
    assert second.shards_kept == 2 and digests(second.folder) == before
    assert kept.stat().st_mtime_ns == written
    assert ("making shards", 4, 4) in stages and "training the vocabulary" not in {stage for stage, *_ in stages}
    assert any("1 shard(s)" in note and "replaced" in note for note in second.notes)
    assert second.vocab_trained and second.vocab_size == first.vocab_size


@pytest.mark.parametrize("change", ["shards", "text", "vocab_size"])
def test_shards_of_other_settings_or_text_never_stay(
    text: Path, done: PrepareSummary, tmp_path: Path, change: str
) -> None:
    mine = tmp_path / "novels"
    mine.mkdir()
    for path in text.iterdir():
        (mine / path.name).write_bytes(path.read_bytes())
    # With a given vocabulary nothing but the text differs.
    given: dict[str, object] = {} if change == "vocab_size" else {"vocab": done.vocab_path}
    first = prepare(config(mine, tmp_path / "out", **given))
    before = digests(first.folder)
    changes: dict[str, object] = {"shards": {"shards": 2}, "vocab_size": {"vocab_size": 500}}.get(change, {})
    if change == "text":
        (mine / "generated-000000.txt").write_text("Something new happened. Nobody knew why.")
    second = prepare(config(mine, tmp_path / "out", **given, **changes))
    assert second.folder == first.folder and second.shards_kept == 0
    assert not set(before.values()) & set(digests(second.folder).values())
    assert len(find_shards(second.folder)) == (2 if change == "shards" else 3)


def test_a_given_vocabulary_is_used_and_copied(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    pieces = load_vocabulary(done.vocab_path, True).pieces
    (tmp_path / "mine.txt").write_text("".join(f"{piece}\n" for piece in reversed(pieces)))
    summary = prepare(config(text, tmp_path / "out", vocab=tmp_path / "mine.txt"))
    assert not summary.vocab_trained and summary.vocab_path.read_bytes() == (tmp_path / "mine.txt").read_bytes()
    first = read_shard(find_shards(summary.folder)[0])
    assert (first.input_ids[:, 0] == 800 - 1 - 2).all(), "[CLS] is looked up"


def test_generated_text_needs_no_input(tmp_path: Path) -> None:
    values = {"output": tmp_path, "generate": 20_000, "seq_len": 16, "dupe_factor": 1, "vocab_size": 400}
    summary = prepare(PrepareConfig(**values))  # type: ignore[arg-type]
    assert (tmp_path / "text" / "generated-000000.txt").exists() and summary.folder.name == "generated"
    assert prepare(PrepareConfig(**values)).shards_kept == summary.shards == 5  # type: ignore[arg-type]


def test_fewer_documents_than_shards_are_refused_with_what_fits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text("A sentence. Another one. " * 30)
    with pytest.raises(UsageError, match=r"4 document\(s\) cannot fill 9 shards.*--shards 3"):
        prepare(config(tmp_path / "in", tmp_path / "out", shards=8))
    summary = prepare(config(tmp_path / "in", tmp_path / "out", shards=3, vocab_size=64))
    assert summary.shards == 4 and any("one document only" in note for note in summary.notes)
    with pytest.raises(UsageError, match="--shards 1 --test-fraction 0"):
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "a.txt").write_text("One sentence.")
        prepare(config(tmp_path / "one", tmp_path / "out", shards=1))


def test_unusable_input_and_options_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--input FOLDER"):
        PrepareConfig(output=tmp_path)
    with pytest.raises(UsageError, match="--input FOLDER"):
        PrepareConfig(output=tmp_path, input=tmp_path, generate=20_000)
    for changes in ({"shards": 0}, {"workers": 0}, {"test_fraction": 1.0}, {"dataset": "a/b"}, {"seq_len": 3}):
        with pytest.raises(UsageError):
            config(text, tmp_path, **changes)
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "a.txt").write_text("\n\n")
    with pytest.raises(InputError, match="no sentence"):
        prepare(config(tmp_path / "blank", tmp_path / "out"))
    assert PrepareConfig(output=tmp_path, input=text, seq_len=512).predictions == 80


def test_the_output_may_lie_in_the_text_folder(tmp_path: Path) -> None:
    generate_corpus(tmp_path, 7, 12_000)
    first = prepare(config(tmp_path, tmp_path, vocab_size=400))
    second = prepare(config(tmp_path, tmp_path, vocab_size=400))
    assert (second.documents, second.shards_kept) == (first.documents, 4)


def test_documents_go_to_the_least_filled_shard(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spans = tuple(Span(0, 0, int(count)) for count in rng.integers(1, 400, 300))
    texts = assign(Formatted(tmp_path, spans, ""), 7, 2, 0.2, 1, tmp_path)
    used = [number for shard in texts for number in shard.documents]
    assert sorted(used) == list(range(300)), "every document once"
    loads = {
        split: [sum(spans[number].sentences for number in shard.documents) for shard in texts if shard.split == split]
        for split in ("training", "test")
    }
    assert len(loads["training"]) == 7 and len(loads["test"]) == 2
    assert all(max(found) - min(found) < 20 for found in loads.values())
    assert sum(loads["test"]) / sum(map(sum, loads.values())) == pytest.approx(0.2, abs=0.01)


PROGRAM = (
    "import sys; from pathlib import Path; from bert.data.prepare import PrepareConfig, prepare\n"
    "if __name__ == '__main__':\n"
    "    prepare(PrepareConfig(input=Path(sys.argv[1]), output=Path(sys.argv[2]), seq_len=32, dupe_factor=40,"
    " shards=6, vocab_size=800, workers=2))\n"
)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


def alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_kill_9_in_the_middle_leaves_no_process_and_a_rerun_continues(text: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [sys.executable, str(tmp_path / "program.py"), str(text), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, env=environment)
    wait_for(lambda: len(list(tmp_path.rglob("novels_training_*.hdf5"))) >= 2)
    workers = children(process)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert len(workers) >= 2
    wait_for(lambda: not any(map(alive, workers)))
    finished = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("novels_*.hdf5")}
    assert 2 <= len(finished) < 7, "it was stopped in the middle"
    (folder,) = {path.parent for path in tmp_path.rglob("novels_*.hdf5")}
    with pytest.raises(InputError, match="unfinished"):
        folder_info(folder)
    subprocess.run(argv, env=environment, check=True, timeout=120)
    assert folder_info(folder).samples > 0 and len(find_shards(folder)) == 6
    assert all((folder / name).stat().st_mtime_ns == when for name, when in finished.items())
    assert not (folder / ".work").exists() and not list(folder.glob(".*.tmp"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_named_and_a_rerun_continues(text: Path, tmp_path: Path, workers: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        with pytest.raises(StorageError, match="disk is full"):
            prepare(config(text, tmp_path, dupe_factor=30, workers=workers))
        assert not list(tmp_path.rglob("*.tmp")), "no half-written file takes the space"
        subprocess.run(["mount", "-o", "remount,size=4m", str(tmp_path)], check=True)
        assert prepare(config(text, tmp_path, dupe_factor=30)).shards == 4
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.skipif(not BOOKS.exists(), reason="the books are not beside this checkout (shared/data/pretrain/books)")
def test_real_books_are_prepared_in_seconds(tmp_path: Path) -> None:
    began = time.process_time()
    summary = prepare(PrepareConfig(input=BOOKS, output=tmp_path, dupe_factor=1))
    assert time.process_time() - began < 20, "half of it is training the vocabulary"
    assert any("latin-1: 1661-8.txt" in note for note in summary.notes)
    assert summary.documents > 40 and summary.sentences > 15_000 and summary.training_instances > 3000
    assert summary.padding_efficiency > 0.9
    shards = [read_shard(path) for path in find_shards(tmp_path)]
    labels = np.concatenate([shard.next_sentence_labels for shard in shards])
    assert 0.48 < labels.mean() < 0.62
    vocabulary = load_vocabulary(summary.vocab_path, True)
    shown = {vocabulary.pieces[piece] for shard in shards for piece in np.unique(shard.input_ids)}
    assert {"holmes", "alice", "monster"} <= shown
    assert "copyright" not in shown, "the licence is left out"


def test_two_preparations_into_one_folder_do_not_mix(text: Path, tmp_path: Path) -> None:
    def second(stage: str, done: int, total: int) -> None:
        for changes in ({}, {"seq_len": 64}):
            with pytest.raises(LockedError, match=rf"{tmp_path} is in use by .*process {os.getpid()}\): wait"):
                prepare(config(text, tmp_path, **changes))
        refused.append(stage)

    refused: list[str] = []
    first = prepare(config(text, tmp_path), second)
    assert refused and first.shards_kept == 0
    assert prepare(config(text, tmp_path)).shards_kept == first.shards
