"""One run recorded by Nsight Systems and by the PyTorch profiler at once: both readers tell the same times."""

import subprocess

import pytest
from support.cli import ROOT
from test_nsys_recording import record, skip_unless_nsys_can_record_nvtx

from analysis.readers import nsys
from analysis.readers.kineto import reader as kineto
from analysis.timeline import Timeline

pytestmark = pytest.mark.timeout(300)

# Step 2 is recorded too; in the first recorded step the profilers' own first calls lie between the two.
STEPS = (3, 4, 5, 6, 7)
PHASES = ("data", "forward", "backward", "optimizer")

# The observers of a real trial around work of known kind; the phases' lengths differ, so that a mix-up shows.
PROGRAM = """
import sys, time
from pathlib import Path
import torch
from bench.profilers.kineto import Cycle
from bench.profilers.kineto_trace import TraceObserver
from bench.profilers.range_observer import RangeObserver
from bert.observer import Observers

torch.set_num_threads(1)
# The trace first: starting and writing it lies outside the ranges that nsys records.
observers = Observers([TraceObserver(Path(sys.argv[1]), 0, [Cycle(2, 2, 8)]), RangeObserver(0, 2, 8)])
matrix = torch.rand(400, 400)
observers.run_begin()
for step in range(10):
    observers.step_begin(step)
    for number, phase in enumerate(("data", "forward", "backward", "optimizer")):
        with observers.phase(phase):
            time.sleep(0.01 + 0.006 * number + 0.002 * step)
            matrix @ matrix
    observers.step_end(step, None)
observers.run_end()
"""


@pytest.fixture(scope="module")
def timelines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Timeline, Timeline]:
    """What the reader of the PyTorch profiler's trace and that of nsys' export return."""
    skip_unless_nsys_can_record_nvtx()
    folder = tmp_path_factory.mktemp("both")
    (folder / "program.py").write_text(PROGRAM)
    trace, database = folder / "trace-rank0.json.gz", folder / "report.sqlite"
    record(folder, ["program.py", str(trace)], [], {"PYTHONPATH": str(ROOT)})
    assert trace.is_file()
    command = ["nsys", "export", "--quiet=true", "--type=sqlite", f"--output={database}", "report.nsys-rep"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=200)
    (found,) = nsys.read(database)
    return kineto.read(trace), found


def test_both_have_the_steps_that_both_recorded(timelines: tuple[Timeline, Timeline]) -> None:
    from_torch, from_nsys = timelines
    assert from_torch.steps["step"].tolist() == [2, *STEPS]
    assert set(from_nsys.steps["step"]) >= {2, *STEPS}


def test_step_times_agree(timelines: tuple[Timeline, Timeline]) -> None:
    agree([(step_ns(timelines[0], step), step_ns(timelines[1], step)) for step in STEPS])


def test_phase_times_agree(timelines: tuple[Timeline, Timeline]) -> None:
    for phase in PHASES:
        pairs = [(phase_ns(timelines[0], step, phase), phase_ns(timelines[1], step, phase)) for step in STEPS]
        agree(pairs)
        assert all(one > 1e7 for one, _ in pairs), "as long as it slept"


def agree(pairs: list[tuple[float, float]]) -> None:
    """The PyTorch profiler's range is around that of nsys: never shorter, and longer only where the program was held up
    between their two calls. Of five at least one was not; a reader that is wrong would be wrong in all."""
    for one, other in pairs:
        assert one > other - 1e5, f"{pairs} ns"
    assert min(one / other for one, other in pairs) == pytest.approx(1, abs=0.02), f"{pairs} ns"


def step_ns(timeline: Timeline, step: int) -> float:
    row = timeline.steps.set_index("step").loc[step]
    return float(row["end"] - row["start"])


def phase_ns(timeline: Timeline, step: int, phase: str) -> float:
    begin, end = timeline.steps.set_index("step").loc[step, ["start", "end"]]
    ranges = timeline.ranges
    inside = ranges[(ranges["start"] >= begin) & (ranges["end"] <= end) & (ranges["name"] == f"bertbench:{phase}")]
    (length,) = (inside["end"] - inside["start"]).tolist()
    return float(length)
