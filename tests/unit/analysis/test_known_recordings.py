"""Recordings with known answers: the answers counted anew, and ours."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import document
from support.recordings import (
    ALL_REDUCE,
    COPY,
    Answers,
    Trace,
    counters,
    deep_queue,
    one_gpu,
    ranks,
    write_kineto,
    write_ncu,
    write_nsys,
)

Tables = Mapping[str, list[dict[str, Any]]]


def covered(spans: list[tuple[int, int]], unit: int) -> set[int]:
    """Numbers of the units of time that spans cover, one by one."""
    return {now for start, end in spans for now in range(start // unit, end // unit)}


def by_brute_force(trace: Trace) -> dict[str, float]:
    """What a trace comes to, unit of time by unit of time."""
    unit = trace.unit
    window = covered([(trace.steps[0][0], trace.steps[-1][1])], unit)
    kernels = [one for one in trace.work if one.name != COPY]
    compute = covered([(one.start, one.end) for one in kernels if one.name != ALL_REDUCE], unit)
    talk = covered([(one.start, one.end) for one in kernels if one.name == ALL_REDUCE], unit)
    copies = covered([(one.start, one.end) for one in trace.work if one.name == COPY], unit)
    work = compute | talk | copies
    return {
        "window_ms": len(window) * unit / 1e6,
        "compute_ms": len(compute & window) * unit / 1e6,
        "idle_ms": len(window - work) * unit / 1e6,
        "work_span_ms": (max(work) + 1 - min(work)) * unit / 1e6,
        "idle_in_work_span_ms": len(set(range(min(work), max(work))) - work) * unit / 1e6,
        "kernel_busy_ms": len((compute | talk) & window) * unit / 1e6,
        "communication_ms": len(talk) * unit / 1e6,
        "overlapped_ms": len(talk & compute) * unit / 1e6,
        "exposed_ms": len(talk - compute) * unit / 1e6,
        "copy_ms": len(copies) * unit / 1e6,
        "exposed_copy_ms": len(copies - compute - talk) * unit / 1e6,
    }


@pytest.mark.parametrize("seed", range(4))
def test_answers_by_construction_are_those_of_counting_every_unit_of_time(seed: int) -> None:
    for (trace,), said in (one_gpu(seed, unit=37, steps=4, stretches=15), deep_queue(seed)):
        counted = by_brute_force(trace)
        for quantity, value in {name: value for (name, of), value in said.items() if not of}.items():
            if quantity in counted:
                assert counted[quantity] == pytest.approx(value, rel=1e-9), quantity
    traces, said = ranks(seed)
    for trace in traces:
        counted = by_brute_force(trace)
        for quantity in ("compute_ms", "communication_ms", "overlapped_ms", "exposed_ms"):
            assert counted[quantity] == pytest.approx(said[quantity, f"rank {trace.rank}"], rel=1e-9), quantity


RECORDINGS: dict[str, tuple[Callable[[Any, Path], None], tuple[Sequence[Any], Answers]]] = {
    "kineto": (write_kineto, one_gpu(3)),
    "kineto-short": (write_kineto, one_gpu(4, unit=37)),
    "kineto-queue": (write_kineto, deep_queue(5)),
    "kineto-ranks": (write_kineto, ranks(6)),
    "kineto-clocks": (write_kineto, ranks(7, clocks=True)),
    "nsys": (write_nsys, one_gpu(8)),
    "nsys-short": (write_nsys, one_gpu(9, unit=37)),
    "nsys-queue": (write_nsys, deep_queue(10)),
    "ncu": (write_ncu, counters(11)),
}
"""What writes a part, and the parts with the answers.

