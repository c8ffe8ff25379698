"""How the end of a trial becomes a status and a reason, and that nothing of a guarded command is left."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cli import lives, wait_for

from bench.launch.torchrun import FAILED, KILLED, ONE_NODE, Ending
from bench.launch.world import AGENT_STORE_VARIABLE
from bench.run.processes import start_guarded
from bench.run.resources import ran_out_of_memory
from bench.run.supervise import ALONE, LaunchOptions, outcome
from bench.run.worker import _explain
from common.errors import StorageError, UsageError
from records.files import read_record, write_record
from records.run import TrialDirectory
from records.trial import Trial

ROOT = Path(__file__).parents[3]
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer"
TWO = Trial(world_size=2, strategy="ddp")
JOINED = LaunchOptions(leader=object())  # type: ignore[arg-type]


@pytest.fixture
def directory(tmp_path: Path) -> TrialDirectory:
    (tmp_path / "log.txt").write_text("something\n=====\nthe last words\n")
    return TrialDirectory(tmp_path)


def report(status: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "reason": reason, "time": 1.0, **more}


A, LATE, OOM = report("crashed", "a"), report("crashed", "b", time=2.0), report("oom", "can't allocate", time=2.0)
PEER, REFUSED = report("crashed", LOST), report("refused", "other words", time=2.0, code="vocabulary-mismatch")
CODES = {"ok": "", "oom": "out-of-memory", "refused": "vocabulary-mismatch", "crashed": "rank-failed"}


@pytest.mark.parametrize(
    ("reports", "ending", "exit_code", "oom_killed", "status", "reason"),
    [  # an ending is torchrun's, of two ranks; None with an exit code is a single rank
        ([], None, 0, False, "ok", ""),
        # Memory on any rank wins over what it caused, a refusal over an exception, the earlier of two exceptions.
        ([A, OOM], None, 1, False, "oom", "rank 1: can't allocate"),
        ([A, REFUSED], None, 1, False, "refused", "other words"),
        ([LATE, A], None, 1, False, "crashed", "rank 1: a"),
        ([PEER, LATE], None, 1, False, "crashed", "rank 1: b"),
        # What torchrun saw of the first rank.
        ([PEER], Ending(KILLED, "rank 1 died by SIGSEGV"), 1, False, "crashed", "rank 1 died by SIGSEGV"),
        ([], Ending(KILLED, "rank 1 died by SIGKILL"), 1, True, "oom", "rank 1 died by SIGKILL"),
        ([A], Ending(FAILED, "rank 1 ended with exit code 7", 2.0), 1, False, "crashed", "rank 0: a"),
        ([], Ending(FAILED, "rank 1 ended with exit code 7"), 1, False, "crashed", "rank 1 ended with exit code 7"),
        ([], None, 139, False, "crashed", "rank 0 died by SIGSEGV; log.txt ends: something | the last words"),
        ([], None, 137, True, "oom", "rank 0 died by SIGKILL"),
        ([], None, 7, False, "crashed", "rank 0 ended with exit code 7"),
        ([], None, -9, False, "crashed", "the launcher died by SIGKILL"),
    ],
)
def test_the_cause_of_a_failure_is_status_reason_and_code(
    reports: list[dict[str, Any]],
    ending: Ending | None,
    exit_code: int,
    oom_killed: bool,
    status: str,
    reason: str,
    directory: TrialDirectory,
) -> None:
    for rank, one in enumerate(reports):
        write_record(directory.failure_json(rank), one)
    if ending is not None:
        (directory.path / "torchrun.json").write_bytes(msgspec.json.encode(ending))
    seen = outcome(TWO if ending else Trial(), directory, LaunchOptions(), exit_code, False, oom_killed)
    assert (seen[0], seen[2]) == (status, CODES[status]) and seen[1].startswith(reason)


def test_a_rank_of_a_launch_that_only_lost_another_leaves_the_cause_to_the_launcher(directory: TrialDirectory) -> None:
    write_record(directory.failure_json(0), report("crashed", LOST))
    assert "which the launcher names" in outcome(TWO, directory, JOINED, 3, False, False)[1]


def test_a_trial_out_of_time_says_how_far_it_came(directory: TrialDirectory) -> None:
    status, reason, code = outcome(Trial(), directory, LaunchOptions(timeout_seconds=5), 1, True, False)
    assert (status, code) == ("timeout", "rank-failed") and "5 s" in reason and "log.txt" in reason


TORCHRUN = """
epoch 1: loss 0.5
ValueError: handled by the script
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in <module>
[rank1]: MyError: shapes 3 and 4 do not fit
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
exitcode  : 1 (pid: 5)
"""


def test_a_crash_under_torchrun_names_the_exception_of_the_rank(directory: TrialDirectory) -> None:
    directory.log.write_text(TORCHRUN)
    script = Trial(kind="measure", command=("torchrun", "train.py"), precision="")
    status, reason, _ = outcome(script, directory, LaunchOptions(program=("torchrun",)), 1, False, False)
    assert status == "crashed" and reason.endswith("log.txt has: MyError: shapes 3 and 4 do not fit")


@pytest.mark.parametrize(("timed_out", "by"), [(False, "SIGTERM"), (True, "the time limit")])
def test_a_script_that_is_stopped_keeps_its_steps(timed_out: bool, by: str, directory: TrialDirectory) -> None:
    options = LaunchOptions(program=("train",), timeout_seconds=5, stopped_by=lambda: "" if timed_out else by)
    script = Trial(kind="measure", command=("train",), precision="")
    without = outcome(script, directory, options, 137, timed_out, False)
    assert without[0] == ("timeout" if timed_out else "interrupted"), "no step was made"
    directory.steps_csv(0).write_text("step\n0\n")
    assert outcome(script, directory, options, 137, timed_out, False) == ("ok", f"stopped by {by}", "")


def test_a_rank_writes_down_the_code_of_its_refusal(tmp_path: Path) -> None:
    directory = TrialDirectory(tmp_path)
    directory.trial_json.write_text('{"schema_version": 9999}', encoding="utf-8")
    argv = [sys.executable, "-m", "bench.run.worker", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "RANK": "3"}, timeout=120, check=False)
    failure = read_record(directory.failure_json(3))
    assert done.returncode == 3 and (failure["status"], failure["code"]) == ("refused", "record-version")


def test_a_rank_that_meets_a_full_disk_is_run_again_and_one_that_finds_no_memory_is_oom() -> None:
    assert _explain(StorageError("disk-full", "the disk is full"))[::2] == ("interrupted", "disk-full")
    assert _explain(RuntimeError("DefaultCPUAllocator: can't allocate memory"))[::2] == ("oom", "out-of-memory")
    status, reason, _ = _explain(MemoryError(), 2**28)
    assert status == "oom" and "0.25 GiB" in reason and reason.endswith("MemoryError")
    assert _explain(UsageError("option-conflict", "there is no such trial"))[::2] == ("refused", "option-conflict")
    assert _explain(RuntimeError("a shape does not fit"))[::2] == ("crashed", "rank-failed")


def test_a_single_rank_has_the_variables_of_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import json, os; print(json.dumps({{name: os.environ[name] for name in {list(ALONE)}}}))\n")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *ONE_NODE, str(program)]
    seen = json.loads(subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert seen | {name: ALONE[name] for name in ("MASTER_PORT", AGENT_STORE_VARIABLE)} == ALONE


@pytest.mark.parametrize(("program", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("true", 0)])
def test_a_guarded_command_has_its_exit_code_and_its_daemons_are_killed(
    program: str, code: int, tmp_path: Path
) -> None:
    daemon = f"setsid sleep 300 & echo $! > {tmp_path}/pid; {program}"
    with (tmp_path / "log").open("w") as log:
        guard = start_guarded(["sh", "-c", daemon], log.fileno())
    assert guard.wait(timeout=60) == code
    assert not lives(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("ends", ["end_guarded", "kill -9 of the parent", "kill -9 of the guard"])
def test_a_guarded_command_ends_with_its_parent_and_with_its_guard(ends: str, tmp_path: Path) -> None:
    """The rank below a launcher in a session of its own stands for those of torchrun."""
    rank = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    between = (
        "import subprocess, sys; from bench.run.processes import die_with_parent;"
        f"subprocess.run([sys.executable, '-c', {rank!r}], start_new_session=True, preexec_fn=die_with_parent)"
    )
    parent = (
        "import sys, time; from bench.run.processes import *;"
        f"guard = start_guarded([sys.executable, '-c', {between!r}], 1); print(guard.pid, flush=True);"
        "sys.stdin.read(1); end_guarded(guard); time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        guard = int(process.stdout.readline())
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the rank")
        pid = int((tmp_path / "pid").read_text())
        if ends == "end_guarded":
            process.stdin.write(b"x")
            process.stdin.flush()
        else:
            os.kill(process.pid if "parent" in ends else guard, signal.SIGKILL)
        wait_for(lambda: not lives(pid) and not lives(guard), "the end of the rank", seconds=10)
        process.kill()


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "x"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("can't start new thread"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (ImportError("libfoo.so: cannot open shared object file"), False),
        (OSError(errno.ENOSPC, "x"), False),
    ],
)
def test_an_error_that_says_or_comes_from_a_lack_of_memory_is_known(error: Exception, is_memory: bool) -> None:
    assert ran_out_of_memory(error) is is_memory
    try:
        raise ValueError("cannot start") from error
    except ValueError as raised:
        assert ran_out_of_memory(raised) is is_memory
