"""Scaling from the command line: weak and strong sweeps, a projection of them, worlds of torchrun, ranks that die."""

import json
import sys
from typing import Any

from support.cli import TINY, Cli, run_to_end

from analysis.load import load_run
from analysis.metrics.scaling import measured_efficiency
from records.run import RunDirectory

WINDOW = ("--start", "2", "--stop", "8", "--threads", "1")
COMM = ("--device", "cpu", "--min-bytes", "32K", "--max-bytes", "32M", "--factor", "4")


def torchrun(ranks: int, *words: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d",
                "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "-m", "--", "bench.cli.main"]  # fmt: skip
    return [sys.executable, *launcher, *words]


def test_strong_scaling_has_an_efficiency_with_an_interval(cli: Cli) -> None:
    options = [*TINY[:-1], "1", "2", *WINDOW, "--batch-sizes", "4", "--scaling", "strong", "--rounds", "2"]
    run_to_end(cli.argv("throughput", "pretrain", *options, "--out", str(cli.out)))
    trials = load_run(RunDirectory(cli.out))
    assert {(t.trial.world_size, t.trial.micro_batch_size) for t in trials} == {(1, 4), (2, 2)}
    (row,) = [row for row in measured_efficiency(trials) if row["world_size"] == 2]
    assert (row["scaling"], row["global_batch_size"], row["rounds"], row["nodes"]) == ("strong", 4, 2, 1)
    assert row["efficiency_low"] < row["efficiency"] < row["efficiency_high"]
    assert all(rank["backward"]["passes"] >= 1 for trial in trials for rank in trial.ranks.values())


def test_weak_scaling_is_projected_with_the_error_on_measured_devices(cli: Cli) -> None:
    options = [*TINY[:-1], "1", "2", *WINDOW, "--batch-sizes", "2"]
    run_to_end(cli.argv("throughput", "pretrain", *options, "--out", str(cli.out)))
    run_to_end(cli.argv("comm", *COMM, "--out", str(cli.out)))
    shown = run_to_end(cli.argv("report", str(cli.out), "--project", "4", "--json"))
    rows: list[dict[str, Any]] = json.loads(shown.stdout)["projection"]
    assert [(row["base_world_size"], row["world_size"], row["reason"]) for row in rows] == [
        (2, 1, ""), (2, 2, ""), (2, 4, ""),
    ]  # fmt: skip
    assert [row["error"] is None for row in rows] == [False, False, True]
    assert all(row["samples_per_second"] > 0 for row in rows)
    page = (cli.out / "report" / "report.html").read_text(encoding="utf-8")
    assert "Projection to more devices" in page and (cli.out / "report/tables/scaling.csv").exists()


def test_a_world_of_torchrun_measures_collectives_and_one_trial(cli: Cli) -> None:
    done = run_to_end(torchrun(2, "comm", *COMM, "--out", str(cli.out)))
    assert done.stdout.count("algbw") == 1, "rank 0 alone prints"
    words = ["throughput", "pretrain", *TINY[:-2], *WINDOW, "--batch-sizes", "2", "--out", str(cli.out)]
    done = run_to_end(torchrun(2, *words))
    assert "samples/s" in done.stdout
    trials = load_run(RunDirectory(cli.out))
    assert {(t.trial.kind, t.trial.world_size, t.row["status"]) for t in trials} == {
        ("comm", 2, "ok"), ("throughput", 2, "ok")
    }  # fmt: skip
    assert next(t for t in trials if t.trial.kind == "throughput").row["samples_per_step"] == 4
    run_to_end(torchrun(2, *words, "--batch-sizes", "2", "4"))
    assert {t.trial.micro_batch_size for t in load_run(RunDirectory(cli.out)) if t.trial.kind == "throughput"} == {2, 4}
