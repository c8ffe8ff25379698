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
from support.faults import Bench, Call, kills
from support.process_runs import survives

from bench.run import processes

# Processes that do the work of each command, beside the one that was called, by a word of their command line.
LAUNCHER, RANK, WORKER = processes.__file__, "-u", "--multiprocessing-fork"
CHILDREN = [
    ("throughput", LAUNCHER),
    ("throughput", RANK),
    ("train", LAUNCHER),
    ("train", RANK),
    ("data-pretrain", WORKER),
    ("data-squad", WORKER),
]


def test_killed_at_random_points_the_same_command_comes_to_the_same_end(
    bench: Bench, kill_count: int, drawn: random.Random
) -> None:
    assert sum(kills(bench, kill_count, drawn)) == kill_count


def test_a_training_of_two_ranks_killed_at_random_points_has_the_losses_of_a_whole_one(
    tmp_path: Path, kill_count: int, drawn: random.Random
) -> None:
    data = training_runs.shards(tmp_path / "data")
    changes = {"strategy": "ddp", "world_size": 2, "save_every": 1}
    assert survives(tmp_path, data, kill_count, drawn.randrange(10_000), steps=2 * kill_count, **changes) > 0


def test_a_request_to_end_is_followed_and_said(bench: Bench, tries: int, drawn: random.Random) -> None:
    for number in range(tries):
        bench.fresh()
        call = bench.start()
        try:
            call.process.wait(timeout=drawn.uniform(0.0, bench.life))
        except subprocess.TimeoutExpired:
            call.send(signal.SIGTERM, everything=number % 2 == 1)
        code = call.ended_in_words(60)
        if code == -signal.SIGTERM:
            assert not bench.out.exists(), "died by SIGTERM without a word when it had begun to write"
        else:  # Python ends itself by SIGINT where the interrupt came inside of an exec(); shells give 130 for both
            assert code in (0, 130, 143, -signal.SIGINT), call.text()[-500:]
            assert code == 0 or "interrupted" in call.text()
        bench.finish(bench.look(call, by_itself=True))


@pytest.mark.parametrize(("workload", "word"), CHILDREN)
def test_a_killed_child_is_named_and_the_command_can_be_given_again(
    workload: str, word: str, bench_of: Callable[[str], Bench], tries: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    for _ in range(max(1, tries // 2)):
        bench.fresh()
        call = bench.start()
        while not _kill_one(call, word, drawn.uniform(0.0, 0.5 * bench.life)):  # it had ended before
            bench.fresh()
            call = bench.start()
        code = call.ended_in_words()
        assert code in (0, 2, 3), call.text()[-500:]
        if code:
            assert "SIGKILL" in call.text() or "worker process ended" in call.text(), call.text()[-500:]
        bench.finish(bench.look(call, by_itself=True), *(["--retry-failed"] if workload == "throughput" else []))


def _kill_one(call: Call, word: str, after: float) -> bool:
    """Kill the first process of that kind, some time after it was met; False where the call ended before."""
    while call.process.poll() is None:
        for process in call.processes():
            try:
                if word in process.cmdline():
                    time.sleep(after)
                    process.kill()
                    return True
            except psutil.Error:
                continue
        time.sleep(0.005)
    return False
