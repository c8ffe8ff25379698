"""What the CPU did in a gap: by hand on small traces, by SQL on a public one."""

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shared_files
from support.kineto_events import event, write
from support.nsys_export import Export, kernel, nvtx, tid
from support.timelines import timeline

from analysis.diagnose.idle import diagnosis, gaps
from analysis.metrics.time.host_activity import HostActivity, activity_of
from analysis.metrics.time.idle import idle_causes, idle_frame
from analysis.metrics.time.idle_gaps import PAUSE
from analysis.readers.kineto.reader import read as read_kineto
from analysis.readers.nsys.reader import read as read_nsys

US, MS = 1_000, 1_000_000
LAUNCH = "cudaLaunchKernel"


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("dlopen(libcuda.so.1)", "library loading"),
        ("cuLibraryLoadData", "library loading"),
        ("cuModuleLoadDataEx", "library loading"),
        ("Lazy Function Loading", "library loading"),
        ("hipModuleLoad", "library loading"),
        ("cudaMalloc", "memory allocation"),
        ("cudaHostRegister", "memory allocation"),
        ("cuMemAddressReserve", "memory allocation"),
        ("hipFree", "memory allocation"),
        ("munmap", "memory allocation"),
        ("cudaLaunchKernelExC", "launching"),
        ("hipExtModuleLaunchKernel", "launching"),
        ("cudaGraphLaunch", "launching"),
        ("cudaMemcpyAsync", "launching"),
        ("cudaMemcpy", "copying"),
        ("cudaStreamSynchronize", "synchronization"),
        ("cudaEventQuery", "synchronization"),
        ("sem_timedwait", "synchronization"),
        ("pthread_cond_wait", "synchronization"),
        ("epoll_wait", "synchronization"),
        ("nanosleep", "synchronization"),
        ("open64", "file access"),
        ("read", "file access"),
        ("torch/nn/modules/module.py(1743): _call_impl", "Python"),
        ("<built-in method zeros of type object>", "Python"),
        ("profiler: Activity Buffer Request", "profiler"),
        ("cudaEventRecord", "other calls"),
        ("reader of my own", "other calls"),
    ],
)
def test_calls_are_known_by_their_names(name: str, activity: str) -> None:
    assert activity_of(name) == activity


