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
from support.refusals import refused

from bert.corpus.generated import generate_corpus
from bert.data.vocabulary import load_vocabulary
from bert.tasks.base import DataSpec
from bert.tasks.pretrain.batches import Hdf5Batches
from bert.tasks.pretrain.config import PrepareConfig
from bert.tasks.pretrain.prepare import LengthSummary, PrepareSummary, prepare
from bert.tasks.pretrain.shards import find_shards, folder_info, read_shard
from common.errors import Code

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "novels"
    generate_corpus(folder, 7, 60_000)
    return folder


def config(text: Path, output: Path, **changes: object) -> PrepareConfig:
    values = {
        "input": text,
        "output": output,
        "seq_lens": (32,),
        "dupe_factor": 1,
        "shards": 3,
        "vocab_size": 800,
        **changes,
    }
    return PrepareConfig(**values)  # type: ignore[arg-type]


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


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.hdf5")}


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
    masks = [read_shard(path).input_mask for path in (*info.paths, *test.paths)]
    assert length.padding_efficiency == pytest.approx(np.concatenate(masks).mean())
    assert length.padding_efficiency > 0.85
    assert done.documents == len(list(text.iterdir())) and done.vocab_trained
    assert (length.shards, length.shards_kept) == (4, 0)
    assert [stage.stage for stage in done.stages] == ["sentences", "shard", "hdf5"]
    assert len(load_vocabulary(done.vocab_path, True).pieces) == done.vocab_size == 800
    assert json.loads(json.dumps(done.to_json()))["lengths"][0]["folder"] == str(length.folder)


def test_shards_are_balanced_and_the_test_share_is_as_asked(done: PrepareSummary) -> None:
    length = only(done)
    sizes = folder_info(length.folder).counts
    assert max(sizes) < 1.15 * min(sizes)
    assert 0.05 < length.test_instances / (length.test_instances + length.training_instances) < 0.16


def test_a_loader_reads_what_was_prepared(done: PrepareSummary) -> None:
    folder = only(done).folder
    spec = DataSpec(data=str(folder), seq_len=32, micro_batch_size=8, vocab_size=done.vocab_size)
    vocabulary = load_vocabulary(folder / "vocab.txt", True)
    batch = next(iter(Hdf5Batches(spec)))
    assert (batch.tensors["input_ids"][:, 0] == vocabulary.cls_id).all()
    assert vocabulary.mask_id in batch.tensors["input_ids"]


