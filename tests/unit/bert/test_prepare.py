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
from bert.tasks.pretrain.config import STAGES, PrepareConfig
from bert.tasks.pretrain.folder import find_shards, folder_info
from bert.tasks.pretrain.prepare import prepare
from bert.tasks.pretrain.shards import read_shard
from bert.tasks.pretrain.summary import LengthSummary, PrepareSummary
from common.errors import Code, UsageError

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
    assert length.padding_efficiency is not None and length.padding_efficiency > 0.85
    assert done.documents == len(list(text.iterdir())) and done.vocab_trained
    assert (length.shards, length.shards_kept) == (4, 0)
    assert [stage.stage for stage in done.stages] == ["clean", "sentences", "shard", "tokens", "hdf5"]
    assert done.vocab_path is not None and len(load_vocabulary(done.vocab_path, True).pieces) == done.vocab_size == 800
    assert json.loads(json.dumps(done.to_json()))["lengths"][0]["folder"] == str(length.folder)


def test_shards_are_balanced_and_the_test_share_is_as_asked(done: PrepareSummary) -> None:
    length = only(done)
    sizes = [sum(bins) for bins in folder_info(length.folder).counts]
    assert max(sizes) < 1.15 * min(sizes)
    assert 0.05 < length.test_instances / (length.test_instances + length.training_instances) < 0.16


def test_a_loader_reads_what_was_prepared(done: PrepareSummary) -> None:
    folder = only(done).folder
    spec = DataSpec(data=str(folder), seq_len=32, micro_batch_size=8, vocab_size=done.vocab_size or 0)
    vocabulary = load_vocabulary(folder / "vocab.txt", True)
    batch = next(iter(Hdf5Batches(spec)))
    assert (batch.tensors["input_ids"][:, 0] == vocabulary.cls_id).all()
    assert vocabulary.mask_id in batch.tensors["input_ids"]


