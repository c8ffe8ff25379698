"""Tools that wrap the run, by a stand-in for nsys that fails in every way: measurements stand, no process stays."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support import fake_tools
from support.cli import ROOT, TINY, Cli, bertbench, run_to_end, wait_for

WINDOW = ["--start", "1", "--stop", "3", "--batch-sizes", "2"]


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return fake_tools.nsys(tmp_path / "bin")


def environment(tool: Path, mode: str) -> dict[str, str]:
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}", "FAKE_NSYS": mode}


def profile(cli: Cli, tool: Path, mode: str, *options: str, code: int = 3) -> "subprocess.CompletedProcess[str]":
    words = ("profile", "pretrain", *TINY, *WINDOW, "--profiler", "nsys", *options, "--out", cli.out, "--json")
    return run_to_end(bertbench(*words), code, **environment(tool, mode))


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


# What the tool does, and what the message says of it.
FAILURES = (
    ("no-report", "has no report of nsys"),
    ("empty-report", "is empty"),
    ("bad-export", "nsys export failed"),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_failed_profile_is_made_again_and_a_good_one_is_not(
    cli: Cli, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every failure in one folder, one after another; the unprofiled run is measured once."""
    monkeypatch.setenv("SOME_TOKEN", "hush-hush")
    monkeypatch.setenv("HARMLESS", "https://me:hush-hush@host")

    done = profile(cli, tool, "refuses")  # it starts nothing
    (found,) = json.loads(done.stdout)["profiles"]
    assert found["status"] == "crashed"
    assert "unrecognised option" in found["reason"], "in its own words"
    unprofiled = found["unprofiled_step_time_ms"]
    assert unprofiled > 0, "the unprofiled run stands"

    for mode, words in FAILURES:
        done = profile(cli, tool, mode)
        assert words in done.stderr and "Traceback" not in done.stderr, mode
        (found,) = json.loads(done.stdout)["profiles"]
        assert found["status"] == "ok" and words in found["problem"] and found["files"] == [], mode
        assert found["step_time_ms"] > 0 and found["unprofiled_step_time_ms"] == unprofiled, mode
        assert daemons(tool) == [], mode

    done = profile(cli, tool, "foreign-export")
    assert done.stderr.count("node0.sqlite") == 1 and "Traceback" not in done.stderr

    done = profile(cli, tool, "ok", code=0)
    (made,) = json.loads(done.stdout)["profiles"]
    assert made["problem"] == "", done.stderr
    assert [Path(file).name for file in made["files"]][:2] == ["node0.nsys-rep", "node0.sqlite"]
    report = Path(made["files"][0])
    text = report.read_text(encoding="utf-8")
    assert "MASTER_ADDR" in text, "the report holds the environment"
    assert "hush-hush" not in text, "secrets do not reach the tool"

    written = report.stat().st_mtime_ns
    done = profile(cli, tool, "ok", code=0)
    assert report.stat().st_mtime_ns == written and "already done" in done.stderr


@pytest.mark.slow
def test_where_the_ranks_hang_is_in_the_log_under_a_tool_too(cli: Cli, tool: Path) -> None:
    done = profile(cli, tool, "ok", "--stop", "1000000", "--timeout-seconds", "12")
    (found,) = json.loads(done.stdout)["profiles"]
    assert found["status"] == "timeout" and "log.txt" in found["reason"]
    (log,) = cli.out.glob("trials/profile-*/log.txt")
    assert "most recent call first" in log.read_text(encoding="utf-8"), "every rank's stack"
    assert daemons(tool) == [] and cli.processes() == []


@pytest.mark.slow
def test_a_tool_that_hangs_after_the_run_is_ended_and_the_run_stands(cli: Cli, tool: Path) -> None:
    done = profile(cli, tool, "hangs", "--timeout-seconds", "25")
    (found,) = json.loads(done.stdout)["profiles"]
    assert found["status"] == "ok" and "has no report of nsys" in found["problem"]
    assert daemons(tool) == [] and cli.processes() == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGTERM))],
)
def test_neither_tool_nor_daemon_is_left_when_the_harness_ends(cli: Cli, tool: Path, number: int) -> None:
    argv = cli.argv("profile", "pretrain", *TINY, *WINDOW, "--profiler", "nsys", "--out", str(cli.out))
    process = subprocess.Popen(
        argv, cwd=ROOT, env={**os.environ, **environment(tool, "hangs")}, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: daemons(tool), "the tool to start")
    process.send_signal(number)
    process.wait(timeout=30)
    wait_for(lambda: not cli.processes() and not daemons(tool), "every process to end", seconds=20)
