"""Tools that wrap the run, by a stand-in for nsys that fails in every way: measurements stand, no process stays."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support import fake_nsys
from support.cli import ROOT, TINY, Cli, wait_for

WINDOW = ["--start", "1", "--stop", "3", "--batch-sizes", "2"]


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return fake_nsys.install(tmp_path / "bin")


def environment(tool: Path, mode: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "FAKE_NSYS": mode}


def profile(cli: Cli, tool: Path, mode: str, *options: str) -> "subprocess.CompletedProcess[str]":
    argv = cli.argv(
        "profile", "pretrain", *TINY, *WINDOW, "--profiler", "nsys", *options, "--out", str(cli.out), "--json"
    )
    return subprocess.run(
        argv, cwd=ROOT, env=environment(tool, mode), capture_output=True, text=True, timeout=240, check=False
    )


def daemons(tool: Path) -> list[psutil.Process]:
    """What this stand-in leaves behind; those of tests that run beside this one are not meant."""
    found = []
    for process in psutil.process_iter():
        try:
            own = process.environ().get("PATH", "").startswith(str(tool.parent))
            if process.cmdline() == ["sleep", "300"] and own and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("no-report", "nsys wrote no report"),
        ("empty-report", "is empty"),
        ("bad-export", "nsys export failed"),
    ],
)
def test_what_the_ranks_measured_stands_when_the_tool_fails_after_them(
    cli: Cli, tool: Path, mode: str, words: str
) -> None:
    done = profile(cli, tool, mode)
    assert done.returncode == 3 and words in done.stderr and "Traceback" not in done.stderr
    (found,) = json.loads(done.stdout)["profiles"]
    assert found["status"] == "ok" and words in found["problem"] and found["files"] == []
    assert found["step_time_ms"] > 0 and found["unprofiled_step_time_ms"] > 0
    assert daemons(tool) == []


def test_a_failed_profile_is_made_again_and_a_good_one_is_not(cli: Cli, tool: Path) -> None:
    assert profile(cli, tool, "no-report").returncode == 3
    second = profile(cli, tool, "ok")
    (made,) = json.loads(second.stdout)["profiles"]
    assert [Path(file).name for file in made["files"]][:2] == ["node0.nsys-rep", "node0.sqlite"]
    report = Path(made["files"][0])
    written = report.stat().st_mtime_ns
    third = profile(cli, tool, "ok")
    assert report.stat().st_mtime_ns == written and "already done" in third.stderr


def test_a_profile_that_cannot_be_read_is_told_and_made_again(cli: Cli, tool: Path) -> None:
    done = profile(cli, tool, "foreign-export")
    assert done.returncode == 3 and done.stderr.count("node0.sqlite") == 1 and "Traceback" not in done.stderr
    again = profile(cli, tool, "ok")
    assert again.returncode == 0 and json.loads(again.stdout)["profiles"][0]["problem"] == ""


def test_secrets_of_the_environment_do_not_reach_the_tool(
    cli: Cli, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush-hush")
    monkeypatch.setenv("HARMLESS", "hf_" + "aBcdefGhijkl3nop" * 2)  # in both cases, as random characters are
    done = profile(cli, tool, "ok")
    assert done.returncode == 0, done.stderr
    (report,) = cli.out.glob("trials/*/profile/node0.nsys-rep")
    text = report.read_text(encoding="utf-8")
    assert "BERTBENCH_MARK" in text, "the report holds the environment"
    assert "hush-hush" not in text and "aBcdefGhijkl3nop" not in text


def test_where_the_ranks_hang_is_in_the_log_under_a_tool_too(cli: Cli, tool: Path) -> None:
    done = profile(cli, tool, "ok", "--stop", "1000000", "--timeout-seconds", "12")
    (found,) = json.loads(done.stdout)["profiles"]
    assert found["status"] == "timeout" and "log.txt" in found["reason"]
    (log,) = cli.out.glob("trials/profile-*/log.txt")
    assert "most recent call first" in log.read_text(encoding="utf-8"), "every rank's stack"
    assert daemons(tool) == [] and cli.processes() == []


def test_a_tool_that_starts_nothing_is_a_crash_in_its_own_words(cli: Cli, tool: Path) -> None:
    done = profile(cli, tool, "refuses")
    (found,) = json.loads(done.stdout)["profiles"]
    assert done.returncode == 3 and found["status"] == "crashed"
    assert "unrecognised option" in found["reason"]
    assert found["unprofiled_step_time_ms"] > 0, "the unprofiled run stands"


def test_a_tool_that_hangs_after_the_run_is_ended_and_the_run_stands(cli: Cli, tool: Path) -> None:
    done = profile(cli, tool, "hangs", "--timeout-seconds", "25")
    (found,) = json.loads(done.stdout)["profiles"]
    assert done.returncode == 3 and found["status"] == "ok" and "nsys was killed" in found["problem"]
    assert daemons(tool) == [] and cli.processes() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_neither_tool_nor_daemon_is_left_when_the_harness_ends(cli: Cli, tool: Path, number: int) -> None:
    argv = cli.argv("profile", "pretrain", *TINY, *WINDOW, "--profiler", "nsys", "--out", str(cli.out))
    process = subprocess.Popen(argv, cwd=ROOT, env=environment(tool, "hangs"), stderr=subprocess.DEVNULL)
    wait_for(lambda: daemons(tool), "the tool to start")
    process.send_signal(number)
    process.wait(timeout=30)
    wait_for(lambda: not cli.processes() and not daemons(tool), "every process to end", seconds=20)
