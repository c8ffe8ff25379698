"""The same trial in ten processes: how far apart they are, and what compare makes of three of them against three."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.cli import ROOT
from support.known_pairs import CHANGES
from support.truth_book import Book

from analysis.load import load_run
from analysis.metrics.comparison.ratio import FEWEST_PROCESSES, THRESHOLD, judged, ratio_interval
from records.run import RunDirectory

PROCESSES = 10
TRIAL = ["--presets", "tiny", "--seq-lens", "128", "--batch-sizes", "8", "--precisions", "fp32"]
TRIAL += ["--device", "cpu", "--devices", "1", "--threads", "1"]
WINDOW = ["--start", "10", "--stop", "60"]


def test_ten_processes_of_one_trial(book: Book, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "bench.cli.main", "throughput", "pretrain", *TRIAL, *WINDOW]
    argv += ["--rounds", str(PROCESSES), "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    medians = np.array([row["step_time_ms"] for row in rows])
    assert len(rows) == PROCESSES
    middle = float(np.median(medians))
    book.state("processes", f"median step time of {PROCESSES} processes, their median", middle, "ms")
    book.state("processes", "slowest / quickest process - 1", float(medians.max() / medians.min() - 1), "share")
    spread = float(np.std(np.log(medians), ddof=1))
    book.state("processes", "standard deviation between processes", spread, "share")
    widths = [(row["step_time_ms_high"] - row["step_time_ms_low"]) / 2 / row["step_time_ms"] for row in rows]
    book.state("processes", "half width of the interval within a process, median", float(np.median(widths)), "share")
    held = [row["step_time_ms_low"] <= middle <= row["step_time_ms_high"] for row in rows]
    book.state("processes", "intervals within a process that hold the median of all", float(np.mean(held)), "share")
    # Real pairs of which neither side is slower: every three of the ten against every other three.
    times = [trial.window_times() for trial in load_run(RunDirectory(tmp_path / "run"))]
    said = []
    for old in itertools.combinations(range(PROCESSES), FEWEST_PROCESSES):
        for new in itertools.combinations([each for each in range(PROCESSES) if each not in old], FEWEST_PROCESSES):
            if old < new:
                ratio = ratio_interval([times[one] for one in old], [times[one] for one in new], resamples=200)
                said.append(judged(ratio, len(old), len(new), THRESHOLD, None)[0])
    wrong = float(np.mean([verdict in CHANGES for verdict in said]))
    book.state(
        "processes", f"three against three others of them ({len(said):,} pairs): said to differ", wrong, "share", 0.0
    )
    failed = float(np.mean([verdict == "regression" for verdict in said]))
    book.state("processes", "the same: regression (exit code 1)", failed, "share", 0.0)
