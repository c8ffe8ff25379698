"""`bertbench throughput squad` from the command line to its tables, on real processes."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.cli import TINY, printed
from support.datasets import squad_splits

from bert.tasks.squad.features import open_features
from records.run import RunDirectory

SHORT = ["--start", "1", "--stop", "3", "--batch-sizes", "2"]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return squad_splits(tmp_path_factory.mktemp("features"), times=4, max_seq_length=32)["training"]


def throughput(*options: str) -> Any:
    return json.loads(printed("throughput", "squad", *TINY, *SHORT, *options, "--json"))


def test_ours_and_transformers_run_on_made_up_windows(tmp_path: Path) -> None:
    shown = throughput("--implementations", "bertbench", "hf", "--rounds", "1", "--out", str(tmp_path / "run"))
    ours, theirs = shown["rows"]
    assert [row["status"] for row in (ours, theirs)] == ["ok", "ok"]
    assert ours["samples_per_step"] == theirs["samples_per_step"] == 2
    assert ours["padded_tokens_per_second"] >= ours["tokens_per_second"] > 0 and ours["mfu"] > 0
    # Theirs has no padding rows of the vocabulary: 6 x 128 parameters.
    assert ours["parameters"] == theirs["parameters"] + 6 * 128
    (record, _) = csv.DictReader(RunDirectory(tmp_path / "run").results_csv.open(encoding="utf-8"))
    assert (record["task"], record["seq_len"], record["status"]) == ("squad", "32", "ok")


def test_a_features_file_is_held_against_made_up_windows_and_its_input_alone_is_measured(
    features: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    (real,) = throughput("--data", str(features), "--padding", "fixed", "--out", out)["rows"]
    (made_up,) = throughput("--data", f"synthetic:{features}", "--padding", "fixed", "--out", out)["rows"]
    vocab_size = open_features(features, "training").settings.vocab_size
    assert (real["vocab_size"], real["padding"], real["data"]) == (vocab_size, "fixed", str(features))
    assert made_up["data"] == f"synthetic:{features}"
    for directory in RunDirectory(Path(out)).trials():
        assert {row["padded_tokens"] for row in directory.read_steps(0)} == {2 * 32}
    (alone,) = throughput("--data", str(features), "--input-only", "--padding", "fixed", "--out", out)["input"]
    assert alone["throughput_ratio"] > 1 and alone["training_rounds"] == 1
