"""What only a CUDA device can show. Skipped elsewhere; the CPU tests cover the same code paths as far as they go."""

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
    assert done.returncode in (0, 3), done.stderr
    return list(json.loads(done.stdout)["rows"])


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
    rows = sweep(cli, "--preset", "base", "--batch-sizes", "32", "--implementations", "bertbench", "hf", "hf-compiled")
    assert {row["implementation"]: row["status"] for row in rows} == dict.fromkeys(
        ("bertbench", "hf", "hf-compiled"), "ok"
    )


def test_lamb_equals_its_plain_formulas_on_the_device() -> None:
    from support.plain_lamb import PlainLamb

    from bert.lamb import Lamb

    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator) for shape in ((300, 64), (64,), (64, 64))]
    decays = [0.01, 0.0, 0.01]
    parameters = [torch.nn.Parameter(value.clone().cuda()) for value in values]
    groups = [{"params": [p], "weight_decay": decay} for p, decay in zip(parameters, decays, strict=True)]
    optimizer, plain = Lamb(groups, lr=0.01), PlainLamb([value.clone() for value in values], decays)
    for _ in range(5):
        gradients = [torch.randn(value.shape, generator=generator) for value in values]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone().cuda()
        optimizer.step()
        plain.step(list(gradients), 0.01)
    for parameter, value in zip(parameters, plain.values, strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), value, rtol=1e-5, atol=1e-6)


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
