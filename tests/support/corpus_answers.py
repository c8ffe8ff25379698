"""Answers of `bertbench analyze --json` and `core-util --json` to what is known of the recordings of a corpus."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Answers = dict[str, float | None]
Document = Mapping[str, Any]

TRACES = ("kineto", "kineto-short", "kineto-queue", "kineto-ranks", "kineto-clocks", "nsys", "nsys-short", "nsys-queue")
# Quantity -> table and column.
_COLUMNS = {
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
_WHOLE = {"work_span_ms": "span_ms", "idle_in_work_span_ms": "idle_ms"}
_CAUSES = {
    "idle_launch_ms": ("launch_bound", "synchronization", "allocator"),
    "idle_data_ms": ("data_wait",),
    "idle_queued_ms": ("unknown",),
}
_RANKS = ("communication_ms", "overlapped_ms", "exposed_ms", "compute_ms")


def answers(corpus: Path, called: Callable[..., Document]) -> Answers:
    """Return answers by id of the fact, None where a table has none.

    Args:
        corpus: folder of the recordings.
        called: runs a command with --json, given its words, and returns what it prints.
    """
    found: Answers = {}
    for name in TRACES:
        tables = _tables(called("analyze", corpus / name))
        if name in ("kineto-ranks", "kineto-clocks"):
            found |= {f"{name}:{quantity}": value for quantity, value in _of_ranks(tables).items()}
            for row in tables["clock_offsets"][1:] if name == "kineto-clocks" else ():
                found[f"{name}:clock_offset_us[rank {row['rank']}]"] = row["offset_us"]
            continue
        whole = _tables(called("analyze", corpus / name, "--window", "kernels"))["temporal_breakdown"][0]
        of_trace = _of_trace(tables) | {quantity: whole[column] for quantity, column in _WHOLE.items()}
        if name.endswith("-queue"):
            asked = ("window_ms", "steps", "work_span_ms", "compute_ms", "launched_compute_ms", "idle_ms")
            of_trace = {quantity: of_trace.get(quantity) for quantity in asked}
        else:
            of_trace.pop("launched_compute_ms")
        found |= {f"{name}:{quantity}": value for quantity, value in of_trace.items()}
    tables = _tables(called("core-util", corpus / "ncu" / "raw.csv"))
    found["ncu:counted_time_ms"] = sum(row["time_ms"] for row in tables["kernels"])
    pipes = {row["pipe"]: row["utilization"] for row in tables["core_utilization"]}
    for pipe, name in (("fma", "fma"), ("fp16", "fp16"), ("tensor", "tensor"), ("xu", "sfu")):
        found[f"ncu:pipe_utilization[{pipe}]"] = pipes[name]
    return found


def _tables(document: Document) -> dict[str, list[dict[str, Any]]]:
    return {name: table["rows"] for name, table in document["findings"].items()}


def _of_trace(tables: Mapping[str, list[dict[str, Any]]]) -> Answers:
    found: Answers = {}
    for quantity, (table, column) in _COLUMNS.items():
        rows = tables.get(table)
        found[quantity] = rows[0].get(column) if rows else None
    longest: dict[int, float] = {}  # of each step, that of its slowest rank
    for row in tables["steps"]:
        longest[row["step"]] = max(longest.get(row["step"], 0.0), row["step_time_ms"])
    found["step_time_median_ms"] = statistics.median(longest.values())
    causes = {row["cause"]: row["idle_ms"] for row in tables["idle_causes"]}
    found |= {quantity: sum(causes[cause] for cause in own) for quantity, own in _CAUSES.items()}
    for row in tables["top_kernels"]:
        found[f"kernel_calls[{row['name']}]"] = row["calls"]
        found[f"kernel_total_ms[{row['name']}]"] = row["mean_ms"] * row["ranks"]
    return found


def _of_ranks(tables: Mapping[str, list[dict[str, Any]]]) -> Answers:
    found: Answers = {}
    for row in tables["all_reduce_by_rank"]:
        found |= {f"{quantity}[rank {row['rank']}]": row[quantity] for quantity in _RANKS}
    for row in tables["stragglers"]:
        found |= {f"{quantity}[rank {row['rank']}]": row[quantity] for quantity in ("wait_ms", "transfer_ms")}
    found["last_rank"] = max(tables["stragglers"], key=lambda row: row["times_last"])["rank"]
    found["bus_bandwidth_gb_s"] = tables["collectives"][0]["transfer_busbw_gb_s"]
    return found