def test_the_number_of_processes_does_not_change_a_byte(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    again = prepare(config(text, tmp_path, workers=2))
    assert everything(tmp_path) == everything(only(done).folder.parent.parent)
    other = prepare(config(text, tmp_path, seed=1))
    assert not set(digests(only(other).folder).values()) & set(digests(only(again).folder).values())


def test_stages_run_one_by_one_and_in_parts_give_the_same_bytes(
    text: Path, done: PrepareSummary, tmp_path: Path
) -> None:
    for stage in ("clean", "sentences", "hdf5"):
        for number in range(2):
            summary = prepare(config(text, tmp_path, stages=(stage,), part=f"{number}/2"))
            # This little text is one file up to the shards: the first part makes it.
            assert summary.stages[-1].complete == (number == 1 or stage != "hdf5")
        if stage == "sentences":
            prepare(config(text, tmp_path, stages=("shard",)))
    assert everything(tmp_path) == everything(only(done).folder.parent.parent)


def test_a_stage_without_input_of_its_kind_says_which_to_run(text: Path, tmp_path: Path) -> None:
    summary = prepare(config(text, tmp_path / "a", stages=("extract",), part="0/4"))
    assert not summary.stages and len(summary.notes) == 1 and "--stages clean" in summary.notes[0]
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    (dumps / "wiki.xml").write_text("<mediawiki></mediawiki>\n", encoding="utf-8")
    summary = prepare(config(dumps, tmp_path / "b", stages=("clean",), part="0/4"))
    assert not summary.stages and len(summary.notes) == 1 and "--stages extract" in summary.notes[0]


def test_a_stage_without_the_one_before_says_which_to_run(text: Path, tmp_path: Path) -> None:
    for stage, before in (("sentences", "extract"), ("shard", "sentences"), ("hdf5", "shard")):
        with refused("data-unprepared", tmp_path, f"--stages {before}"):
            prepare(config(text, tmp_path, stages=(stage,)))


def test_both_phases_tokenise_once(text: Path, tmp_path: Path) -> None:
    first = prepare(config(text, tmp_path, seq_lens=(32, 64)))
    assert [(length.seq_len, length.max_predictions) for length in first.lengths] == [(32, 5), (64, 10)]
    assert [stage.stage for stage in first.stages].count("tokens") == 1
    later = prepare(config(text, tmp_path, seq_lens=(48,)))
    kept = {stage.stage: stage.kept for stage in later.stages}
    assert kept == {"clean": True, "sentences": True, "shard": True, "tokens": True, "hdf5": False}
    assert all(length.folder.is_dir() for length in first.lengths), "the other lengths stay"


def test_finished_shards_are_kept_and_damaged_or_missing_ones_made_again(text: Path, tmp_path: Path) -> None:
    folder = only(prepare(config(text, tmp_path))).folder
    before = everything(tmp_path)
    kept, cut, gone = (folder / f"novels_training_{i}.hdf5" for i in range(3))
    written = kept.stat().st_mtime_ns
    cut.write_bytes(cut.read_bytes()[:5000])
    gone.unlink()
    stages: list[tuple[str, int, int | None]] = []
    second = prepare(config(text, tmp_path), lambda *call: stages.append(call))
    assert only(second).shards_kept == 2 and everything(tmp_path) == before
    assert kept.stat().st_mtime_ns == written
    assert "training the vocabulary" not in {stage for stage, *_ in stages}


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
    first = only(prepare(config(mine, tmp_path / "out", **given)))
    before = digests(first.folder)
    changes: dict[str, object] = {"shards": {"shards": 2}, "vocab_size": {"vocab_size": 500}}.get(change, {})
    if change == "text":
        (mine / "generated-000000.txt").write_text("Something new happened. Nobody knew why.")
    summary = prepare(config(mine, tmp_path / "out", **given, **changes))
    second = only(summary)
    assert second.folder == first.folder and second.shards_kept == 0
    assert not set(before.values()) & set(digests(second.folder).values())
    assert len(find_shards(second.folder)) == (2 if change == "shards" else 3)
    assert any("replaced" in note for note in summary.notes)


def test_what_a_killed_call_left_is_removed_by_the_next_one(text: Path, tmp_path: Path) -> None:
    prepare(config(text, tmp_path))
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "..inputs.json.5v3hkxvo.tmp").write_bytes(b"x")
    prepare(config(text, tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == before


def test_what_a_killed_worker_left_is_removed_by_the_call_that_met_it(text: Path, tmp_path: Path) -> None:
    left = tmp_path / "deep" / "er" / ".text_training_0.hdf5.5v3hkxvo.tmp"

    def killed(stage: str, done: int, total: int | None) -> None:
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(b"x")
        if stage == "hdf5":
            raise UsageError("worker-lost", "a worker process ended unexpectedly")

    with refused("worker-lost"):
        prepare(config(text, tmp_path), killed)
    assert not left.exists()
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")] == []


def test_a_given_vocabulary_is_used_and_copied(text: Path, done: PrepareSummary, tmp_path: Path) -> None:
    assert done.vocab_path is not None
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
    with refused("data-too-small", "4 document", "9 shards", "--shards 3"):
        prepare(config(tmp_path / "in", tmp_path / "out", shards=8))
    summary = prepare(config(tmp_path / "in", tmp_path / "out", shards=3, vocab_size=64))
    assert only(summary).shards == 4 and any("single document" in note for note in summary.notes)
    with refused("data-too-small", "--shards 1 --test-fraction 0"):
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "a.txt").write_text("One sentence.")
        prepare(config(tmp_path / "one", tmp_path / "out", shards=1))


def test_unusable_input_and_options_are_refused(text: Path, tmp_path: Path) -> None:
    with refused("option-missing", "--input", "--download", "--generate"):
        PrepareConfig(output=tmp_path)
    with refused("option-conflict", "--input", "--generate"):
        PrepareConfig(output=tmp_path, input=tmp_path, generate=20_000)
    cases: list[tuple[dict[str, object], Code, tuple[object, ...]]] = [
        ({"shards": 0}, "option-value", ("--shards 0", 1)),
        ({"workers": 0}, "option-value", ("--workers 0", 1)),
        ({"test_fraction": 1.0}, "option-value", ("--test-fraction 1.0", "[0, 1)")),
        *(({"dataset": name}, "option-value", (f"--dataset {name!r}",)) for name in ("a/b", "..")),
        ({"seq_lens": (3,)}, "option-value", ("--seq-len 3", 5)),
        ({"seq_lens": ()}, "option-value", ("--seq-lens",)),
        ({"seq_lens": (32, 32)}, "option-value", ("--seq-lens 32 32",)),
        ({"max_predictions": (5, 6)}, "option-conflict", ("--max-predictions", 2, 1, "--seq-lens")),
        ({"stages": ("extract", "bake")}, "option-choice", ("--stages bake", *STAGES)),
        ({"part": "1/2"}, "option-conflict", ("--part 1/2", "--stages hdf5")),
        ({"part": "2/2", "stages": ("hdf5",)}, "option-value", ("--part 2/2", "I/N")),
        ({"part": "half", "stages": ("hdf5",)}, "option-value", ("--part half", "I/N")),
        ({"part": "0/2", "stages": ("shard",)}, "option-conflict", ("--part 0/2", "--stages hdf5")),
        ({"length_bins": 12}, "option-value", ("--length-bins 12", 8, "--seq-lens 32")),
        ({"gzip_level": 10}, "option-value", ("--gzip-level 10", 0, 9)),
    ]
    for changes, code, facts in cases:
        with refused(code, *facts):
            config(text, tmp_path, **changes)
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "a.txt").write_text("\n\n")
    with refused("data-missing", "1 input file"):
        prepare(config(tmp_path / "blank", tmp_path / "out"))
    assert PrepareConfig(output=tmp_path, input=text).predictions(512) == 80


