"""Public recordings of real profilers: sums of their tables, and what the commands say of them.

Not here: readers that go (nvprof and `nsys stats` CSVs, logs of MLPerf and nvidia-smi).
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from frozen import DATA, check, rows_of
from support.shared_files import TRACES

from analysis.metrics.time.temporal import temporal_breakdown
from analysis.open import open_sources
from bench.cli.dispatch import result_of

pytestmark = pytest.mark.public

JOBS = ("kineto/dlrm-8-ranks", "kineto/megatron-8-ranks")
RECORDINGS = json.loads((DATA / "recordings.json").read_text(encoding="utf-8"))
"""Public files by what they are read for, and the columns of tables that are kept."""
# The longest tables begin with a name; their first rows are kept.
NAMED, MOST_ROWS = ("name", "operator"), 20


def tables(command: str, place: str, kept: str) -> dict[str, Any]:
    """Return the findings of a command by name, with the columns that RECORDINGS has under `kept`."""
    findings = result_of([command, str(TRACES / place), "--json"]).document["findings"]
    chosen = {}
    for name, columns in RECORDINGS["tables"][kept].items():
        first, *others = columns.split()
        rows = [[row.get(column) for column in (first, *others)] for row in findings.get(name, {}).get("rows", ())]
        chosen[name] = rows[: MOST_ROWS if first in NAMED else None]
    return {name: rows for name, rows in chosen.items() if rows}


def sums(table: Any, kind: str, *numbers: str) -> dict[str, list[int]]:
    """Return rows, nanoseconds and sums of further columns, by the values of a column."""
    groups = {}
    for value, rows in table.groupby(kind, observed=True):
        more = [int(rows[name].sum()) for name in numbers if name in rows]
        groups[str(value)] = [len(rows), int((rows["end"] - rows["start"]).sum()), *more]
    return groups


@pytest.mark.parametrize("place", RECORDINGS["timelines"])
def test_sums_of_the_tables(place: str) -> None:
    ranks = []
    for trace in open_sources(TRACES / place).timelines:
        found = {"rank": trace.rank, "world_size": trace.world_size, "devices": sorted(set(trace.devices.values()))}
        for name in ("steps", "operators", "ranges", "api", "host"):
            table = getattr(trace, name)
            found[name] = [len(table), int((table["end"] - table["start"]).sum())]
        found["self_ns"] = int(trace.operators["self_ns"].sum())
        found["kernels"] = sums(trace.kernels, "kind", "bytes")
        found["collectives"] = sums(trace.collectives, "collective", "bytes")
        ranks.append(found)
    check("trace_sums", place, ranks)


@pytest.mark.parametrize("place", [*RECORDINGS["timelines"], RECORDINGS["log"]])
def test_what_analyze_says(place: str) -> None:
    check("analyze", place, tables("analyze", place, "analyze"))


@pytest.mark.parametrize("place", RECORDINGS["timelines"])
def test_what_allreduce_says(place: str) -> None:
    check("allreduce", place, tables("allreduce", place, "allreduce"))


@pytest.mark.parametrize("place", RECORDINGS["counters"])
def test_what_analyze_says_of_counters(place: str) -> None:
    check("counters", place, tables("analyze", place, "counters"))


def breakdown(place: str) -> dict[int | None, dict[str, Any]]:
    """Return rows of temporal_breakdown by rank, from the first GPU event to the last."""
    words = ["analyze", str(TRACES / place), "--window", "kernels", "--json"]
    rows = result_of(words).document["findings"]["temporal_breakdown"]["rows"]
    return {row["rank"]: row for row in rows}


@pytest.mark.parametrize("job", JOBS)
def test_eight_ranks_have_the_published_times(job: str) -> None:
    ranks, published = breakdown(job), rows_of(TRACES / job / "expected.csv")
    counts = {trace.rank: len(trace.kernels) for trace in open_sources(TRACES / job).timelines}
    assert len(ranks) == len(published) == 8
    for row in published:
        own = ranks[int(row["rank"])]
        assert counts[own["rank"]] == int(row["gpu_events"])
        for name in ("span", "idle", "compute", "communication"):
            assert round(own[f"{name}_ms"] * 1000, 6) == float(row[f"{name}_us"]), name
        assert round(100 * own["overlap_share"], 1) == float(row["overlap_percent_of_communication"])


@pytest.mark.parametrize("device", ["h100", "mi300"])
def test_tracelens_has_the_same_times(device: str) -> None:
    folder = TRACES / "kineto/tracelens"
    (path,), (expected,) = folder.glob(f"{device}__*.gz"), folder.glob(f"expected__{device}*gpu_timeline.csv")
    theirs = {row["type"]: float(row["time ms"]) for row in rows_of(expected)}
    ((_, ours),) = breakdown(f"kineto/tracelens/{path.name}").items()
    # Memsets are computation there and memory here; their times are floats of 1.7e15 us.
    both = theirs["computation_time"] + theirs["exposed_memcpy_time"]
    assert ours["compute_ms"] + ours["exposed_memory_ms"] == pytest.approx(both, abs=1e-3)
    for name, column in (("busy_time", "busy_ms"), ("idle_time", "idle_ms"), ("total_time", "span_ms")):
        assert ours[column] == pytest.approx(theirs[name], abs=1e-3), name


def test_tracelens_has_the_same_kernels() -> None:
    folder = TRACES / "kineto/tracelens"
    (path,), (expected,) = folder.glob("h100__*.gz"), folder.glob("expected__h100*kernel_summary.csv")
    ours = sums(open_sources(path).timelines[0].kernels, "name")
    theirs: dict[str, list[float]] = {}
    for row in rows_of(expected):
        entry = theirs.setdefault(row["Kernel name"], [0, 0.0])
        entry[0] += int(row["Kernel duration (µs)_count"])
        entry[1] += 1000 * float(row["Kernel duration (µs)_sum"])
    assert {name: ours[name] for name in theirs} == {
        name: [count, pytest.approx(total, abs=1e-3)] for name, (count, total) in theirs.items()
    }


def test_facts_of_holistic_trace_analysis() -> None:
    folder = TRACES / "kineto/hta"
    counted = open_sources(*folder.glob("cupti_profiler*")).counters[0].kernels
    assert len(counted) == 77 and counted["smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"].iloc[5] == 86114304
    sampled = open_sources(*folder.glob("timeline_analysis*")).timelines[0]
    begun = sampled.kernels[sampled.kernels["start"] < sampled.steps["start"].max()]
    whole = temporal_breakdown(replace(sampled, kernels=begun), window="kernels")
    assert whole is not None and whole.overlap_share == pytest.approx(0.1181, abs=5e-5)
    times = (whole.span_ns, whole.idle_ns, whole.compute_ns, whole.busy_ns - whole.compute_ns)
    assert [time // 1000 for time in times] == [600_058, 321_378, 106_252, 172_428]
