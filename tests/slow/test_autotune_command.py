"""`bertbench autotune` in real processes: a small search to its end, again, and on from where it was stopped."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import ROOT, wait_for

pytestmark = pytest.mark.timeout(900)
SMALL = (
    "autotune", "pretrain", "--preset", "tiny", "--seq-len", "32", "--precision", "fp32", "--device", "cpu",
    "--first-batch", "2", "--last-batch", "4", "--buckets-mib", "5",
    "--max-seconds", "1", "--min-steps", "3", "--max-steps", "10", "--rounds", "1", "--decide-trials", "2",
)  # fmt: skip


def argv(out: Path, ranks: int, *more: str) -> list[str]:
    where = ["--devices", str(ranks), "--strategies", strategy(ranks), "--out", str(out)]
    return [sys.executable, "-m", "bench.cli.main", *SMALL, *where, *more]


def strategy(ranks: int) -> str:
    return "ddp" if ranks > 1 else "single"


def ended(out: Path) -> list[Path]:
    """Results that stay: a trial that was stopped has one too, which the next call replaces."""
    return [path for path in out.glob("trials/*/result.json") if json.loads(path.read_text())["status"] == "ok"]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_stopped_search_goes_on_and_writes_the_best(tmp_path: Path, ranks: int) -> None:
    out = tmp_path / "tuned"
    first = subprocess.Popen(argv(out, ranks), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: ended(out) or first.poll() is not None, "a finished trial", 240)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 130 and "Traceback" not in errors
    before = {path: path.stat().st_mtime_ns for path in ended(out)}
    words = argv(out, ranks, "--deepspeed-json", str(tmp_path / "ds.json"))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    state, best = (json.loads((out / name).read_text()) for name in ("autotune.json", "best.json"))
    assert before and all(path.stat().st_mtime_ns == before[path] for path in before)
    sizes = {row["micro_batch_size"] for row in state["trials"]}
    assert sizes >= {2, 4} and any("bucket_mib" in row["options"] for row in state["trials"]) == (ranks > 1)
    assert best["samples_per_second"] > 0 and state["best"]["micro_batch_size"] == best["micro_batch_size"]
    for row in state["trials"]:
        assert row["status"] == "ok" and 0.5 < row["predicted_bytes"] / row["peak_memory_bytes"] < 1.6
    assert json.loads((tmp_path / "ds.json").read_text())["train_batch_size"] == ranks * best["micro_batch_size"]
    for words in ("* ", "samples/s", "predicted", f"{strategy(ranks)} checkpointing", "bertbench train pretrain"):
        assert words in done.stdout

    check = [sys.executable, "-m", "bench.cli.main", *best["commands"]["throughput"][1:], "--start", "1", "--stop", "2"]
    again = subprocess.run(
        [*check, "--out", str(tmp_path / "t")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
