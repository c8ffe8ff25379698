"""How the end of a trial becomes a status and a reason."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.machine.devices import find_devices
from bench.machine.environment import capture
from bench.run import launch
from bench.run.launch import LaunchOptions, _outcome, _timeout_reason, finish, lost_peer, rank_variables
from bench.run.processes import MARK_VARIABLE, descendants, end_tree, marked, stopped_ranks
from bench.run.worker import _explain
from common.errors import StorageError, UsageError
from records.files import read_record, write_record
from records.run import TrialDirectory
from records.trial import Trial

ROOT = Path(__file__).parents[3]


@pytest.fixture
def directory(tmp_path: Path) -> TrialDirectory:
    (tmp_path / "log.txt").write_text("something\n=====\nthe last words\n")
    return TrialDirectory(tmp_path)


def agent(directory: TrialDirectory, *failures: tuple[int, int, float]) -> None:
    rows = [{"rank": rank, "exit_code": code, "time": when} for rank, code, when in failures]
    write_record(directory.path / "agent.json", {"failures": rows})


def test_exit_code_zero_is_ok(directory: TrialDirectory) -> None:
    assert _outcome(directory, 0, False) == ("ok", "", "")


def test_out_of_memory_on_any_rank_wins_over_what_it_caused(directory: TrialDirectory) -> None:
    write_record(directory.failure_json(0), {"status": "crashed", "reason": "connection lost", "time": 1.0})
    write_record(directory.failure_json(1), {"status": "oom", "reason": "can't allocate", "time": 2.0})
    assert _outcome(directory, 1, False) == ("oom", "rank 1: can't allocate", "out-of-memory")


def test_the_code_of_what_a_rank_met_is_the_trial_s_and_older_records_have_none(directory: TrialDirectory) -> None:
    write_record(directory.failure_json(1), {"status": "crashed", "reason": "lost", "time": 1.0})
    assert _outcome(directory, 1, False)[2] == "rank-failed"
    refusal = {"status": "refused", "code": "vocabulary-mismatch", "reason": "other words", "time": 2.0}
    write_record(directory.failure_json(0), refusal)
    status, reason, code = _outcome(directory, 1, False)
    assert (status, reason, code) == ("refused", "other words", "vocabulary-mismatch")
    assert finish(Trial(), directory, status, reason, LaunchOptions(), 1.0, code)["code"] == code
    assert "code" not in finish(Trial(), directory, "interrupted", "by hand", LaunchOptions())


def test_a_rank_writes_down_the_code_of_its_refusal(tmp_path: Path) -> None:
    directory = TrialDirectory(tmp_path)
    directory.trial_json.write_text('{"schema_version": 9999}', encoding="utf-8")
    argv = [sys.executable, "-m", "bench.run.worker", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "RANK": "3"}, timeout=120, check=False)
    failure = read_record(directory.failure_json(3))
    assert done.returncode == 3 and (failure["status"], failure["code"]) == ("refused", "record-version")


def test_the_first_rank_to_die_is_named(directory: TrialDirectory) -> None:
    agent(directory, (0, -signal.SIGTERM, 9.0), (1, -signal.SIGSEGV, 5.0))
    status, reason, code = _outcome(directory, 1, False)
    assert (
        (status, code) == ("crashed", "rank-failed")
        and reason.startswith("rank 1 died by SIGSEGV")
        and "the last words" in reason
    )


@pytest.mark.parametrize(("limit", "code"), [(3 << 30, -11), (3 << 30, 1), (3 << 30, -9), (-1, -11)])
def test_a_death_that_refused_memory_may_cause_names_the_limit(
    directory: TrialDirectory, monkeypatch: pytest.MonkeyPatch, limit: int, code: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, -1))
    agent(directory, (1, code, 5.0))
    _, reason, _ = _outcome(directory, 1, False)
    assert ("3,072 MiB of memory" in reason) == (limit > 0 and code != -signal.SIGKILL)


def test_a_kill_by_the_kernel_for_memory_is_oom(directory: TrialDirectory) -> None:
    agent(directory, (1, -signal.SIGKILL, 5.0))
    assert _outcome(directory, 1, True)[::2] == ("oom", "out-of-memory")
    assert _outcome(directory, 1, False)[::2] == ("crashed", "rank-failed")


def test_a_launcher_that_dies_itself_is_named(directory: TrialDirectory) -> None:
    status, reason, _ = _outcome(directory, -signal.SIGKILL, False)
    assert status == "crashed" and "the launcher died by SIGKILL" in reason


def test_a_failed_trial_has_a_result_without_metrics(directory: TrialDirectory) -> None:
    result = finish(Trial(), directory, "oom", "why", LaunchOptions())
    assert directory.read_result() == {"schema_version": 1, **result}
    assert "samples_per_second" not in result


def test_end_tree_ends_grandchildren_in_sessions_of_their_own() -> None:
    code = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
        "time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 10
    own = os.getsid(child.pid)
    while not any(os.getsid(pid) != own for pid in descendants(child.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    (grandchild,) = descendants(child.pid)
    assert os.getsid(grandchild) != own
    end_tree(child.pid)
    child.wait(timeout=5)
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_a_rank_that_is_stopped_is_found_and_named(directory: TrialDirectory) -> None:
    environment = {**os.environ, "RANK": "1"}
    with subprocess.Popen(["sleep", "60"], env=environment) as process, subprocess.Popen(["sleep", "60"]) as other:
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert stopped_ranks([process.pid, other.pid]) == [1]
        finally:
            process.kill()
            other.kill()
    reason = _timeout_reason(directory, LaunchOptions(timeout_seconds=5), [1])
    assert "timeout after 5 s" in reason and "rank 1 is stopped" in reason


def test_a_rank_that_meets_a_full_disk_is_run_again_and_one_that_finds_no_memory_is_oom() -> None:
    assert _explain(StorageError("disk-full", "the disk is full"))[::2] == ("interrupted", "disk-full")
    assert _explain(RuntimeError("DefaultCPUAllocator: can't allocate memory"))[::2] == ("oom", "out-of-memory")
    # 2^28 bytes are a quarter of a GiB.
    status, reason, _ = _explain(MemoryError(), 2**28)
    assert status == "oom" and "0.25 GiB" in reason and "--memory-limit-gib" in reason
    assert reason.endswith("MemoryError"), "what was raised, too"
    assert _explain(MemoryError())[:2] == ("oom", "MemoryError")
    assert _explain(UsageError("option-conflict", "there is no such trial"))[::2] == ("refused", "option-conflict")
    assert _explain(RuntimeError("a shape does not fit"))[::2] == ("crashed", "rank-failed")


def test_a_lost_connection_is_told_from_other_failures() -> None:
    assert lost_peer("RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    assert not lost_peer("ValueError: shapes differ")


def test_a_trial_is_over_when_none_of_its_processes_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is killed cannot wait for its ranks, which may hold memory and folders a moment longer."""
    program = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); sys.exit(7)"
    marks: list[str] = []

    def start(*given: Any) -> "subprocess.Popen[bytes]":
        marks.append(given[-1])
        return subprocess.Popen([sys.executable, "-c", program], env=os.environ | {MARK_VARIABLE: marks[0]})

    monkeypatch.setattr(launch, "_start", start)
    directory = TrialDirectory(tmp_path / "trial")
    result = launch.run_trial(Trial(device="cpu"), directory, find_devices("cpu"), {}, LaunchOptions())
    assert result["status"] == "crashed" and marked(marks[0]) == []


def test_openmp_threads_spin_for_a_bounded_time_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = find_devices("cpu")
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    count = rank_variables(2, None)["GOMP_SPINCOUNT"]
    assert 1_000 <= int(count) <= 30_000 and capture(devices)["variables"]["GOMP_SPINCOUNT"] == count
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "GOMP_SPINCOUNT" not in rank_variables(2, None) and "GOMP_SPINCOUNT" not in capture(devices)["variables"]