def gap(**more: Any) -> dict[tuple[str, str], int]:
    """What the CPU did from 100 to 1,100 us between two kernels; the second is launched on "main" from 1,090."""
    calls = [(LAUNCH, 0, 5 * US, 1), (LAUNCH, 1090 * US, 1110 * US, 2)]
    trace = timeline(
        kernels=[("gemm", 7, 10 * US, 100 * US, 1), ("gelu", 7, 1100 * US, 1200 * US, 2)],
        api=[*calls, *more.pop("api", ())],
        **more,
    )
    found = idle_causes(trace)
    assert found is not None and found.spread is not None
    (largest, *_) = found.spread.largest
    parts = dict(HostActivity(trace, {}).during(100 * US, 1100 * US).parts)
    assert sum(parts.values()) == largest.length_ns == 1000 * US
    assert sum(largest.activities.values()) == 1000 * US
    return {key: ns // US for key, ns in parts.items()}


def test_each_moment_goes_to_the_innermost_call_and_the_rest_to_nothing() -> None:
    """An operator 200..600 calls cudaMalloc 300..400, which calls mmap 310..390: 300, 100 and 0 us; a read of 50."""
    found = gap(
        operators=[("aten::empty", 200 * US, 600 * US)],
        api=[("cudaMalloc", 300 * US, 400 * US)],
        host=[("mmap", 310 * US, 390 * US), ("read", 700 * US, 750 * US)],
    )
    assert found == {
        ("nothing recorded", ""): 540,
        ("operators", "aten::empty"): 300,
        ("memory allocation", "cudaMalloc"): 100,
        ("file access", "read"): 50,
        ("launching", LAUNCH): 10,
    }


@given(
    st.lists(
        st.tuples(st.sampled_from(("operators", "api", "host")), st.integers(0, 60), st.integers(1, 40)), max_size=8
    )
)
def test_the_activities_of_a_gap_are_those_of_each_nanosecond(calls: list[tuple[str, int, int]]) -> None:
    names = {"operators": "aten::add", "api": "cudaMalloc", "host": "train.py(1): step"}
    rows: list[tuple[str, int, int]] = []
    for kind, start, length in calls:  # calls nest
        if all(
            start >= b
            or start + length <= a
            or (a <= start and start + length <= b)
            or (start <= a and b <= start + length)
            for _, a, b in [*rows, ("", 70, 75)]
        ):
            rows.append((kind, start, start + length))
    tables = {kind: [(names[kind], *span) for own, *span in rows if own == kind] for kind in names}
    tables["api"].append((LAUNCH, 70, 75, 1))
    trace = timeline(kernels=[("a", 7, 0, 10), ("b", 7, 80, 90, 1)], **tables)
    calls = [row for row in [*rows, ("api", 70, 75)] if row[0] == "api"]
    rows = [row for row in rows if row[0] != "host" or not any(a <= row[1] and row[2] <= b for _, a, b in calls)]
    expected: dict[str, int] = {}
    depth = ("host", "operators", "api")
    for moment in range(10, 80):
        there = [row for row in [*rows, ("launch", 70, 75)] if row[1] <= moment < row[2]]
        # The one that began last; of several, the shortest; of the same span, the innermost kind.
        inner = max(there, key=lambda row: (row[1], -row[2], (*depth, "launch").index(row[0])), default=("", 0, 0))
        expected[inner[0]] = expected.get(inner[0], 0) + 1
    called = {"operators": "operators", "memory allocation": "api", "Python": "host", "launching": "launch"}
    found = HostActivity(trace, {}).during(10, 80).activities
    assert {called.get(activity, ""): length for activity, length in found.items()} == expected


def test_a_library_that_is_loaded_inside_a_call_is_told_from_the_call() -> None:
    found = gap(api=[("cudaMalloc", 300 * US, 800 * US)], host=[("dlopen(libcuda.so.1)", 400 * US, 700 * US)])
    assert found["library loading", "dlopen(libcuda.so.1)"] == 300 and found["memory allocation", "cudaMalloc"] == 200


def test_functions_of_python_hold_what_they_call_also_of_the_same_length() -> None:
    function = "train.py(10): step"
    found = gap(host=[(function, 200 * US, 900 * US)], operators=[("aten::mm", 200 * US, 900 * US)])
    assert ("operators", "aten::mm") in found and ("Python", function) not in found


def test_another_thread_is_asked_only_where_the_launching_one_recorded_less_than_half() -> None:
    waits = [("poll", 100 * US, 1100 * US, "worker")]
    assert gap(host=waits)["nothing recorded", ""] == 990
    # A thread that launches too, and works while "main" does nothing.
    both = gap(host=waits, api=[("hipFree", 120 * US, 820 * US, -1, "autograd"), (LAUNCH, 2, 3, 1, "autograd")])
    assert both == {("nothing recorded", ""): 990, ("launching", LAUNCH): 10}
    trace = timeline(
        kernels=[("a", 7, 10 * US, 100 * US, 1), ("b", 7, 1100 * US, 1200 * US, 2), ("c", 7, 1300 * US, 1400 * US, 3)],
        api=[
            (LAUNCH, 0, 5 * US, 1, "autograd"),
            ("cudaFree", 120 * US, 820 * US, -1, "autograd"),
            (LAUNCH, 1090 * US, 1110 * US, 2),
            (LAUNCH, 1290 * US, 1299 * US, 3),
        ],
    )
    parts = HostActivity(trace, {}).during(100 * US, 1100 * US).parts
    assert parts == {("memory allocation", "cudaFree"): 700 * US, ("nothing recorded", ""): 300 * US}


def test_waits_for_data_count_whatever_is_called_in_them() -> None:
    trace = timeline(
        kernels=[("gemm", 7, 10 * US, 100 * US, 1), ("gelu", 7, 1100 * US, 1200 * US, 2)],
        api=[(LAUNCH, 0, 5 * US, 1), (LAUNCH, 1090 * US, 1110 * US, 2)],
        ranges=[("bertbench:data", 150 * US, 950 * US)],
        host=[("pthread_cond_wait", 200 * US, 900 * US)],
    )
    found = idle_causes(trace)
    assert found is not None and found.spread is not None
    assert found.spread.largest[0].activities == {
        "data loading": 800 * US,
        "nothing recorded": 190 * US,
        "launching": 10 * US,
    }


@pytest.mark.parametrize(("kernel_name", "length", "loads"), [("new", 2, True), ("gemm", 2, False), ("new", 0, False)])
def test_a_slow_first_launch_of_a_kernel_loads_it(kernel_name: str, length: int, loads: bool) -> None:
    """A launch that lasts 2 ms into an empty queue, of a kernel that ran before or not."""
    end = 4 * MS + length * MS + 5 * US
    trace = timeline(
        kernels=[("gemm", 7, 10 * US, 100 * US, 1), (kernel_name, 7, end, end + MS, 2)],
        api=[(LAUNCH, 0, 5 * US, 1), (LAUNCH, 4 * MS, end - US, 2)],
    )
    activities = HostActivity(trace, {}).during(100 * US, end).activities
    assert ("library loading" in activities) == loads


def series(lengths: list[int], **more: Any) -> Any:
    """Kernels of 100 us, and before each but the first a gap of so many us, launched at its end."""
    kernels, api, now = [], [(LAUNCH, 0, 1 * US, 1)], 2
    for number, length in enumerate([0, *lengths], start=1):
        now += length
        if length:
            api.append((LAUNCH, (now - 5) * US, now * US, number))
        kernels.append(("gemm", 7, now * US, (now + 100) * US, number))
        now += 100
    found = idle_causes(timeline(kernels=kernels, api=api, **more))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("lengths", "repeats"),
    [
        ([20] * 40, 40 * 20),  # four in each tenth
        ([20] * 39 + [40], 40 * 20),  # the median tenth has 80
        ([50, 50, 50] + [6] * 37, 240),  # three long gaps at the beginning: the median tenth has 24
        ([40], 0),  # one gap repeats nothing
        ([40, 40], 0),
        ([40, 40, 40], 120),
    ],
)
def test_without_steps_what_repeats_is_in_the_median_tenth_of_the_gaps(lengths: list[int], repeats: int) -> None:
    found = series(lengths)
    assert found.spread.repeating_ns["launch_bound"] == repeats * US
    rows = idle_frame([found]).set_index("cause")["idle_ms"]
    assert rows.sum() == pytest.approx(sum(lengths) / 1e3)
    assert rows["launch_bound"] == pytest.approx(repeats / 1e3)
    assert rows[PAUSE] == pytest.approx((sum(lengths) - repeats) / 1e3)


