"""`make bench`'s script whole, on generated and on real text."""

import csv
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support import shared_files
from support.cli import ROOT, Cli, run_to_end, wait_for
from support.refusals import check_refusal

pytestmark = pytest.mark.timeout(1800)
WON = ("implementation", "micro_batch_size", "world_size", "strategy", "precision")
BOOKS = shared_files.DATA / "pretrain/books"


SCRIPT = ["bash", str(ROOT / "bench" / "bench.sh")]
PYTHON = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def bench(out: Path, *source: str, code: int = 0, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run_to_end([*SCRIPT, *source], code, timeout=900, OUT=str(out), **PYTHON, **variables)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float, str]:
    """Run directory, output, seconds and messages of one whole `make bench`."""
    out = tmp_path_factory.mktemp("bench")
    began = time.monotonic()
    done = bench(out)
    return out, done.stdout, time.monotonic() - began, done.stderr


@pytest.mark.alone
def test_it_ends_with_the_table_and_the_path_of_the_report_in_under_four_minutes(
    finished: tuple[Path, str, float, str],
) -> None:
    out, output, seconds, _ = finished
    assert "bertbench" in output and "hf" in output and "samples/s" in output
    assert output.rstrip().splitlines()[-1] == str(out / "report" / "report.html")
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = Counter(row["trial_id"].split("-")[0] for row in rows)
    assert (kinds.pop("profile"), kinds.pop("probe")) == (1, 1), "three iterations, with the profiler and without"
    assert kinds.pop("components") == 1, "the speed of light of the fastest"
    assert kinds.total() == 12, "three rounds of two implementations at two batch sizes"
    measured = [row for row in rows if row["kind"] == "throughput"]
    fastest = max(measured, key=lambda row: float(row["samples_per_second"]))
    (profile,) = [row for row in rows if row["kind"] == "profile"]
    assert [profile[name] for name in WON] == [fastest[name] for name in WON]
    (light,) = [row for row in rows if row["kind"] == "components"]
    assert [light[name] for name in WON] == [fastest[name] for name in WON]
    assert seconds < 240


@pytest.mark.soak
@pytest.mark.public
def test_it_runs_on_real_text(tmp_path: Path) -> None:
    bench(tmp_path, str(BOOKS), BATCH_SIZES="4", DEVICES="1", MAX_SECONDS="3")
    assert (tmp_path / "report" / "report.html").exists()


def test_a_folder_without_text_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = bench(tmp_path / "out", str(tmp_path / "empty"), code=2)
    check_refusal(done.stderr, "data-missing", tmp_path / "empty")


def test_sigterm_ends_everything_it_started(cli: Cli) -> None:
    script = subprocess.Popen(SCRIPT, env={**os.environ, **PYTHON, "OUT": str(cli.out)}, stderr=subprocess.PIPE)
    wait_for(lambda: cli.steps_written() > 0, "steps")
    script.terminate()
    assert script.wait(timeout=30) == 130
    assert not cli.processes()
    assert list(cli.out.glob("trials/*/result.json")), "what was measured is kept"
