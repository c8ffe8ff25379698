"""`bertbench submit` as a user calls it: what it writes, hands over and says."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused
from test_submit import IMAGE, fakes, rendered

from bench.cli import submit
from bench.cluster.schedulers import SCHEDULERS, load_scheduler
from bench.cluster.schedulers.azureml import _distribution
from bench.cluster.schedulers.words import fill, kubernetes_memory, places, quote, time_limit_seconds


def test_the_type_of_a_gpu_is_one_word_of_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["slurm", "--gpus-per-node", "1", "--gpu-type", "a|touch", "--chdir", str(tmp_path), "--", "x"]
    words = shlex.split(next(line for line in rendered(argv, capsys).splitlines() if line.startswith("srun")))
    assert "--gpus-per-node=a|touch:1" in words
    bare = shlex.shlex(f"srun {' '.join(words)}", punctuation_chars=True)
    assert "|" in list(bare), "unquoted, it would be a pipe"


def test_the_command_to_submit_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a b;id.sbatch"
    assert submit.main(["slurm", "--gpus-per-node", "1", "--out", str(out), "--", "x"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert shlex.split(said.partition("to submit: ")[2]) == ["sbatch", str(out)]


@pytest.mark.parametrize(("scheduler", "extra"), [
    ("slurm", []), ("kubernetes", IMAGE), ("azureml", ["--compute", "c", *IMAGE]),
])  # fmt: skip
def test_submitting_without_the_tool_names_the_remedy(
    scheduler: str, extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with refused("tool-missing", load_scheduler(scheduler).tool, "--out FILE"):
        submit.main([scheduler, *extra, "--gpus-per-node", "1", "--submit", "--", "x"])
    assert list(tmp_path.iterdir()) == []


def test_submitting_writes_the_file_and_calls_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "got $1"; exit "${CODE:-0}"\n', encoding="utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    argv = ["slurm", "--gpus-per-node", "1", "--log-dir", "logs", "--submit", "--", "train.py"]
    assert submit.main(argv) == 0
    assert capsys.readouterr().out == "got bertbench.sbatch\n"
    assert (tmp_path / "logs").is_dir()
    monkeypatch.setenv("CODE", "3")
    assert submit.main(argv) == 1
    assert "exit code 3" in capsys.readouterr().err


def test_the_folder_of_the_logs_is_there_when_the_script_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["slurm", "--gpus-per-node", "1", "--log-dir", "logs/squad"]
    assert submit.main([*argv, "--", "train.py"]) == 0
    assert "mkdir -p logs/squad" in capsys.readouterr().err
    assert submit.main([*argv, "--out", "squad.sbatch", "--", "train.py"]) == 0
    assert (tmp_path / "logs" / "squad").is_dir()
    assert submit.main([*argv, "--", "train.py"]) == 0
    assert "mkdir" not in capsys.readouterr().err


def test_setup_lines_may_read_variables_that_are_not_set_and_end_the_job_where_they_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sbatch"

    def run(*setup: str) -> subprocess.CompletedProcess[str]:
        argv = [
            "slurm",
            "--launcher",
            "none",
            "--chdir",
            str(tmp_path),
            "--setup",
            *setup,
            "--",
            "sh",
            "-c",
            "echo ran",
        ]
        script.write_text(rendered(argv, capsys), encoding="utf-8")
        return subprocess.run(["bash", str(script)], env=fakes(tmp_path), capture_output=True, text=True)

    done = run('PS1="(env) $PS1"', "export FOUND=${CONDA_PREFIX}x", '[[ -z "$MODULEPATH" ]]')
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert "\nset +u\n" in script.read_text() and "\nset -u\n" in script.read_text()
    failed = run("false")
    assert failed.returncode == 1 and failed.stdout == ""


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine.sh"
    mine.write_text("precious\n", encoding="utf-8")
    with refused("folder-occupied", mine):
        submit.main(["slurm", "--gpus-per-node", "1", "--out", str(mine), "--", "train.py"])
    assert mine.read_text(encoding="utf-8") == "precious\n"
    for word in ("a", "b"):
        assert submit.main(["slurm", "--gpus-per-node", "1", "--out", str(tmp_path / "job"), "--", word]) == 0
    assert "--no-python" in (tmp_path / "job").read_text(encoding="utf-8")


def test_a_secret_in_the_file_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    submit.main(["slurm", "--gpus-per-node", "1", "--env", "HF_TOKEN=abc", "--", "train.py"])
    assert "HF_TOKEN looks like a secret" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("48:00:00", 172800),
        ("1:30", 90),
        ("12:00:00", 43200),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("2-01:02:03", 176523),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert time_limit_seconds(text) == seconds


def test_words() -> None:
    assert kubernetes_memory("64G") == "64Gi"
    assert places(["--x={lr}", '{"json": 1}', "{B}"]) == {"lr"}
    assert fill("a{x}b{y}", ["x"], quote, lambda name: f"<{name}>") == "a<x>'b{y}'"
    assert quote("a\nb'") == "$'a\\x0ab\\''"


def test_every_scheduler_has_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["--help"]) == 0
    text: Any = capsys.readouterr().out
    assert [name for name in SCHEDULERS if f"  {name}" not in text] == []


def test_a_swept_value_reaches_the_command_as_it_was_written() -> None:
    found = _distribution("a", "1,-2,0.5,1e-5,0.10,007,3.10,x")
    assert found["values"] == [1, -2, 0.5, 1e-5, "0.10", "007", "3.10", "x"]
