"""Work of known duration through the whole suite: worker, run directory, analysis, report."""

import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import ROOT
from support.known_work import NAME, Plan, Truth, environment, joules, read_truth
from truth_book import Book

BATCH, SEQ_LEN, PRICE = Plan().micro_batch_size, 32, 2.5


@dataclass(frozen=True)
class Measured:
    """A trial, as reported and as it was."""

    row: dict[str, Any]
    """What `bertbench report` shows of it."""
    truth: Truth
    """What the clocks inside the work said of the steps of the window."""
    run: Path
    environment: dict[str, str]


def bertbench(variables: dict[str, str], *words: str) -> str:
    argv = [sys.executable, "-m", "bench.cli.main", *words]
    done = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measure(folder: Path, plan: Plan, ranks: int = 1, *options: str, power: bool = False) -> Measured:
    variables = environment(plan, folder / "log", folder / "site", power)
    run = folder / "run"
    common = ["--implementations", NAME, "--presets", "tiny", "--seq-lens", str(SEQ_LEN), "--precisions", "fp32"]
    common += ["--device", "cpu", "--devices", str(ranks), "--batch-sizes", str(BATCH), "--data", "synthetic:full"]
    bertbench(variables, "throughput", NAME, *common, *options, "--price-per-hour", str(PRICE), "--out", str(run))
    shown = json.loads(bertbench(variables, "report", str(run), "--price-per-hour", str(PRICE), "--json"))
    (row,) = shown["rows"]
    assert row["status"] == "ok", row["reason"]
    truth = read_truth(folder / "log", ranks, row["window_start"], row["window_stop"])
    return Measured(row, truth, run, variables)


