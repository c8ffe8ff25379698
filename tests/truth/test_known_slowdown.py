"""Three runs of known work, two of them alike and one 5 % slower, held against each other by the real command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.cli import ROOT
from support.known_pairs import CHANGES
from support.known_work import NAME, Plan, environment, read_truth
from support.truth_book import Book

from analysis.metrics.comparison.ratio import FEWEST_PROCESSES

FACTORS = {"a": 1.0, "b": 1.0, "c": 1.05}
"""How many times as long every part of the work of a run takes."""
START, STOP = 5, 35


def measure_next_round(folder: Path, factor: float, rounds: int) -> float:
    """Run the work in one more process; return the median of its steps in ms by the clock inside."""
    plan = Plan(
        data_ms=(0.0,), forward_ms=(20.0 * factor,), backward_ms=(30.0 * factor,), optimizer_ms=(10.0 * factor,)
    )
    argv = [sys.executable, "-m", "bench.cli.main", "throughput", NAME, "--implementations", NAME, "--presets", "tiny"]
    argv += ["--seq-lens", "32", "--precisions", "fp32", "--device", "cpu", "--devices", "1", "--start", str(START)]
    argv += ["--stop", str(STOP), "--rounds", str(rounds), "--out", str(folder / "run")]
    log = folder / f"log-{rounds}"
    variables = environment(plan, log, folder / "site")
    # Rounds that are finished are not run again.
    subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900, check=True)
    return float(np.median(read_truth(log, 1, START, STOP).step_ms()))


def test_compare_finds_the_slower_run_and_no_other(book: Book, tmp_path: Path) -> None:
    medians: dict[str, list[float]] = {name: [] for name in FACTORS}
    for rounds in range(1, FEWEST_PROCESSES + 1):  # in turns, so that a machine that changes changes for all
        for name, factor in FACTORS.items():
            medians[name].append(measure_next_round(tmp_path / name, factor, rounds))
    for name in ("b", "c"):
        argv = [sys.executable, "-m", "bench.cli.main", "compare", str(tmp_path / "a" / "run")]
        argv += [str(tmp_path / name / "run"), "--json"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        (row,) = json.loads(done.stdout)["rows"]
        assert row["rounds_a"] == row["rounds_b"] == FEWEST_PROCESSES
        what = f"real runs of known work, {100 * (FACTORS[name] - 1):g} % slower"
        ratio = float(np.median(medians[name]) / np.median(medians["a"]))
        book.check("comparing", f"{what}: new / old time", ratio, row["time_ratio"])
        if FACTORS[name] == 1.0:
            book.between("comparing", f"{what}: said to differ", float(row["verdict"] in CHANGES), 0.0, 0.0, 0.0)
        else:
            book.between("comparing", f"{what}: regression", float(row["verdict"] == "regression"), 1.0, 1.0, 1.0)
            book.between("comparing", f"{what}: exit code 1", float(done.returncode == 1), 1.0, 1.0, 1.0)
    assert not book.failures()
