"""Processes that depend on each other: a rank that hangs, and two calls that want the same folder."""

import time
from collections.abc import Callable

import pytest
from support.cli import ENDLESS, Cli, wait_for
from support.fault_table import Tally
from support.fault_workloads import WORKLOADS
from support.faults import Bench, BrokenError, without_a_traceback

ALL = list(WORKLOADS)
HANGS_SECONDS = "30"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_hangs_is_named_when_time_is_up(victim: int, cli: Cli, tally: Tally) -> None:
    checked = f"ended after {HANGS_SECONDS} s as timeout; where the other rank was in log.txt; no process left"
    with tally.row("throughput, 2 ranks", f"a rank hangs (rank {victim} stopped)", checked) as row:
        sweep = cli.start(*ENDLESS, "--batch-sizes", "2", "--devices", "2", "--timeout-seconds", HANGS_SECONDS)
        wait_for(lambda: sweep.poll() is not None or cli.steps_written(1) > 2, "steps of rank 1")
        assert sweep.poll() is None, "the limit passed before the ranks had begun: this machine is too busy"
        rank = next(process for process in cli.workers() if process.environ()["RANK"] == str(victim))
        rank.suspend()
        _, errors = sweep.communicate(timeout=90)
        (result,) = cli.results()
        row.add(_hang_problem(sweep.returncode, errors, result, cli))


def _hang_problem(code: int, errors: str, result: dict[str, object], cli: Cli) -> str:
    if (code, result["status"]) != (3, "timeout") or "Traceback" in errors:
        return f"exit code {code}, {result['status']}: {errors[-500:]}"
    deadline = time.monotonic() + 10
    while cli.processes():
        if time.monotonic() > deadline:
            return f"processes are left: {cli.processes()}"
        time.sleep(0.05)
    return ""


@pytest.mark.parametrize("workload", ALL)
def test_of_two_calls_at_once_one_is_refused_by_name_or_waits_and_the_other_is_unharmed(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, tries: int
) -> None:
    bench = bench_of(workload)
    kind = "the second waits" if bench.workload.waits else "the second is refused and says by whom"
    with tally.row(
        bench.workload.name, "two at once", f"{kind}; the first ends as an undisturbed one, same files"
    ) as row:
        for _ in range(max(2, tries // 2)):
            row.add(bench.tried(_two_at_once))


def _two_at_once(bench: Bench) -> None:
    bench.fresh()
    calls = [bench.start(), bench.start()]
    ended = [without_a_traceback(call.ended()) for call in calls]
    for call in calls:
        call.check_nothing_left()
    codes = sorted(one.code for one in ended)
    if codes not in ([[0, 0]] if bench.workload.waits else [[0, 2]]):
        raise BrokenError(f"exit codes {codes}: {[one.errors[-300:] for one in ended]}")
    refused = "".join(one.errors for one in ended if one.code)
    if refused and not any(code in refused for code in ("[folder-locked]", "[folder-occupied]")):
        raise BrokenError(f"why one was refused is not said: {refused[-500:]}")
    bench.check_as_undisturbed()