def check_places(book: Book, measured: Measured, case: str) -> None:
    """result.json, results.csv and the report's tables say the same."""
    (path,) = measured.run.glob("trials/*/result.json")
    result = json.loads(path.read_text())
    with measured.run.joinpath("results.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    names = ("step_time_ms", "step_time_ms_low", "step_time_ms_high", "samples_per_second", "mfu", "energy_joules")
    names += ("joules_per_sample", "cost_per_million_samples", "rank_skew", "step_time_ms_p95")
    known = [name for name in names if measured.row[name] is not None]
    assert len(known) > 5
    for name in known:
        assert float(line[name]) == result[name] == pytest.approx(measured.row[name], rel=1e-12), name
    page = (measured.run / "report" / "report.html").read_text(encoding="utf-8")
    assert f"{measured.row['samples_per_second']:.1f}" in page, case


def test_one_rank_of_known_parts(book: Book, tmp_path: Path) -> None:
    plan = Plan(data_ms=(30.0,), forward_ms=(80.0,), backward_ms=(120.0,), optimizer_ms=(100.0,))
    found = measure(tmp_path, plan, 1, "--start", "5", "--stop", "75", power=True)
    row, truth = found.row, found.truth
    times = np.array(truth.step_ms())
    samples = BATCH * 1000 / times.mean()

    def check(quantity: str, true: float, name: str, unit: str) -> None:
        book.check(f"one rank: {quantity}", true, row[name], unit)

    check("step time, median", float(np.median(times)), "step_time_ms", "ms")
    check("step time, mean", float(times.mean()), "step_time_ms_mean", "ms")
    check("step time, 5th percentile", float(np.percentile(times, 5)), "step_time_ms_p5", "ms")
    check("step time, 95th percentile", float(np.percentile(times, 95)), "step_time_ms_p95", "ms")
    for part, name in (("data", "data_wait_ms"), ("forward", "forward_ms"), ("backward", "backward_ms")):
        check(f"{part}, median", float(np.median(truth.part_ms(part))), name, "ms")
    check("optimizer, median", float(np.median(truth.part_ms("optimizer"))), "optimizer_ms", "ms")
    check("samples per second", samples, "samples_per_second", "samples/s")
    check("tokens per second", SEQ_LEN * samples, "tokens_per_second", "tokens/s")
    check("cost per million samples", PRICE / 3600 / samples * 1e6, "cost_per_million_samples", "")
    begin, end = truth.window_ns()
    used = joules(end) - joules(begin)
    book.check(
        "CPU package of 100 + 40 sin(2πt/7 s) W, its counter read once a second",
        used,
        row["energy_joules"],
        "J",
    )
    per_sample = used / (BATCH * len(times))
    book.check("the same per sample", per_sample, row["joules_per_sample"], "J")
    check_places(book, found, "one rank")
    assert not book.failures()


def test_two_ranks_of_which_one_is_known_to_be_late(book: Book, tmp_path: Path) -> None:
    plan = Plan(data_ms=(20.0,), forward_ms=(60.0,), backward_ms=(100.0, 220.0), optimizer_ms=(40.0,))
    found = measure(tmp_path, plan, 2, "--start", "5", "--stop", "55")
    row, truth = found.row, found.truth
    times = np.array(truth.step_ms())
    book.check("two ranks: step time, slowest rank's, median", float(np.median(times)), row["step_time_ms"], "ms")
    book.check(
        "two ranks: samples per second", 2 * BATCH * 1000 / float(times.mean()),
        row["samples_per_second"], "samples/s",
    )  # fmt: skip
    work = []
    for rank in (0, 1):
        of_rank = row["per_rank"][rank]
        waits = np.array(truth.part_ms("data", rank)) + np.array(truth.part_ms("exposed", rank))
        work.append(float(np.median(np.array(truth.step_ms(rank)) - waits)))
        book.check(f"two ranks: own work of rank {rank}", work[-1], of_rank["work_ms"], "ms")
        book.check(
            f"two ranks: data wait of rank {rank}", float(np.median(truth.part_ms("data", rank))),
            of_rank["data_wait_ms"], "ms",
        )  # fmt: skip
    book.check(
        "two ranks: exposed communication of the early rank", float(np.median(truth.part_ms("exposed", 0))),
        row["per_rank"][0]["communication_ms"], "ms",
    )  # fmt: skip
    book.check("two ranks: own work of the late rank / the early one's", work[1] / work[0], 1 + row["rank_skew"])
    assert [of_rank["straggler"] for of_rank in row["per_rank"]] == [False, True]
    check_places(book, found, "two ranks")
    assert not book.failures()


def test_known_flops(book: Book, tmp_path: Path) -> None:
    plan = Plan(data_ms=(1.0,), products=12, size=768, backward_ms=(8.0,), optimizer_ms=(2.0,))
    found = measure(tmp_path, plan, 1, "--start", "3", "--stop", "33", "--grad-accum", "2")
    row, truth = found.row, found.truth
    rate = 2 * plan.flops() / (float(np.mean(truth.step_ms())) / 1000)
    book.check("known GEMMs: model FLOP/s", rate, row["model_flops_per_second"], "FLOP/s")
    (path,) = found.run.glob("trials/*/rank-0.json")
    peak = json.loads(path.read_text())["measured_peak"]
    best = max(peak["before"], peak["after"])
    book.check("known GEMMs: MFU", rate / best, row["mfu"])
    products = 2 * plan.flops() / (float(np.median(truth.part_ms("forward"))) / 1000)
    book.state("known GEMMs: FLOP/s of the GEMMs alone, relative to the measured peak", products / best, "share")
    assert not book.failures()


def test_a_known_warm_up_is_left_out(book: Book, tmp_path: Path) -> None:
    plan = Plan(
        data_ms=(10.0,), forward_ms=(30.0,), backward_ms=(50.0,), optimizer_ms=(10.0,), slow_steps=6, slow_factor=3.0
    )
    found = measure(tmp_path, plan, 1, "--min-steps", "40", "--max-steps", "90", "--max-seconds", "20")
    row, truth = found.row, found.truth
    assert row["warmup_source"] == "detected"
    book.check("six slow steps: median of the others", float(np.median(truth.step_ms())), row["step_time_ms"], "ms")
    book.check("six slow steps: dropped", 6, row["steps_warmup"], "steps", within=0.0)
    assert not book.failures()


def test_a_recording_shows_how_much_of_a_step_computes(book: Book, tmp_path: Path) -> None:
    plan = Plan(data_ms=(30.0,), products=5, size=1280, backward_ms=(0.0,), optimizer_ms=(0.0,))
    variables = environment(plan, tmp_path / "log", tmp_path / "site")
    words = ["profile", NAME, "--implementations", NAME, "--presets", "tiny", "--seq-lens", str(SEQ_LEN)]
    words += ["--precisions", "fp32", "--device", "cpu", "--batch-sizes", str(BATCH), "--profiler", "torch"]
    shown = json.loads(
        bertbench(variables, *words, "--start", "4", "--stop", "12", "--out", str(tmp_path / "run"), "--json")
    )
    (profile,) = shown["profiles"]
    (rank,) = profile["compute_utilization"]
    # The profiled trial runs last, and its clock begins the file anew.
    truth = read_truth(tmp_path / "log", 1, 4, 12)
    begin, end = truth.window_ns()
    book.check("torch profiler: window of the recorded steps", (end - begin) / 1e6, rank["window_ms"], "ms")
    busy = sum(truth.part_ms("forward"))
    book.check(
        "torch profiler: compute utilization of GEMMs and sleeps",
        busy * 1e6 / (end - begin),
        rank["compute_utilization"],
        "share",
    )
    assert not book.failures()
