"""Recordings of a GPU whose computing, communication, overlap and rest are known by construction."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT
from support.known_trace import WRITERS, make
from support.truth_book import Book


def findings(command: str, path: Path) -> dict[str, dict[str, Any]]:
    """First row of every table of a command, by the table's name."""
    argv = [sys.executable, "-m", "bench.cli.main", command, str(path), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    tables = json.loads(done.stdout)["findings"]
    return {name: table["rows"][0] for name, table in tables.items() if table["rows"]}


@pytest.mark.parametrize("form", WRITERS)
def test_a_recording_is_read_as_it_was_made(form: str, book: Book, tmp_path: Path) -> None:
    trace = make(seed=len(form))
    name, write = WRITERS[form]
    path = write(trace, tmp_path / name)
    found = findings("analyze", path)
    busy, split, talk = (found[name] for name in ("compute_utilization", "temporal_breakdown", "all_reduce_by_rank"))
    assert findings("allreduce", path)["all_reduce_by_rank"] == talk
    true = trace.nanoseconds
    computing, talking = true["compute"] + true["both"], true["talk"] + true["both"]
    for quantity, nanoseconds, row, column in (
        ("window", trace.window, busy, "window_ms"),
        ("computation", computing, split, "compute_ms"),
        ("idle time", true["idle"], split, "idle_ms"),
        ("communication", talking, talk, "communication_ms"),
        ("overlapped communication", true["both"], talk, "overlapped_ms"),
        ("exposed communication", true["talk"], talk, "exposed_ms"),
    ):
        book.check("traces", f"{form}: {quantity}", nanoseconds / 1e6, row[column], "ms")
    for quantity, share, row, column in (
        ("compute utilization", 1 - true["idle"] / trace.window, busy, "compute_utilization"),
        ("the same without communication", computing / trace.window, busy, "compute_utilization_without_communication"),
        ("SM-weighted utilization", trace.filled / trace.window, busy, "sm_weighted_utilization"),
        ("overlap, of communication", true["both"] / talking, talk, "overlap_share"),
        ("exposed, of the window", true["talk"] / trace.window, talk, "exposed_share"),
    ):
        book.check("traces", f"{form}: {quantity}", share, row[column], "share")
    assert not book.failures()
