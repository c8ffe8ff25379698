"""The command line before any command runs: bad input, signals, output that cannot be written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import result
from support.refusals import check_refusal, refused

from bench.cli.dispatch import COMMANDS
from bench.cli.main import run
from common.errors import Code

ROOT = Path(__file__).resolve().parents[3]


def test_help_names_every_command_and_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("  ")]
    assert [name for row in rows for name in row[:27].replace(",", " ").split()] == list(COMMANDS)
    # A terminal of 24 lines shows it and the prompt.
    assert len(output.splitlines()) <= 23 and max(map(len, output.splitlines())) <= 80


CPU = ["--device", "cpu"]


@pytest.mark.parametrize(
    ("argv", "code", "fact"),
    [
        (["thruput"], "option-choice", "throughput"),
        (["throughput", "sqad"], "option-choice", '"squad"'),
        (["throughput", "pretrain", "--preset", "bse"], "option-choice", '"base"'),
        (["throughput", "pretrain", "--devices", "4096", *CPU], "device-missing", "4096"),
        (["throughput", "pretrain", "--data", "/no/such/folder", *CPU], "path-missing", "/no/such/folder"),
        (["throughput", "pretrain", "--price-per-hour", "-2", *CPU], "option-value", "--price-per-hour"),
        (["throughput", "pretrain", "--out", "", *CPU], "path-kind", "--out"),
        (["throughput", "pretrain", "--out", "/proc/none/x", *CPU], "write-failed", "/proc/none"),
        (["profile", "pretrain"], "option-missing", "--start N --stop M"),
        (["data"], "option-missing", "squad | gap"),
        (["predict", "sqad"], "option-choice", "squad"),
        (["analyze", "/no/such/trace"], "path-missing", "/no/such/trace"),
        (["speed-of-light", "--precisions", "fp8", *CPU], "device-unsupported", "bertbench throughput"),
        (["report", "tests", "--price-per-hour", "3"], "option-not-applicable", "--price-per-hour"),
    ],
)
def test_bad_input_is_refused(argv: list[str], code: Code, fact: str) -> None:
    with refused(code, fact):
        result(*argv)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_too_little_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("bench.cli.main._command", fail)
    assert run(["doctor"]) == 2
    assert "[out-of-memory]" in capsys.readouterr().err


def test_help_takes_little_processor_time_and_imports_no_torch() -> None:
    code = (
        "import resource, sys; from bench.cli.main import run; run(['--help']);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime, file=sys.stderr);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'numpy', 'matplotlib', 'cyclopts')))"
    )
    ran = [subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True) for _ in range(3)]
    assert min(float(done.stderr) for done in ran) < 0.15


@pytest.mark.parametrize("words", [["throughput"], ["profile"], ["report"], ["data", "pretrain"]])
def test_help_of_a_command_imports_no_torch(words: list[str]) -> None:
    code = (
        "import sys; from bench.cli.main import run\n"
        f"try: run([*{words!r}, '--help'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Usage" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_signal_ends_the_command_once_and_one_rank_reports_it(number: int, code: int, rank: str) -> None:
    program = (
        "import os, signal, sys, bench.cli.doctor\n"
        "from bench.cli.main import main\n"
        "def work(argv):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGTERM) if number == signal.SIGTERM else None\n"
        "        print('tidied up')\n"
        f"number = {int(number)}\n"
        "bench.cli.doctor.run = work\n"
        "main(['doctor'])\n"
    )
    environment = {**os.environ, "RANK": rank}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == b"tidied up\n" and (b"interrupted" in done.stderr) == (rank == "0")


@pytest.mark.parametrize("words", ["--help", "", "-V", "doctor", "doctor --help", "data --help"])
def test_output_that_cannot_be_written_is_one_message(words: str) -> None:
    command = ["sh", "-c", f'"$0" -m bench.cli.main {words} >/dev/full', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    check_refusal(done.stderr, "write-failed")
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_stdout_ends_the_command_quietly() -> None:
    code = (
        "import bench.cli.doctor, bench.cli.result; from bench.cli.main import main\n"
        "bench.cli.doctor.run = lambda options: bench.cli.result.Result(raw='word ' * 100_000)\n"
        "main(['doctor'])\n"
    )
    command = ["bash", "-c", '"$0" -c "$1" | head -c 1; exit "${PIPESTATUS[0]}"', sys.executable, code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