def test_the_output_may_lie_in_the_text_folder(tmp_path: Path) -> None:
    generate_corpus(tmp_path, 7, 12_000)
    first = prepare(config(tmp_path, tmp_path, vocab_size=400))
    second = prepare(config(tmp_path, tmp_path, vocab_size=400))
    assert (second.documents, only(second).shards_kept) == (first.documents, 4)


def test_text_in_a_stages_own_folder_is_refused_and_left_alone(text: Path, tmp_path: Path) -> None:
    for stage in ("extracted", "cleaned", "sentences"):
        folder = tmp_path / stage / "novels"
        folder.mkdir(parents=True)
        (folder / "mine.txt").write_text("A book. It is mine. " * 50)
        with refused("option-conflict", f"--input {folder}", f"--output {tmp_path}"):
            prepare(config(folder, tmp_path))
    for stage in ("cleaned", "sentences"):
        with refused("folder-occupied", "mine.txt"):
            prepare(config(text, tmp_path))
        assert (tmp_path / stage / "novels/mine.txt").exists()
        (tmp_path / stage / "novels/mine.txt").unlink()
    assert only(prepare(config(text, tmp_path))).shards == 4
    assert (tmp_path / "extracted/novels/mine.txt").exists()


def test_a_vocabulary_with_capitals_for_lower_cased_text_is_a_note(
    text: Path, done: PrepareSummary, tmp_path: Path
) -> None:
    assert done.vocab_path is not None
    pieces = [*load_vocabulary(done.vocab_path, True).pieces, *(f"Name{number}" for number in range(200))]
    (tmp_path / "cased.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    summary = prepare(config(text, tmp_path / "out", vocab=tmp_path / "cased.txt"))
    assert any("200 pieces of the vocabulary contain capitals" in note for note in summary.notes)
    assert not any("capitals" in note for note in done.notes)


def test_more_shards_than_anybody_has_documents_are_refused_at_once(text: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    with refused("data-too-small", "--shards"):
        prepare(config(text, tmp_path, shards=99_999_999))
    assert time.monotonic() - began < 20


def test_every_stage_is_an_option_and_has_its_place(tmp_path: Path) -> None:
    assert STAGES == ("download", "extract", "clean", "sentences", "shard", "hdf5")
    names = {PrepareConfig(output=tmp_path, input=tmp_path).stage_folder(name) for name in ("extract", "clean")}
    assert names == {tmp_path / "extracted" / tmp_path.name, tmp_path / "cleaned" / tmp_path.name}


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
            with refused("folder-locked", tmp_path, f"process {os.getpid()}"):
                prepare(config(text, tmp_path, **changes))
        met.append(stage)

    met: list[str] = []
    first = only(prepare(config(text, tmp_path), second))
    assert met and first.shards_kept == 0
    assert only(prepare(config(text, tmp_path))).shards_kept == first.shards