def test_start_up_and_tear_down_have_rows_of_their_own() -> None:
    """A step of 0..1,000 us with kernels 300..400 and 500..600: 300 before, 100 between, 400 after."""
    trace = timeline(
        steps=[(0, 0, 1000 * US)],
        kernels=[("gemm", 7, 300 * US, 400 * US, 1), ("gelu", 7, 500 * US, 600 * US, 2)],
        api=[(LAUNCH, 290 * US, 299 * US, 1), (LAUNCH, 450 * US, 480 * US, 2)],
        ranges=[("bertbench:data", 0, 100 * US)],
    )
    found = idle_causes(trace)
    assert found is not None
    rows = idle_frame([found]).set_index("cause")["idle_ms"]
    assert {cause: ms for cause, ms in rows.items() if ms} == {
        "start_up": 0.3,
        PAUSE: pytest.approx(0.08),
        "other": pytest.approx(0.02),
        "tear_down": 0.4,
    }
    assert diagnosis([found]).launches == 0  # one gap in one step


def test_kineto_s_functions_and_overhead_are_read_from_ten_microseconds_on(tmp_path: Path) -> None:
    events = [
        event("aten::mm", 0, 5),
        event("train.py(10): step", 0, 10, "python_function"),
        event("train.py(11): short", 0, 9, "python_function"),
        event("Activity Buffer Request", 20, 30, "overhead", pid=-1, tid=0),
        event("Lazy Function Loading", 60, 30, "overhead"),
    ]
    host = read_kineto(write(tmp_path / "trace.json", events)).host
    assert list(zip(host["name"], host["end"] - host["start"], strict=True)) == [
        ("train.py(10): step", 10 * US),
        ("profiler: Activity Buffer Request", 30 * US),
        ("Lazy Function Loading", 30 * US),
    ]
    assert host["thread"].tolist()[1:] == ["", ""] and host["thread"].iloc[0] != ""


