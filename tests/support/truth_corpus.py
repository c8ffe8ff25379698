"""Recordings with known answers in the formats of profilers, how far an answer may be off, and what ours are."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support import recordings
from support.recording_formats import WRITERS
from support.recordings import Answers

Given = dict[str, float | None]
Document = Mapping[str, Any]
RECORDINGS: dict[str, tuple[str, Callable[[int], tuple[Sequence[Any], Answers]]]] = {
    "kineto": ("kineto", recordings.one_gpu),
    "kineto-short": ("kineto", lambda seed: recordings.one_gpu(seed + 1, unit=37)),
    "kineto-queue": ("kineto", lambda seed: recordings.deep_queue(seed + 2)),
    "kineto-ranks": ("kineto", lambda seed: recordings.ranks(seed + 3)),
    "kineto-clocks": ("kineto", lambda seed: recordings.ranks(seed + 4, clocks=True)),
    "nsys": ("nsys", lambda seed: recordings.one_gpu(seed + 5)),
    "nsys-short": ("nsys", lambda seed: recordings.one_gpu(seed + 6, unit=37)),
    "nsys-queue": ("nsys", lambda seed: recordings.deep_queue(seed + 7)),
    "ncu": ("ncu", lambda seed: recordings.counters(seed + 8)),
}
"""Format, and what makes the parts to write and the answers from a seed, by name.

In the short ones kernels last 0.04 to 15 us, and times are no whole number of microseconds.
"""
_COUNTS = ("steps", "kernel_calls", "last_rank")
_SHARES = ("kernel_utilization", "sm_weighted_utilization", "overlap_share", "pipe_utilization")


class Fact(NamedTuple):
    """A number of a recording that is known because of how the recording is made."""

    name: str
    """recording:quantity, with what it is of in brackets."""
    truth: float
    allowed: float
    """The largest error of a right answer."""


def write_corpus(folder: Path, seed: int) -> list[Fact]:
    """Write recordings into folders of their names and return what is known of them."""
    facts = []
    for name, (form, make) in RECORDINGS.items():
        (folder / name).mkdir(parents=True)
        parts, answers = make(seed)
        for part in parts:
            WRITERS[form](part, folder / name)
        facts += [
            Fact(f"{name}:{quantity}" + f"[{of}]" * bool(of), value, _allowed(quantity, value))
            for (quantity, of), value in answers.items()
        ]
    return facts


def _allowed(quantity: str, truth: float) -> float:
    if quantity in _COUNTS:
        return 0.0
    return 5e-4 if quantity in _SHARES else 1e-3 * abs(truth)


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


def given_answers(corpus: Path, called: Callable[..., Document]) -> Given:
    """Return answers by name of the fact, None where a table has none; `called` runs a command with --json."""
    found: Given = {}
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


def _of_trace(tables: Mapping[str, list[dict[str, Any]]]) -> Given:
    found: Given = {}
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


def _of_ranks(tables: Mapping[str, list[dict[str, Any]]]) -> Given:
    found: Given = {}
    for row in tables["all_reduce_by_rank"]:
        found |= {f"{quantity}[rank {row['rank']}]": row[quantity] for quantity in _RANKS}
    for row in tables["stragglers"]:
        found |= {f"{quantity}[rank {row['rank']}]": row[quantity] for quantity in ("wait_ms", "transfer_ms")}
    found["last_rank"] = max(tables["stragglers"], key=lambda row: row["times_last"])["rank"]
    found["bus_bandwidth_gb_s"] = tables["collectives"][0]["transfer_busbw_gb_s"]
    return found
