"""A timeline makes its tables when they are first read, keeps what is derived, and clips work that overlaps."""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.kineto_events import call, event, kernel, write
from support.timelines import timeline

from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline, clip_overlaps, kept

ROOT = Path(__file__).resolve().parents[3]
TABLES = ("steps", "operators", "kernels", "ranges", "api", "host", "collectives", "samples")


def sample(folder: Path) -> Path:
    """Two steps on a GPU, with communication, copies and kernels out of order."""
    kernels = [
        kernel("gemm", 130, 60, correlation=4),
        kernel("gemm", 20, 40, correlation=2),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 100, 9),
        kernel("7", 200, 5),
        kernel("7", 210, 5),
        kernel("Memcpy HtoD", 300, 10, 8) | {"cat": "gpu_memcpy"},
        kernel("Memset (Device)", 305, 10) | {"cat": "gpu_memset"},
    ]
    calls = [call(10 * n, 1, n) for n in (2, 4)]
    steps = [event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(2)]
    operators = [event("aten::mm", 0, 30), event("aten::inner", 5, 5), event("record_param_comms", 45, 3)]
    return write(folder / "rank0.json", [*steps, *operators, *calls, *kernels])


def assert_same(one: Timeline, other: Timeline) -> None:
    for field in dataclasses.fields(Timeline):
        if field.name in TABLES:
            pd.testing.assert_frame_equal(getattr(one, field.name), getattr(other, field.name))
        elif field.init:
            assert getattr(one, field.name) == getattr(other, field.name)


@pytest.mark.parametrize("read_before", [(), ("kernels",), ("steps",), TABLES])
def test_a_timeline_is_the_same_on_the_other_side_of_a_pipe(tmp_path: Path, read_before: tuple[str, ...]) -> None:
    found = read(sample(tmp_path))
    for name in read_before:
        assert getattr(found, name) is getattr(found, name)
    assert_same(pickle.loads(pickle.dumps(found)), read(sample(tmp_path)))


def test_sums_of_gpu_work_do_not_import_pandas(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from analysis.metrics.kernels.tables import kernel_times\n"
        "from analysis.metrics.time.temporal import temporal_breakdown\n"
        "from analysis.readers.kineto.reader import read\n"
        "found = read(Path(sys.argv[1]))\n"
        "time, times = temporal_breakdown(found, 'kernels'), kernel_times(found, window='kernels')\n"
        "assert 'pandas' not in sys.modules, 'pandas is imported'\n"
        "print(time.compute_ns, time.communication_ns, time.overlapped_communication_ns, time.memory_ns)\n"
        "print(dict(zip(times.names, times.total_ns.tolist())))\n"
    )
    command = [sys.executable, "-c", program, str(sample(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sums = {"gemm": 100_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 100_000, "7": 10_000, "Memcpy HtoD": 10_000}
    assert done.stdout.splitlines()[0] == "110000 100000 30000 15000"
    assert eval(done.stdout.splitlines()[1]) == {**sums, "Memset (Device)": 10_000}


def test_what_is_kept_is_computed_once_for_each_timeline() -> None:
    asked = []

    @kept
    def steps_of(one: Timeline, factor: int = 1) -> int:
        asked.append(factor)
        return factor * len(one.steps)

    one, other = timeline(steps=[(0, 0, 10)]), timeline()
    assert [steps_of(one), steps_of(one), steps_of(one, 3), steps_of(one, 3), steps_of(other)] == [1, 1, 3, 3, 0]
    assert asked == [1, 3, 1] and pickle.loads(pickle.dumps(one)).results == one.results


def test_work_of_a_stream_ends_where_the_next_begins() -> None:
    """Streams 7 and 9 of GPU 0 and stream 7 of GPU 1 do not overlap each other; -1 is no known stream."""
    rows = [(0, 7, 0, 12), (0, 7, 10, 20), (0, 9, 5, 30), (1, 7, 8, 9), (0, 7, 20, 25), (0, -1, 0, 9), (0, -1, 5, 9)]
    device, stream, start, end = np.array(rows).T
    clipped, problems = clip_overlaps(device, stream, start, end)
    assert clipped.tolist() == [10, 20, 30, 9, 25, 9, 9] and len(problems) == 1
    # Of two that begin together the longer one stays; 4 of 1,000 ns are programmatic dependent launch, or rounding.
    clipped, problems = clip_overlaps(*np.array([(0, 7, 0, 504), (0, 7, 500, 1000), (0, 7, 500, 600)]).T)
    assert clipped.tolist() == [500, 1000, 500] and len(problems) == 1
    assert clip_overlaps(*np.array([(0, 7, 0, 504), (0, 7, 500, 1000)]).T)[1] == ()
