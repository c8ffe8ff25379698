"""`bertbench speed-of-light --model`: the floor of a given model, and the share that its trial reaches of it."""

import json
import subprocess
from pathlib import Path

import pytest
from support.cli import ROOT, Cli
from support.given_models import LONGEST, write_config


def command(cli: Cli, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(cli.argv(*words), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def options(folder: Path, cli: Cli) -> list[str]:
    return ["--model", str(folder), "--device", "cpu", "--threads", "1", "--out", str(cli.out), "--json"]


def test_a_given_model_has_a_floor_and_its_trial_a_share_of_it(cli: Cli, tmp_path: Path) -> None:
    words = options(write_config(tmp_path / "mini", "roberta"), cli)
    shape = ["--seq-lens", str(LONGEST), "--precisions", "fp32", "--implementations", "hf", "--max-seconds", "5"]
    measured = command(cli, "throughput", "pretrain", *words, *shape)
    assert measured.returncode == 0, measured.stderr
    shape = ["--seq-len", str(LONGEST), "--precision", "fp32", "--rounds", "3", "--max-seconds", "1"]
    done = command(cli, "speed-of-light", "pretrain", *words, *shape)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["implementation"], found["model_weights"]) == ("hf", "random")
    flops = sum(part["calls_per_step"] * part["model_flops"] for part in found["components"])
    moved = sum(part["calls_per_step"] * part["bytes"] for part in found["components"] if not part["computed_flops"])
    floor = flops / found["peak_flops_per_second"] + moved / found["bandwidth_bytes_per_second"]
    assert found["floor_ms"] == pytest.approx(1e3 * floor)
    report = command(cli, "report", str(cli.out), "--json")
    (said,) = json.loads(report.stdout)["answers"]
    doubtful = any("speed-of-light" in sentence and "--model" in sentence for sentence in said["sentences"])
    assert doubtful or said["of_floor"] == pytest.approx(found["of_floor"])


def test_an_architecture_that_cannot_be_followed_has_no_floor(cli: Cli, tmp_path: Path) -> None:
    words = options(write_config(tmp_path / "deberta", "deberta-v2"), cli)
    done = command(cli, "speed-of-light", "pretrain", *words, "--seq-len", str(LONGEST), "--precision", "fp32")
    assert done.returncode == 3
    (record,) = (cli.out / "trials").glob("*/result.json")
    result = json.loads(record.read_text())
    assert "model-unsupported" in json.dumps(result) and "is unknown" in json.dumps(result)
    assert result["status"] != "ok" and "Traceback" not in done.stderr
