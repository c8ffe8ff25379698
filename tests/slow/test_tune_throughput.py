"""`bertbench tune --for throughput` in real processes: a small search, stopped and resumed to its end."""

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT, bertbench, run_to_end, wait_for

pytestmark = pytest.mark.timeout(900)
SMALL = (
    "tune", "pretrain", "--for", "throughput", "--preset", "tiny", "--seq-len", "32", "--precision", "fp32",
    "--device", "cpu", "--last-batch", "4", "--max-seconds", "1", "--rounds", "3",
)  # fmt: skip


def ended(out: Path) -> list[Path]:
    """Results that stay: a trial that was stopped has one too, which the next call replaces."""
    return [path for path in out.glob("trials/*/result.json") if json.loads(path.read_text())["status"] == "ok"]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_stopped_search_resumes_and_writes_the_best(tmp_path: Path, ranks: int) -> None:
    out = tmp_path / "search"
    strategy = "ddp" if ranks > 1 else "single"
    where = ["--devices", str(ranks), "--strategies", strategy, "--out", str(out)]
    argv = bertbench(*SMALL, *where)
    first = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: ended(out) or first.poll() is not None, "a finished trial", 240)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 130 and "Traceback" not in errors
    before = {path: path.stat().st_mtime_ns for path in ended(out)}
    done = run_to_end(argv, timeout=800)
    assert before and all(path.stat().st_mtime_ns == time for path, time in before.items())
    state, best = (json.loads((out / name).read_text()) for name in ("tune.json", "best.json"))
    assert {row["micro_batch_size"] for row in state["trials"]} >= {1, 2}
    assert any("bucket_mib" in row["strategy_options"] for row in state["trials"]) == (ranks > 1)
    for row in state["trials"]:
        assert row["status"] == "ok" and 0.5 < row["predicted_bytes"] / row["peak_memory_bytes"] < 1.6
    low, high = best["interval"]
    assert low <= best["samples_per_second"] <= high and len(best["rounds"]) == 3
    assert best["configuration"] == state["best"]["configuration"] and shlex.join(best["command"]) in done.stdout
    more = ["--steps", 1, "--global-batch-size", best["micro_batch_size"] * ranks, "--out", tmp_path / "run"]
    run_to_end(bertbench(*best["command"][1:], *more))
