"""The command line before any command runs."""

import errno
import os
import resource
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


def test_an_unknown_command_is_bad_usage_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["thruput"]) == 2
    check_refusal(capsys.readouterr().err, "option-choice", "'thruput'", "'throughput'")


@pytest.mark.parametrize(
    ("argv", "code", "fact"),
    [
        (["throughput"], "option-missing", "bertbench throughput pretrain"),
        (["throughput", "sqad"], "option-choice", "'squad'"),
        (["throughput", "pretrain", "--preset", "bse"], "option-choice", '"base"'),
        (["throughput", "pretrain", "--devices", "4096", "--device", "cpu"], "device-missing", "4096"),
        (
            ["throughput", "pretrain", "--start", "5", "--stop", "5", "--device", "cpu"],
            "option-conflict",
            "--start 5 --stop 5",
        ),
        (["throughput", "pretrain", "--data", "/no/such/folder", "--device", "cpu"], "path-missing", "/no/such/folder"),
        (
            ["throughput", "pretrain", "--timeout-seconds", "0", "--device", "cpu"],
            "option-value",
            "--timeout-seconds 0.0",
        ),
        (
            ["throughput", "pretrain", "--timeout-seconds", "inf", "--device", "cpu"],
            "option-value",
            "--timeout-seconds inf",
        ),
        (["throughput", "pretrain", "--max-batch-limit", "0"], "option-value", "--max-batch-limit 0"),
        (["measure", "--timeout-seconds", "inf", "--", "true"], "option-value", "--timeout-seconds inf"),
        (
            ["throughput", "pretrain", "--price-per-hour", "-2", "--device", "cpu"],
            "option-value",
            "--price-per-hour -2",
        ),
        (["throughput", "pretrain", "--out", "", "--device", "cpu"], "option-value", "--out"),
        (["throughput", "pretrain", "--out", "/proc/none/x", "--device", "cpu"], "write-failed", "/proc/none"),
        (["profile", "pretrain"], "option-missing", "--start N --stop M"),
        (["profile", "pretrain", "--profiler", "perf", "--start", "1", "--stop", "2"], "option-choice", '"perf"'),
        (["throughput", "pretrain", "--stepz", "3"], "option-unknown", "bertbench throughput --help"),
        (["throughput", "pretrain", "--rounds", "x"], "option-value", "bertbench throughput --help"),
        (["throughput", "pretrain", "--levers", "unpad+"], "option-choice", "'unpad+'"),
        (["compare", "a"], "option-missing", "bertbench compare --help"),
        (["data"], "option-missing", "squad | gap"),
        (["eval", "--json"], "option-missing", "squad"),
        (["predict", "sqad"], "option-choice", "'squad'"),
        (["analyze"], "option-missing", "PATH"),
        (["core-util"], "option-missing", "FILE"),
        (["analyze", "/no/such/trace"], "path-missing", "/no/such/trace"),
        (["speed-of-light", "--rounds", "2"], "option-value", "--rounds 2"),
        (["speed-of-light", "--levers", "fp8", "--device", "cpu"], "device-unsupported", "bertbench throughput"),
        (["speed-of-light", "--devices", "0"], "option-value", "--devices 0"),
        (["report", "/no/such/run"], "path-missing", "/no/such/run"),
        (["report", "tests", "--price-per-hour", "3"], "option-not-applicable", "--price-per-hour"),
        (["compare", "/no/such/run", "/no/such/run2"], "path-missing", "/no/such/run"),
        (["train", "pretrain", "--vary", "dropout"], "option-value", "dropout"),
    ],
)
def test_bad_input_is_refused(argv: list[str], code: Code, fact: str) -> None:
    with refused(code, fact):
        result(*argv)


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (["--batch-sizes", "8", "eight"], "option-value", "eight"),
        (["--rounds=x"], "option-value", "--rounds"),
        (["--max-seconds", "1h"], "option-value", "--max-seconds"),
        (["--out"], "option-missing", "--out"),
        (["--out", "--json"], "option-missing", "--out"),
    ],
)
def test_a_value_that_is_missing_or_no_number_is_one_line(
    words: list[str], code: Code, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["throughput", "pretrain", *words]) == 2
    said = capsys.readouterr().err
    check_refusal(said, code, fact, "bertbench throughput --help")
    assert said.count("\n") == 1


