"""Refusals name what was typed, say what is wrong first, and what to do about it."""

import importlib
from pathlib import Path

import pytest
from support import gap_files
from support.csv_files import colours_and_animals, prepared, write_rows
from support.refusals import check_refusal, refused

from bench.cli.main import run
from bench.cli.sweep_progress import tell_of_cpu
from bench.machine.devices import Devices
from bench.profilers import PROFILERS, load_profiler
from bert.tasks.classify.store import add_run
from common.errors import Code


@pytest.mark.parametrize("task", ["gap", "squad"])
def test_an_input_that_is_not_there_is_said_before_its_name_is_read(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--input", str(tmp_path / "nosuch.tsv"), "--vocab", str(gap_files.vocabulary(tmp_path / "vocab.txt"))]
    assert run(["data", task, *argv, "--output", str(tmp_path / "out")]) == 2
    check_refusal(capsys.readouterr().err, "path-missing", "nosuch.tsv")
    assert not (tmp_path / "out").exists()


def test_a_column_that_is_not_there_is_said_before_results_that_would_be_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "sms.csv", colours_and_animals(30))
    database = prepared(path, max_seq_length=64).source
    add_run(database.path, database.fingerprint, {"accuracy": 0.5})
    words = ["data", "csv", str(path), "--vocab", str(tmp_path / "vocab.txt"), "--text", "text"]
    assert run([*words, "--label", "v9"]) == 2
    check_refusal(capsys.readouterr().err, "columns-missing", "'v9'", "--label", "'text', 'label'")
    assert run(words) == 2
    check_refusal(capsys.readouterr().err, "folder-occupied", "1 training", "max_seq_length 64", 128)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (
            ["eval", "glue", "--task", "rte", "--labels", "{labels}", "--predictions", "missing.tsv"],
            ("missing.tsv", "bertbench predict glue"),
        ),
        (
            ["eval", "glue", "--task", "rte", "--labels", "missing.tsv", "--predictions", "{labels}"],
            ("missing.tsv", "table"),
        ),
        (
            ["eval", "gap", "--dataset", "{gold}", "--predictions", "missing.csv"],
            ("missing.csv", "bertbench predict gap"),
        ),
        (
            ["train", "squad", "--data", "synthetic", "--deepspeed-config", "missing.json", "--out", "{out}"],
            ("missing.json", "bench/deepspeed"),
        ),
    ],
    ids=("answers", "table", "predictions", "deepspeed"),
)
def test_a_file_that_is_not_there_is_named_with_what_is_wanted(
    words: list[str], facts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "dev.tsv"
    labels.write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    names = {"labels": labels, "gold": gap_files.write(tmp_path / "gold.tsv", gap_files.learnable(3))}
    assert run([word.format(**names, out=tmp_path / "out") for word in words]) == 2
    check_refusal(capsys.readouterr().err, "path-missing", *facts)


def test_a_script_that_is_not_there_is_refused_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--here-gpus", "2", "--", "nosuch.py"]) == 2
    check_refusal(capsys.readouterr().err, "path-missing", "'nosuch.py'")


@pytest.mark.parametrize("task", ["squad", "gap"])
def test_the_choices_of_an_option_are_words_that_can_be_given(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", task, "--input", "x.json", "--vocab", "vocab.txt", "--split", "train"]) == 2
    told = capsys.readouterr()
    check_refusal(told.err, "option-choice", "--split", "training", f"data {task} --help")
    assert "None" not in told.err + told.out
    with pytest.raises(SystemExit):
        run(["data", task, "--help"])
    shown = capsys.readouterr().out
    assert "[choices: training," in shown and "None" not in shown


@pytest.mark.parametrize(
    ("option", "facts"),
    [
        (("--dropout", "1.5"), (0, 1)),
        (("--dropout", "nan"), (0, 1)),
        (("--epochs", "-1"), (0,)),
        (("--learning-rate", "-1"), (0,)),
        (("--warmup", "1"), (0,)),
        (("--weight-decay", "inf"), (0,)),
        (("--max-seconds", "inf"), (0,)),
        (("--max-grad-norm", "0"), (0,)),
    ],
)
def test_numbers_out_of_range_are_refused_by_the_name_of_their_option(
    option: tuple[str, str], facts: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", "squad", "--data", "synthetic", "--steps", "1", "--out", str(tmp_path / "out"), *option]
    assert run(argv) == 2
    said = capsys.readouterr().err
    check_refusal(said, "option-value", *facts)
    assert said.startswith(f"bertbench: {' '.join(option)} ") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_tables_of_runs_are_not_asked_for_in_vain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "trials").mkdir(parents=True)
    assert run(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--csv", str(tmp_path / "tables")]) == 2
    check_refusal(capsys.readouterr().err, "option-not-applicable", "--csv")
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["train", "--phase", "3"], "option-choice", ["--phase 3"]),
        (["train", "--steps", "-3"], "option-value", ["--steps -3", 1]),
        (["train", "--log-every", "0"], "option-value", ["--log-every 0", 1]),
        (["train", "--epochs", "2"], "option-not-applicable", ["--epochs 2", "--steps"]),
        (["train", "--seq-len", "3"], "option-value", ["--seq-len 3", "pretrain"]),
        (["train", "--strategy", "ddp", "--bucket-mib", "0"], "option-value", ["--bucket-mib 0", "MiB"]),
        (["train", "--eval-data", "x", "--eval-every", "2"], "option-not-applicable", ["--eval-data"]),
        (
            ["train", "--strategy", "single", "--bucket-mib", "2"],
            "option-not-applicable",
            ["--strategy single", "--bucket-mib"],
        ),
        (
            ["train", "--schedule", "cyclic", "--steps", "5"],
            "option-value",
            ["--schedule cyclic", "--warmup 0.1", "5 steps"],
        ),
        (
            ["train", "--global-batch-size", "7", "--micro-batch-size", "2", "--devices", "1"],
            "batch-size-mismatch",
            [
                "--global-batch-size 7",
                "--micro-batch-size 2 x --grad-accum-steps 3 x --devices 1 = 6",
                "2 x 1 = 2",
                "6 or 8",
            ],
        ),
        (["throughput", "--batch-size", "0"], "option-value", ["--batch-sizes 0", 1]),
        (["throughput", "--start", "3"], "option-missing", ["--start", "--stop"]),
    ],
    ids=lambda value: "-".join(map(str, value[:2])) if isinstance(value, list) else None,
)
def test_a_value_that_cannot_be_is_named_by_the_option_it_came_with(
    words: list[str], code: Code, facts: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = words
    own = ["--data", "synthetic", "--warmup", "0.1"] if command == "train" else []
    assert run([command, "pretrain", *own, *options, "--out", str(tmp_path / "out")]) == 2
    check_refusal(capsys.readouterr().err, code, *facts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "pretrain", "--data", "synthetic", "--phase", "3"], "--phase 3"),
        (["throughput", "pretrain", "--seq-len", "3"], "--seq-len 3"),
        (["throughput", "pretrain", "--seq-len", "3", "--max-batch-search"], "--seq-len 3"),
    ],
)
def test_what_is_refused_is_all_that_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices("cpu", (), 2, note="no driver")
    monkeypatch.setattr(importlib.import_module(f"bench.cli.{words[0]}"), "find_devices", lambda asked: devices)
    assert run([*words, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"bertbench: {said}")


def test_why_a_run_is_on_the_cpu_is_said_where_nobody_asked_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    devices = Devices("cpu", (), 2, note="no driver")
    tell_of_cpu(devices, "cpu", False)
    tell_of_cpu(devices, "auto", True)
    tell_of_cpu(Devices("cpu", (), 2), "auto", False)
    assert capsys.readouterr().err == ""
    tell_of_cpu(devices, "auto", False)
    assert capsys.readouterr().err == "measuring on the CPU: no driver\n"


@pytest.mark.parametrize("name", PROFILERS)
def test_a_profiler_is_named_as_it_was_chosen(name: str) -> None:
    with refused("option-unknown", "--with nosuch", f"--profiler {name}"):
        load_profiler(name, ("nosuch",))


def test_of_a_run_and_a_path_that_is_not_there_the_path_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "trials").mkdir(parents=True)
    for name in ("nosuch", "x" * 300):
        for pair in ((tmp_path / "run", tmp_path / name), (tmp_path / name, tmp_path / "run")):
            assert run(["compare", *map(str, pair)]) == 2
            said = capsys.readouterr().err
            check_refusal(said, "path-missing", f"{tmp_path}/{name}")
            assert "profiled trials" not in said
