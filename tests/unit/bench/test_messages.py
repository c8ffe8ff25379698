"""Refusals name what was typed by its option, in one line, before anything is written."""

from pathlib import Path

import pytest
from support import gap_files
from support.csv_files import colours_and_animals, prepared, write_rows
from support.refusals import check_refusal, refused

from bench.cli.main import run
from bench.profilers import PROFILERS, load_profiler
from common.errors import Code

TRAIN = ["train", "pretrain", "--data", "synthetic", "--warmup", "0.1"]


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        ([*TRAIN, "--phase", "3"], "option-choice", ["--phase 3"]),
        ([*TRAIN, "--steps", "-3"], "option-value", ["--steps -3", 1]),
        ([*TRAIN, "--epochs", "2"], "option-not-applicable", ["--epochs 2", "--steps"]),
        ([*TRAIN, "--seq-len", "3"], "option-value", ["--seq-len 3", "pretrain"]),
        ([*TRAIN, "--strategy", "ddp", "--bucket-mib", "0"], "option-value", ["--bucket-mib 0", "MiB"]),
        ([*TRAIN, "--strategy", "single", "--bucket-mib", "2"], "option-not-applicable", ["--strategy single"]),
        ([*TRAIN, "--eval-data", "x", "--eval-every", "2"], "option-not-applicable", ["--eval-data"]),
        ([*TRAIN, "--schedule", "cyclic", "--steps", "5"], "option-value", ["--schedule cyclic", "--warmup 0.1"]),
        (
            [*TRAIN, "--global-batch-size", "7", "--micro-batch-size", "2", "--devices", "1"],
            "batch-size-mismatch",
            ["--micro-batch-size 2 x --grad-accum-steps 3 x --devices 1 = 6", "2 x 1 = 2", "6 or 8"],
        ),
        ([*TRAIN, "--dropout", "nan"], "option-value", ["--dropout nan", 0, 1]),
        ([*TRAIN, "--weight-decay", "inf"], "option-value", ["--weight-decay inf", 0]),
        ([*TRAIN, "--max-grad-norm", "0"], "option-value", ["--max-grad-norm 0", 0]),
        ([*TRAIN, "--deepspeed-config", "missing.json"], "path-missing", ["missing.json", "bench/deepspeed"]),
        (["throughput", "pretrain", "--batch-size", "0"], "option-value", ["--batch-sizes 0", 1]),
        (["throughput", "pretrain", "--start", "3"], "option-missing", ["--start", "--stop"]),
        (["throughput", "pretrain", "--seq-len", "3", "--max-batch-search"], "option-value", ["--seq-len 3"]),
    ],
)
def test_a_value_that_cannot_be_is_named_by_its_option_and_leaves_no_folder(
    words: list[str], code: Code, facts: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    check_refusal(shown, code, *facts)
    assert shown.startswith("bertbench: ") and shown.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["data", "gap", "--split", "test", "--input", "missing.tsv", "--vocab", "{vocab}", "--output", "{out}"], ()),
        (
            [
                "data",
                "squad",
                "--split",
                "training",
                "--input",
                "missing.tsv",
                "--vocab",
                "{vocab}",
                "--output",
                "{out}",
            ],
            (),
        ),
        (["eval", "glue", "--task", "rte", "--labels", "missing.tsv", "--predictions", "{gold}"], ("table",)),
        (["eval", "gap", "--dataset", "{gold}", "--predictions", "missing.tsv"], ("ID,A,B,NEITHER",)),
        (["launch", "--here-gpus", "2", "--", "missing.tsv"], ()),
        (["compare", "{run}", "missing.tsv"], ()),
    ],
)
def test_a_file_that_is_not_there_is_named_with_what_is_wanted(
    words: list[str], facts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "trials").mkdir(parents=True)
    gold = gap_files.write(tmp_path / "gold.tsv", gap_files.learnable(3))
    vocabulary = gap_files.vocabulary(tmp_path / "vocab.txt")
    names = {"gold": gold, "vocab": vocabulary, "out": tmp_path / "out", "run": tmp_path / "run"}
    assert run([word.format(**names) for word in words]) == 2
    check_refusal(capsys.readouterr().err, "path-missing", "missing.tsv", *facts)
    assert not (tmp_path / "out").exists()


def test_a_column_that_is_not_there_is_said_before_a_database_of_other_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "sms.csv", colours_and_animals(30))
    prepared(path, max_seq_length=64)
    words = ["data", "csv", str(path), "--vocab", str(tmp_path / "vocab.txt"), "--text", "text"]
    assert run([*words, "--label", "v9"]) == 2
    check_refusal(capsys.readouterr().err, "columns-missing", "'v9'", "--label", "'text', 'label'")
    assert run(words) == 2
    check_refusal(capsys.readouterr().err, "folder-occupied", "max_seq_length 64", 128)


@pytest.mark.parametrize("name", PROFILERS)
def test_a_profiler_is_named_as_it_was_chosen(name: str) -> None:
    with refused("option-choice", "nosuch", f"--with of --profiler {name}"):
        load_profiler(name, ("nosuch",))