def _time_of_children() -> float:
    """Processor time in seconds: what other tests compute meanwhile does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_imports_no_torch() -> None:
    code = (
        "import sys; from bench.cli.main import run; run(['--help']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'numpy', 'matplotlib', 'cyclopts')))"
    )
    best = 1e9
    for _ in range(3):
        began = _time_of_children()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
        best = min(best, _time_of_children() - began)
    assert best < 0.4


@pytest.mark.parametrize("command", ["throughput", "profile", "doctor", "report", "compare", "data"])
def test_help_of_a_command_imports_no_torch(command: str) -> None:
    words = [command, "pretrain", "--help"] if command == "data" else [command, "--help"]
    code = (
        "import sys; from bench.cli.main import run\n"
        f"try: run({words!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_a_terminal_without_unicode_gets_the_table_all_the_same() -> None:
    code = "import sys; from bench.cli.main import run; run(['--help']); print('\u00d7 \u2013')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0 and done.stdout.rstrip().endswith(b"? ?")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["data", "csv"], "start again"), (["predict", "squad"], "start again"), (["data", "pretrain"], "resume"),
     (["throughput"], "resume")],
    ids=["csv", "predict", "pretrain", "throughput"],
)  # fmt: skip
def test_after_an_interrupt_is_said_what_is_left_of_the_command(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.cli.dispatch.call", stopped)
    assert run(words) == 130
    assert f"the same command to {said}" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "no")])
def test_a_lack_of_memory_is_one_message(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: object) -> None:
        raise ImportError("a package cannot be loaded") from error

    monkeypatch.setattr("bench.cli.doctor.run", fail)
    assert run(["doctor"]) == 2
    said = capsys.readouterr().err
    check_refusal(said, "out-of-memory")
    assert said.startswith("bertbench: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "fact"),
    [(errno.EACCES, "permission denied"), (errno.ENAMETOOLONG, "shorter path"), (errno.ELOOP, "symbolic links")],
)
def test_a_path_that_cannot_be_used_is_one_message_with_a_code(
    number: int, fact: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: object) -> None:
        raise OSError(number, os.strerror(number), "/locked/run")

    monkeypatch.setattr("bench.cli.doctor.run", fail)
    assert run(["doctor"]) == 2
    check_refusal(capsys.readouterr().err, "path-unreadable", "/locked/run", fact)


def test_a_name_that_is_too_long_is_no_regression(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "a" * 300, "b", "c"]) == 2
    check_refusal(capsys.readouterr().err, "path-unreadable", "shorter path")


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: object) -> None:
        raise OSError(errno.EBADF, "bad")

    monkeypatch.setattr("bench.cli.doctor.run", fail)
    with pytest.raises(OSError) as caught:
        run(["doctor"])
    assert caught.value.errno == errno.EBADF


def test_a_request_to_end_that_comes_twice_ends_the_command_once() -> None:
    code = (
        "import os, signal, sys, bench.cli.doctor\n"
        "from bench.cli.main import main\n"
        "def work(argv):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print('tidied up')\n"
        "bench.cli.doctor.run = work\n"
        "main(['doctor'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stdout == "tidied up\n" and "interrupted" in done.stderr


def test_a_request_to_end_that_comes_when_all_is_said_changes_nothing() -> None:
    code = (
        "import atexit, os, signal, sys, bench.cli.doctor\n"
        "from bench.cli.main import main\n"
        "from bench.cli.result import Result\n"
        "atexit.register(lambda: [os.kill(os.getpid(), number) for number in (signal.SIGTERM, signal.SIGINT)])\n"
        "bench.cli.doctor.run = lambda options: Result(code=3)\n"
        "main(['doctor'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("words", ["--help", "", "-V", "doctor", "doctor --help", "data --help"])
def test_output_that_cannot_be_written_is_one_message(words: str) -> None:
    command = ["sh", "-c", f'"$0" -m bench.cli.main {words} >/dev/full', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    check_refusal(done.stderr, "write-failed")
    assert len(done.stderr.splitlines()) == 1


def test_of_several_ranks_the_first_says_that_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.cli.dispatch.call", ended)
    assert run(["measure"]) == 130 and "interrupted" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert run(["measure"]) == 130 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command", [["throughput", "pretrain", "--out"], ["data", "pretrain", "--output", "out", "--input"]]
)
def test_symbolic_links_that_lead_to_themselves_are_one_message(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert run([*command, str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    check_refusal(said, "path-unreadable", str(tmp_path / "a"))
    assert said.count("\n") == 1
