"""Three runs of known work, two of them alike and one 5 % slower, held against each other by the real command."""

import json
import subprocess
import sys
from pathlib import Path

from support.cli import ROOT
from support.known_pairs import CHANGES
from support.known_work import NAME, Plan, environment
from support.truth_book import Book

from analysis.metrics.ratio import FEWEST_PROCESSES

SLOWDOWN = 0.05


def measured(folder: Path, factor: float) -> Path:
    """Run the work, every part of it so many times as long, in as many processes as decide."""
    plan = Plan(
        data_ms=(0.0,), forward_ms=(20.0 * factor,), backward_ms=(30.0 * factor,), optimizer_ms=(10.0 * factor,)
    )
    argv = [sys.executable, "-m", "bench.cli.main", "throughput", NAME, "--implementations", NAME, "--presets", "tiny"]
    argv += ["--seq-lens", "32", "--precisions", "fp32", "--device", "cpu", "--devices", "1", "--start", "5"]
    argv += ["--stop", "35", "--rounds", str(FEWEST_PROCESSES), "--out", str(folder / "run")]
    variables = environment(plan, folder / "log", folder / "site")
    subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900, check=True)
    return folder / "run"


def test_compare_finds_the_slower_run_and_no_other(book: Book, tmp_path: Path) -> None:
    runs = {name: measured(tmp_path / name, factor) for name, factor in (("a", 1.0), ("b", 1.0), ("c", 1 + SLOWDOWN))}
    for name, truth in (("b", 1.0), ("c", 1 + SLOWDOWN)):
        argv = [sys.executable, "-m", "bench.cli.main", "compare", str(runs["a"]), str(runs[name]), "--json"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        (row,) = json.loads(done.stdout)["rows"]
        what = f"real runs of known work, {100 * (truth - 1):g} % slower"
        book.check("comparing", f"{what}: new / old time", truth, row["time_ratio"])
        if truth == 1.0:
            said = float(row["verdict"] in CHANGES)
            book.between("comparing", f"{what}: said to differ", said, 0.0, 0.0, 0.0)
        else:
            book.between("comparing", f"{what}: regression", float(row["verdict"] == "regression"), 1.0, 1.0, 1.0)
            book.between("comparing", f"{what}: exit code 1", float(done.returncode == 1), 1.0, 1.0, 1.0)
    assert not book.failures("comparing")