def test_nsys_calls_of_the_system_and_its_own_overhead_are_read(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite").strings(i1="gemm", i2="read", i3="dlopen(libcuda.so.1)", i4="Flush")
    row = {"globalTid": tid(40), "returnValue": 0}
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", " ".join(kernel(0, 1, 1)), [kernel(100 * US, 200 * US, 1)])
    export.table("NVTX_EVENTS", " ".join(nvtx(0, 1)), [nvtx(0, 10)])
    columns = "start end globalTid nameId returnValue"
    calls = [{"start": 0, "end": 20 * US, "nameId": 2, **row}, {"start": 0, "end": 9 * US, "nameId": 2, **row}]
    own = [{"start": 50, "end": 20 * US, "nameId": number, **row} for number in (3, 4)]
    path = export.table("OSRT_API", columns, calls).table("PROFILER_OVERHEAD", columns, own).done()
    (found,) = read_nsys(path)
    assert sorted(found.host["name"]) == ["dlopen(libcuda.so.1)", "profiler: Flush", "read"]
    assert set(found.host["thread"]) == {"40/40"}


@pytest.mark.public
def test_libraries_that_are_loaded_in_a_real_gap_have_the_time_of_their_records(tmp_path: Path) -> None:
    """The longest steady gap of a public recording of nsys, 190 ms: loading, out of the database by SQL."""
    (path,) = shared_files.TRACES.glob("nsys/result_2_7B_nvtx*")
    plain = tmp_path / "plain.sqlite"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    (trace,) = read_nsys(plain)
    found = idle_causes(trace)
    assert found is not None and found.spread is not None
    longest, *others = found.spread.largest
    begin = int(trace.kernels["start"].min()) + longest.start_ns
    end = begin + longest.length_ns
    database = sqlite3.connect(plain)
    loaded = {
        table: database.execute(
            f"select sum(min(t.end, ?) - max(t.start, ?)) from {table} t join StringIds s on s.id = t.nameId "
            "where t.start < ? and t.end > ? and s.value like ?",
            (end, begin, end, begin, like),
        ).fetchone()[0]
        for table, like in (("PROFILER_OVERHEAD", "dlopen%"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "cuLibraryLoadData%"))
    }
    assert longest.cause == PAUSE
    activity, length = next(iter(longest.activities.items()))
    assert activity == "library loading" and round(length / MS) == round(sum(loaded.values()) / MS) == 132
    assert longest.calls.startswith("dlopen(libcuda.so.1) 112.8 ms, cuLibraryLoadData 19.66 ms")
    # 27.27 of 28.29 ms of another gap are the first launch of a kernel.
    assert any(one.calls.startswith(f"first {LAUNCH} of a kernel 27") for one in others)
    finding = gaps([found])
    assert finding is not None and "library loading" in finding.sentence
