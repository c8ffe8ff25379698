"""A timeline makes its tables when they are first read, keeps what is derived, and clips work that overlaps."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.timelines import call, event, kernel, write

from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline, clip_overlaps

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