In the short ones kernels last 0.04 to 15 us, and times are no whole number of microseconds.
"""
COUNTS = ("steps", "kernel_calls", "last_rank")
SHARES = ("kernel_utilization", "sm_weighted_utilization", "overlap_share", "pipe_utilization")
# Quantity -> table and column.
COLUMNS = {
    "window_ms": ("temporal_breakdown", "span_ms"),
    "steps": ("temporal_breakdown", "steps"),
    "compute_ms": ("temporal_breakdown", "compute_ms"),
    "launched_compute_ms": ("temporal_breakdown", "launched_compute_ms"),
    "idle_ms": ("temporal_breakdown", "idle_ms"),
    "kernel_busy_ms": ("compute_utilization", "busy_ms"),
    "kernel_utilization": ("compute_utilization", "compute_utilization"),
    "sm_weighted_utilization": ("compute_utilization", "sm_weighted_utilization"),
    "communication_ms": ("all_reduce_by_rank", "communication_ms"),
    "overlapped_ms": ("all_reduce_by_rank", "overlapped_ms"),
    "exposed_ms": ("all_reduce_by_rank", "exposed_ms"),
    "overlap_share": ("all_reduce_by_rank", "overlap_share"),
    "copy_ms": ("memory_copies", "total_ms"),
    "exposed_copy_ms": ("temporal_breakdown", "exposed_memory_ms"),
    "copied_bytes": ("memory_copies", "bytes"),
}
CAUSES = {
    "idle_launch_ms": ("launch_bound", "synchronization", "allocator"),
    "idle_data_ms": ("data_wait",),
    "idle_queued_ms": ("unknown",),
}


def tables(*words: object) -> Tables:
    return {name: table["rows"] for name, table in document(*words)["findings"].items()}


def of_one_gpu(folder: Path) -> Answers:
    found = tables("analyze", folder)
    whole = tables("analyze", folder, "--window", "kernels")["temporal_breakdown"][0]
    given = {quantity: found[table][0][column] for quantity, (table, column) in COLUMNS.items() if table in found}
    given |= {"work_span_ms": whole["span_ms"], "idle_in_work_span_ms": whole["idle_ms"]}
    given["step_time_median_ms"] = statistics.median(row["step_time_ms"] for row in found["steps"])
    causes = {row["cause"]: row["idle_ms"] for row in found["idle_causes"]}
    given |= {quantity: sum(causes[cause] for cause in own) for quantity, own in CAUSES.items()}
    answers = {(quantity, ""): value for quantity, value in given.items()}
    for row in found["top_kernels"]:
        answers["kernel_calls", row["name"]] = row["calls"]
        answers["kernel_total_ms", row["name"]] = row["mean_ms"]
    return answers


def of_ranks(folder: Path) -> Answers:
    found = tables("analyze", folder)
    names = ("communication_ms", "overlapped_ms", "exposed_ms", "compute_ms")
    answers = {(name, f"rank {row['rank']}"): row[name] for row in found["all_reduce_by_rank"] for name in names}
    for row in found["stragglers"]:
        answers |= {(name, f"rank {row['rank']}"): row[name] for name in ("wait_ms", "transfer_ms")}
    for row in found["clock_offsets"]:
        answers["clock_offset_us", f"rank {row['rank']}"] = row["offset_us"]
    answers["last_rank", ""] = max(found["stragglers"], key=lambda row: row["times_last"])["rank"]
    answers["bus_bandwidth_gb_s", ""] = found["collectives"][0]["transfer_busbw_gb_s"]
    return answers


def of_counters(folder: Path) -> Answers:
    found = tables("core-util", folder / "raw.csv")
    pipes = {row["pipe"]: row["utilization"] for row in found["core_utilization"]}
    answers: Answers = {("counted_time_ms", ""): sum(row["time_ms"] for row in found["kernels"])}
    for pipe, name in (("fma", "fma"), ("fp16", "fp16"), ("tensor", "tensor"), ("xu", "sfu")):
        answers["pipe_utilization", pipe] = pipes[name]
    return answers


@pytest.mark.parametrize("name", RECORDINGS)
def test_analyze_and_core_util_give_the_known_answers(name: str, tmp_path: Path) -> None:
    write, (parts, answers) = RECORDINGS[name]
    for part in parts:
        write(part, tmp_path)
    given = of_counters(tmp_path) if name == "ncu" else (of_ranks if len(parts) > 1 else of_one_gpu)(tmp_path)
    assert answers
    for (quantity, of), truth in answers.items():
        allowed = 0.0 if quantity in COUNTS else 5e-4 if quantity in SHARES else 1e-3 * abs(truth)
        assert given[quantity, of] == pytest.approx(truth, rel=0, abs=allowed), (quantity, of)
