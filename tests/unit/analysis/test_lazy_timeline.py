"""Tables that are made on first use are those that are made at once, wherever they are made; arrays say the same."""

import dataclasses
import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_kineto_hard_cases import GPU, trace
from test_kineto_reader import event, write

from analysis.metrics.kernels.tables import kernel_rows, kernel_times
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.readers.kineto.reader import read
from analysis.timeline import GpuWork, Timeline

ROOT = Path(__file__).resolve().parents[3]
TABLES = ("steps", "operators", "kernels", "ranges", "api", "collectives")


def sample(folder: Path) -> Path:
    """Two steps on a GPU, with communication, copies, kernels out of order and a name that is no text."""
    kernels = [
        event("gemm", 130, 60, "kernel", args={**GPU, "correlation": 4}),
        event("gemm", 20, 40, "kernel", args={**GPU, "correlation": 2}),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 100, "kernel", args={**GPU, "stream": 9}),
        event(7, 200, 5, "kernel", args=GPU),  # type: ignore[arg-type]
        event("7", 210, 5, "kernel", args=GPU),
        event("Memcpy HtoD", 300, 10, "gpu_memcpy", args=GPU),
        event("Memset (Device)", 305, 10, "gpu_memset", args=GPU),
    ]
    calls = [event("cudaLaunchKernel", 10 * n, 1, "cuda_runtime", args={"correlation": n}) for n in (2, 4)]
    steps = [event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(2)]
    operators = [event("aten::mm", 0, 30), event("aten::inner", 5, 5), event("record_param_comms", 45, 3)]
    return write(folder / "rank0.json", [*steps, *operators, *calls, *kernels])


def eager(timeline: Timeline) -> Timeline:
    """The same with its tables given to the constructor."""
    return Timeline(**{field.name: getattr(timeline, field.name) for field in dataclasses.fields(Timeline)})


def assert_same(one: Timeline, other: Timeline) -> None:
    for field in dataclasses.fields(Timeline):
        if field.name in TABLES:
            pd.testing.assert_frame_equal(getattr(one, field.name), getattr(other, field.name))
        else:
            assert getattr(one, field.name) == getattr(other, field.name)


def test_tables_do_not_depend_on_which_is_asked_for_first(tmp_path: Path) -> None:
    path = sample(tmp_path)
    whole = eager(read(path))
    assert type(whole) is Timeline and len(whole.steps) == 2 and len(whole.kernels) == 7
    for order in itertools.permutations(("steps", "kernels", "api", "collectives")):
        found = read(path)
        for name in order:
            pd.testing.assert_frame_equal(getattr(found, name), getattr(whole, name))
        assert_same(found, whole)


def test_a_table_is_made_once_and_nothing_else_is_added_to_it(tmp_path: Path) -> None:
    found = read(sample(tmp_path))
    assert found.kernels is found.kernels and found.operators is found.operators
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        found.nothing_of_this_name  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.rank = 3  # type: ignore[misc]


@pytest.mark.parametrize("asked", [(), ("kernels",), ("steps",), TABLES])
def test_a_timeline_is_the_same_on_the_other_side_of_a_pipe(tmp_path: Path, asked: tuple[str, ...]) -> None:
    path = sample(tmp_path)
    found = read(path)
    for name in asked:
        getattr(found, name)
    assert_same(pickle.loads(pickle.dumps(found)), eager(read(path)))


def test_replacing_a_field_keeps_the_tables(tmp_path: Path) -> None:
    path = sample(tmp_path)
    found = dataclasses.replace(read(path), rank=5)
    assert found.rank == 5
    assert_same(dataclasses.replace(found, rank=read(path).rank), read(path))


def test_arrays_hold_what_the_table_holds(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for work in (read(path).work, eager(read(path)).work):
        kernels = read(path).kernels
        assert len(work) == len(kernels) and len(set(work.names)) == len(work.names)
        assert [work.names[code] for code in work.name.tolist()] == kernels["name"].tolist()
        assert [work.kinds[code] for code in work.kind.tolist()] == kernels["kind"].tolist()
        for column in ("device", "stream", "start", "end"):
            np.testing.assert_array_equal(getattr(work, column), kernels[column])
        assert work.is_kind("memcpy", "memset").tolist() == kernels["kind"].isin(["memcpy", "memset"]).tolist()


def test_sums_on_arrays_are_those_on_tables(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for window in ("steps", "kernels"):
        one, other = temporal_breakdown(read(path), window), temporal_breakdown(eager(read(path)), window)
        assert one == other and one is not None
    assert (one.compute_ns, one.communication_ns, one.overlapped_communication_ns) == (110_000, 100_000, 30_000)
    assert (one.memory_ns, one.span_ns) == (15_000, 295_000)
    times = kernel_times(read(path), window="kernels")
    assert dict(zip(times.names, times.total_ns.tolist(), strict=True)) == {
        "gemm": 100_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 100_000, "7": 10_000, "Memcpy HtoD": 10_000,
        "Memset (Device)": 10_000,
    }  # fmt: skip
    longest = dict(zip(times.names, times.longest_ns.tolist(), strict=True))
    shortest = dict(zip(times.names, times.shortest_ns.tolist(), strict=True))
    assert (longest["gemm"], shortest["gemm"], times.window_ns) == (60_000, 40_000, 295_000)
    assert "Memcpy HtoD" not in kernel_times(read(path), copies=False, window="kernels").names
    pd.testing.assert_frame_equal(kernel_rows(read(path)), kernel_rows(eager(read(path))))


def test_sums_of_gpu_work_do_not_import_pandas(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from analysis.metrics.kernels.tables import kernel_times\n"
        "from analysis.metrics.time.temporal import temporal_breakdown\n"
        "from analysis.readers.kineto.reader import read_ranks\n"
        "(found,) = read_ranks([Path(sys.argv[1])])\n"
        "assert temporal_breakdown(found, 'kernels') and kernel_times(found, window='kernels').names\n"
        "assert 'pandas' not in sys.modules, 'pandas is imported'\n"
        "assert len(found.kernels) == 7 and 'pandas' in sys.modules\n"
    )
    path = sample(tmp_path)
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_table_without_rows_has_no_work() -> None:
    assert len(GpuWork.of_frame(pd.DataFrame())) == 0


def test_events_without_a_phase_are_passed_over_fast(tmp_path: Path) -> None:
    content = json.loads(trace())
    events = [{key: value for key, value in event("a", n, 1).items() if key != "ph"} for n in range(20_000)]
    content["traceEvents"] += [*events, event("last", 1, 1), {**event("b", 1, 1), "ph": "?"}]
    (tmp_path / "a.json").write_text(json.dumps(content))
    found = read(tmp_path / "a.json")
    assert len(found.operators) == 42 and found.problems == () and found.rank == 2
