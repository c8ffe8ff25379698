"""Processes that end at a moment nobody chose: kill -9 of the whole, of a child, and a request to end."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support import training_runs
from support.fault_table import Tally
from support.fault_workloads import WORKLOADS
from support.faults import Bench, BrokenError, Call, kills, without_a_traceback
from support.killed_runs import survives

from bench.run import processes
from bench.run.processes import send

ALL = list(WORKLOADS)
# Processes that do the work of each command, beside the one that was called, by a word of their command line.
LAUNCHER, RANK, WORKER = processes.__file__, "-u", "--multiprocessing-fork"
CHILDREN = {
    "throughput": (LAUNCHER, RANK),
    "train": (LAUNCHER, RANK),
    "data-pretrain": (WORKER,),
    "data-squad": (WORKER,),
}
KEPT = (
    "readable; nothing finished lost or changed; no process or shared memory left; the re-run ends as an undisturbed "
    "one, same files"
)


@pytest.mark.parametrize("workload", ALL)
def test_killed_at_random_points_the_same_command_comes_to_the_same_end(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, kills_wanted: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    with tally.row(bench.workload.name, "kill -9 at random points", KEPT) as row:
        for own, wrong in kills(bench, kills_wanted, drawn):
            row.add(wrong, own)


def test_a_training_of_two_ranks_killed_at_random_points_has_the_losses_of_a_whole_one(
    tmp_path: Path, tally: Tally, kills_wanted: int, drawn: random.Random
) -> None:
    data = training_runs.shards(tmp_path / "data")
    with tally.row(
        "training loop, 2 ranks", "kill -9 at random points", "checkpoints whole; losses equal to the bit"
    ) as row:
        changes = {"strategy": "ddp", "world_size": 2, "save_every": 1}
        seed = drawn.randrange(10_000)
        row.add(tries=survives(tmp_path, data, kills_wanted, seed, steps=2 * kills_wanted, **changes))


@pytest.mark.parametrize("workload", ALL)
def test_a_request_to_end_is_followed_and_said(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, tries: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    checked = "exit code 130, or 0 with all saved; said, no traceback; no temporary file left; then as above"
    with tally.row(bench.workload.name, "SIGTERM", checked) as row:
        for number in range(tries):
            row.add(bench.tried(_ask_to_end, drawn, number % 2 == 1))


def _ask_to_end(bench: Bench, drawn: random.Random, everything: bool) -> None:
    bench.fresh()
    call = bench.start()
    try:
        call.process.wait(timeout=drawn.uniform(0.0, bench.life))
    except subprocess.TimeoutExpired:
        send([call.process.pid, *(call.left() if everything else ())], signal.SIGTERM)
    ended = without_a_traceback(call.ended(60))
    if ended.code == -signal.SIGTERM:  # before anything of ours could run
        if bench.out.exists():
            raise BrokenError("died by SIGTERM without a word when it had begun to write")
    # Python ends itself by SIGINT where the interrupt came inside of an exec(); shells give 130 for both.
    elif ended.code in (130, -signal.SIGINT):
        if "interrupted" not in ended.errors:
            raise BrokenError(f"exit code 130 without a word: {ended.errors[-500:]}")
    elif ended.code != 0:
        raise BrokenError(f"exit code {ended.code}: {ended.errors[-500:]}")
    kept = bench.look(call)
    bench.check_no_left_over()
    bench.finish(kept)


@pytest.mark.parametrize("workload", list(CHILDREN))
def test_a_killed_child_is_named_and_the_command_can_be_given_again(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, tries: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    checked = "exit code 2 or 3, the child named in one message; no temporary file left; then as above"
    with tally.row(bench.workload.name, "kill -9 of a child", checked) as row:
        for number in range(tries):
            words = CHILDREN[workload]
            row.add(bench.tried(_kill_a_child, words[number % len(words)], drawn))


def _kill_a_child(bench: Bench, word: str, drawn: random.Random) -> None:
    for _ in range(10):
        bench.fresh()
        call = bench.start()
        if _kill_one(call, word, drawn.uniform(0.0, 0.5 * bench.life)):
            break
        call.kill(everything=True)
    else:
        raise BrokenError(f"no {word} was met")
    ended = without_a_traceback(call.ended())
    kept = bench.look(call)
    bench.check_no_left_over()
    if ended.code not in (0, 2, 3):
        raise BrokenError(f"exit code {ended.code}: {ended.errors[-500:]}")
    if ended.code and not ("SIGKILL" in ended.output + ended.errors or "worker process ended" in ended.errors):
        raise BrokenError(f"what was killed is not named: {ended.output[-300:]} {ended.errors[-500:]}")
    bench.finish(kept, more=("--retry-failed",) if "throughput" in bench.workload.words else ())


def _kill_one(call: Call, word: str, after: float) -> bool:
    """Kill the first process of that kind, some time after it was met; False where the call ended before."""
    while call.process.poll() is None:
        for pid in call.left():
            try:
                words = psutil.Process(pid).cmdline()
                if word in words:
                    time.sleep(after)
                    psutil.Process(pid).kill()
                    return True
            except psutil.Error:
                continue
        time.sleep(0.005)
    return False