def test_the_number_of_processes_does_not_change_a_byte(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    again = prepare(config(text, tmp_path, workers=2))
    assert everything(tmp_path) == everything(only(done).folder.parent.parent)
    assert only(again).padding_efficiency == only(done).padding_efficiency


def test_both_phases_are_made_by_one_call(text: Path, tmp_path: Path) -> None:
    first = prepare(config(text, tmp_path, seq_lens=(32, 64)))
    assert [(length.seq_len, length.max_predictions) for length in first.lengths] == [(32, 5), (64, 10)]
    assert [stage.stage for stage in first.stages] == ["sentences", "shard", "hdf5", "hdf5"]
    later = prepare(config(text, tmp_path, seq_lens=(48,)))
    assert {stage.stage: stage.kept for stage in later.stages} == {"sentences": True, "shard": True, "hdf5": False}
    assert all(length.folder.is_dir() for length in first.lengths), "the other lengths stay"


def test_finished_shards_are_kept_and_missing_ones_made_again(text: Path, tmp_path: Path) -> None:
    folder = only(prepare(config(text, tmp_path))).folder
    before = everything(tmp_path)
    kept, gone = (folder / f"novels_training_{i}.hdf5" for i in range(2))
    written = kept.stat().st_mtime_ns
    gone.unlink()
    stages: list[tuple[str, int, int | None]] = []
    second = prepare(config(text, tmp_path), lambda *call: stages.append(call))
    assert only(second).shards_kept == 3 and everything(tmp_path) == before
    assert kept.stat().st_mtime_ns == written
    assert {stage for stage, *_ in stages} == {"hdf5"}


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


def test_what_a_killed_call_left_is_removed_by_the_next_one(text: Path, tmp_path: Path) -> None:
    prepare(config(text, tmp_path))
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "..inputs.json.5v3hkxvo.tmp").write_bytes(b"x")
    prepare(config(text, tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_given_vocabulary_is_used_and_copied(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    pieces = load_vocabulary(done.vocab_path, True).pieces
    (tmp_path / "mine.txt").write_text("".join(f"{piece}\n" for piece in reversed(pieces)))
    summary = prepare(config(text, tmp_path / "out", vocab=tmp_path / "mine.txt"))
    copied = only(summary).folder / "vocab.txt"
    assert not summary.vocab_trained and copied.read_bytes() == (tmp_path / "mine.txt").read_bytes()
    first = read_shard(find_shards(copied.parent)[0])
    assert (first.input_ids[:, 0] == 800 - 1 - 2).all(), "[CLS] is looked up"


def test_generated_text_needs_no_input(tmp_path: Path) -> None:
    values = {"output": tmp_path, "generate": 20_000, "seq_lens": (16,), "dupe_factor": 1, "vocab_size": 400}
    length = only(prepare(PrepareConfig(**values)))  # type: ignore[arg-type]
    assert (tmp_path / "text" / "generated-000000.txt").exists() and length.folder.name == "generated"
    assert only(prepare(PrepareConfig(**values))).shards_kept == length.shards == 5  # type: ignore[arg-type]


def test_fewer_documents_than_shards_are_refused_with_what_fits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text("A sentence. Another one. " * 30)
    began = time.monotonic()
    for shards in (8, 99_999_999):
        with refused("data-too-small", "4 document", "--shards "):
            prepare(config(tmp_path / "in", tmp_path / "out", shards=shards))
    assert time.monotonic() - began < 20
    summary = prepare(config(tmp_path / "in", tmp_path / "out", shards=3, vocab_size=64))
    assert only(summary).shards == 4 and any("single document" in note for note in summary.notes)


def test_unusable_input_and_options_are_refused(text: Path, tmp_path: Path) -> None:
    for given in ({}, {"input": tmp_path, "generate": 20_000}):
        with refused("option-missing", "--input", "--generate"):
            PrepareConfig(output=tmp_path, **given)  # type: ignore[arg-type]
    cases: list[tuple[dict[str, object], Code, tuple[object, ...]]] = [
        ({"shards": 0}, "option-value", ("--shards 0", 1)),
        ({"workers": 0}, "option-value", ("--workers 0", 1)),
        *(({"test_fraction": share}, "option-value", (f"--test-fraction {share}",)) for share in (1.0, float("nan"))),
        *(({"dataset": name}, "option-value", (f"--dataset {name!r}",)) for name in ("a/b", "..")),
        ({"seq_lens": (3,)}, "option-value", ("--seq-len 3", 5)),
        ({"seq_lens": ()}, "option-value", ("--seq-lens",)),
        ({"seq_lens": (32, 32)}, "option-value", ("--seq-lens 32 32",)),
        ({"max_predictions": (5, 6)}, "option-conflict", ("--max-predictions", 2, 1, "--seq-lens")),
    ]
    for changes, code, facts in cases:
        with refused(code, *facts):
            config(text, tmp_path, **changes)
    assert PrepareConfig(output=tmp_path, input=text).instances(512).max_predictions == 80


def test_the_output_may_lie_in_the_text_folder(tmp_path: Path) -> None:
    generate_corpus(tmp_path, 7, 12_000)
    first = prepare(config(tmp_path, tmp_path, vocab_size=400))
    second = prepare(config(tmp_path, tmp_path, vocab_size=400))
    assert (second.documents, only(second).shards_kept) == (first.documents, 4)


def test_text_in_a_stages_own_folder_is_refused_and_left_alone(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sentences" / "novels"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("A book. It is mine. " * 50)
    for given in (folder, text):
        with refused("folder-occupied", folder, "mine.txt"):
            prepare(config(given, tmp_path))
    assert (folder / "mine.txt").exists()


def test_a_vocabulary_with_capitals_for_lower_cased_text_is_a_note(
    text: Path, done: PrepareSummary, tmp_path: Path
) -> None:
    pieces = [*load_vocabulary(done.vocab_path, True).pieces, *(f"Name{number}" for number in range(200))]
    (tmp_path / "cased.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    summary = prepare(config(text, tmp_path / "out", vocab=tmp_path / "cased.txt"))
    assert any("200 pieces of the vocabulary contain capitals" in note for note in summary.notes)
    assert not any("capitals" in note for note in done.notes)


PROGRAM = (
    "import sys; from pathlib import Path; from bert.tasks.pretrain.prepare import prepare\n"
    "from bert.tasks.pretrain.config import PrepareConfig\n"
    "if __name__ == '__main__':\n"
    "    prepare(PrepareConfig(input=Path(sys.argv[1]), output=Path(sys.argv[2]), seq_lens=(32,), dupe_factor=40,"
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
    with refused("data-unprepared", folder):
        folder_info(folder)
    subprocess.run(argv, env=environment, check=True, timeout=120)
    assert folder_info(folder).samples > 0 and len(find_shards(folder)) == 6
    assert all((folder / name).stat().st_mtime_ns == when for name, when in finished.items())
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(("workers", "size"), [(1, "60k"), (1, "150k"), (1, "400k"), (2, "550k")])
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


def test_two_preparations_into_one_folder_do_not_mix(text: Path, tmp_path: Path) -> None:
    def second(stage: str, done: int, total: int | None) -> None:
        for changes in ({}, {"seq_lens": (64,)}):
            with refused("folder-locked", tmp_path, "another preparation"):
                prepare(config(text, tmp_path, **changes))
        met.append(stage)

    met: list[str] = []
    first = only(prepare(config(text, tmp_path), second))
    assert met and first.shards_kept == 0
    assert only(prepare(config(text, tmp_path))).shards_kept == first.shards
