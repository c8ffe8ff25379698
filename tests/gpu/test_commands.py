"""Commands on a CUDA device, 200 s in all. Skipped elsewhere; tests on CPUs cover the same code as far as they can."""

import json
import subprocess

import pytest
import torch
from support.cli import ROOT, Cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def sweep(cli: Cli, *options: str) -> list[dict[str, object]]:
    argv = cli.argv("throughput", "pretrain", "--device", "cuda", "--devices", "1", *options, "--out", str(cli.out))
    done = subprocess.run([*argv, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    rows = list(json.loads(done.stdout)["rows"])
    assert done.returncode == (0 if all(row["status"] == "ok" for row in rows) else 3), done.stderr
    return rows


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_trains_and_its_phases_add_up(cli: Cli, precision: str) -> None:
    (row,) = sweep(cli, "--preset", "mini", "--precisions", precision, "--batch-sizes", "16")
    assert row["status"] == "ok", row["reason"]
    parts = sum(float(row[f"{name}_ms"] or 0) for name in ("data_wait", "forward", "backward", "optimizer"))  # type: ignore[arg-type]
    assert parts == pytest.approx(float(row["step_time_ms"]), rel=0.1)  # type: ignore[arg-type]
    assert 0 < float(row["mfu"]) < 1  # type: ignore[arg-type]


def test_real_out_of_memory_is_a_row_and_the_next_trial_runs(cli: Cli) -> None:
    rows = sweep(
        cli, "--preset", "large", "--seq-lens", "512", "--batch-sizes", "20000", "2", "--start", "1", "--stop", "3"
    )
    assert {row["micro_batch_size"]: row["status"] for row in rows} == {20000: "oom", 2: "ok"}


def test_two_more_implementations_stand_beside_ours(cli: Cli) -> None:
    pytest.importorskip("transformers")
    names = ("bertbench", "hf", "hf-compiled")
    rows = sweep(cli, "--preset", "base", "--batch-sizes", "32", "--rounds", "1", "--implementations", *names)
    assert {row["implementation"]: row["status"] for row in rows} == dict.fromkeys(names, "ok")


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_training_stops_and_resumes_on_the_device(cli: Cli, optimizer: str) -> None:
    words = ["train", "pretrain", "--preset", "tiny", "--data", "synthetic", "--seq-len", "32", "--device", "cuda"]
    words += ["--devices", "1", "--global-batch-size", "16", "--micro-batch-size", "8", "--precision", "fp16"]
    words += ["--optimizer", optimizer, "--save-every", "4", "--out", str(cli.out)]
    for steps in ("4", "8"):
        argv = cli.argv(*words, "--steps", steps)
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
    assert (cli.out / "checkpoints/step-0000008").is_dir()


def test_gradients_are_ready_one_after_another_within_the_measured_backward_pass(cli: Cli) -> None:
    (row,) = sweep(cli, "--preset", "base", "--batch-sizes", "32")
    assert row["status"] == "ok", row["reason"]
    (record,) = [json.loads(path.read_text())["backward"] for path in cli.out.glob("trials/*/rank-0.json")]
    assert 0 < record["ready_ms"][2] < record["ready_ms"][-1] <= record["backward_ms"] and record["passes"] == 5
    assert record["backward_ms"] == pytest.approx(float(row["backward_ms"]), rel=0.25)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="a collective over NCCL needs two GPUs")
def test_collectives_over_nccl_are_right_in_every_type(cli: Cli) -> None:
    every = [
        "--collectives",
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "--dtypes",
        "fp32",
        "fp16",
        "bf16",
    ]
    argv = cli.argv("comm", "--device", "cuda", "--devices", "2", "--max-bytes", "64M", "--factor", "8", *every)
    done = subprocess.run(
        [*argv, "--out", str(cli.out), "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(row["wrong"] == 0 and row["busbw_gb_s"] > 0 for row in json.loads(done.stdout)["rows"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_step_is_taken_apart_on_the_device(cli: Cli, precision: str) -> None:
    options = ("--preset", "mini", "--batch-size", "16", "--precision", precision, "--rounds", "3")
    argv = cli.argv("speed-of-light", "pretrain", "--device", "cuda", *options, "--out", str(cli.out), "--json")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["floor_ms"] < found["step_time_ms"]
    assert sum(bar["ms"] for bar in found["waterfall"][:-1]) == pytest.approx(found["step_time_ms"])


def test_training_without_padding_is_measured(cli: Cli) -> None:
    steps = ("fast", "plain")
    options = ("--preset", "mini", "--precisions", "bf16", "--batch-sizes", "16", "--rounds", "1")
    rows = sweep(cli, *options, "--step", *steps)
    assert sorted((row["step"], row["status"]) for row in rows) == [("fast", "ok"), ("plain", "ok")]
