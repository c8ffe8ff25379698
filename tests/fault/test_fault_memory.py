"""Memory that is refused: a limit on every process of a call."""

import random
import resource
from collections.abc import Callable

import pytest
from support.fault_table import Tally
from support.fault_workloads import WORKLOADS
from support.faults import Bench, BrokenError, without_a_traceback

ALL = list(WORKLOADS)
MIB = 2**20
WAITS_SECONDS = 120.0
# Where there is no memory for the first call in a thread, Thread.start of CPython waits for ever: what is left then is
# to kill it, and to lose nothing.
CPYTHON_HANGS = "Exception ignored in thread started by"
# Private memory of the largest process of an undisturbed call is somewhere in between.
LEAST_MIB, MOST_MIB = 64, 1200
# The last two are all that oneDNN says, and all that the C++ runtime says when it ends a process.
WORDS = ("memory", "cannot allocate", "can't start new thread", "could not create a primitive", "bad_alloc")


@pytest.mark.parametrize("workload", ALL)
def test_memory_that_is_refused_loses_nothing(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, tries: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    least, most = LEAST_MIB, MOST_MIB
    checked = "an exit code, one message, no temporary file left; with enough memory as above (RLIMIT_DATA)"
    with tally.row(bench.workload.name, "out of memory", checked) as row:
        for _ in range(4 * tries):
            limit = int(least * (most / least) ** drawn.random())
            enough: list[bool] = []
            wrong = bench.tried(_starve, limit, enough)
            if enough and not wrong:
                most = limit  # with that much it works: nothing was tried
                continue
            row.add(f"{limit} MiB: {wrong}" if wrong else "")
            if row.tries >= tries:
                break


def _starve(bench: Bench, limit_mib: int, enough: list[bool]) -> None:
    bench.fresh()
    call = bench.start({resource.RLIMIT_DATA: limit_mib * MIB})
    try:
        ended = call.ended(WAITS_SECONDS)
    except BrokenError as error:
        if CPYTHON_HANGS not in str(error):
            raise
        bench.finish(bench.look(call))
        return
    if ended.code == 0:
        enough.append(True)
        return
    without_a_traceback(ended)
    kept = bench.look(call)
    if not any(word in (ended.errors + ended.output).lower() for word in WORDS):
        raise BrokenError(f"memory is not named: {ended.errors[-800:]}")
    if "bertbench: " in ended.errors:  # else a library has ended the process
        bench.check_no_left_over()
    bench.finish(kept, more=("--retry-failed",) if "throughput" in bench.workload.words else ())
