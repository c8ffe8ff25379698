"""`bertbench throughput pretrain --data DIR --input-only` from the command line to results.csv, on two ranks."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from support.cli import bertbench, run_to_end
from support.pretraining_shards import write_shard

from bert.tasks.pretrain.instances import Instances
from records.run import RunDirectory

SEQ_LEN, SAMPLES = 16, 50


def make_shards(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    mask = (np.arange(SEQ_LEN) < rng.integers(6, SEQ_LEN + 1, SAMPLES)[:, None]).astype(np.int8)
    ids = (rng.integers(200, 900, (SAMPLES, SEQ_LEN)) * mask).astype(np.int32)
    columns = np.tile(np.array([1, 3], dtype=np.int32), (SAMPLES, 1))
    labels = np.zeros(SAMPLES, dtype=np.int8)
    write_shard(folder / "d_training_0.hdf5", Instances(ids, mask, mask * 0, columns, columns + 300, labels))
    return folder


def throughput(*options: str) -> dict[str, object]:
    words = ["--presets", "tiny", "--seq-lens", SEQ_LEN, "--device", "cpu", "--precisions", "fp32", "--json"]
    found: dict[str, object] = json.loads(run_to_end(bertbench("throughput", "pretrain", *options, *words)).stdout)
    return found


@pytest.mark.slow
def test_the_input_of_two_ranks_is_measured_without_a_model(tmp_path: Path) -> None:
    folder = make_shards(tmp_path / "shards")
    window = ("--start", "2", "--stop", "12")
    out = tmp_path / "run"
    shown = throughput("--data", str(folder), "--input-only", "--devices", "2", *window, "--out", str(out))
    (row,) = shown["rows"]  # type: ignore[misc]
    assert (row["kind"], row["status"], row["world_size"], row["steps_measured"]) == ("input", "ok", 2, 10)
    assert row["samples_per_second"] > 0 and row["data_wait_ms"] > 0 and row["samples_per_step"] == 16
    for name in ("mfu", "peak_memory_bytes", "forward_ms", "rank_skew"):
        assert row[name] is None and "nothing was trained" in row["unknown"][name], name
    (record,) = csv.DictReader(RunDirectory(out).results_csv.open(encoding="utf-8"))
    assert (record["kind"], record["mfu"], record["peak_memory_bytes"]) == ("input", "", "")
    assert record["data"] == str(folder) and float(record["shards_read_samples_per_second"]) > 0
