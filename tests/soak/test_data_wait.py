"""The wait for data at the size that is trained: preset base, sequences of 128, compressed shards."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.shard_files import write_shard

from bert.tasks.pretrain.instances import Instances

pytestmark = pytest.mark.alone
SEQ_LEN, PREDICTIONS, SAMPLES = 128, 20, 20_000


def write_shards(folder: Path) -> None:
    """Two shards with the lengths and masks of pretraining data."""
    for number in range(2):
        rng = np.random.default_rng(number)
        lengths = np.where(rng.random(SAMPLES) < 0.1, rng.integers(30, SEQ_LEN + 1, SAMPLES), SEQ_LEN)
        mask = (np.arange(SEQ_LEN) < lengths[:, None]).astype(np.int8)
        counts = np.minimum(PREDICTIONS, np.rint(0.15 * lengths))
        columns = (1 + np.arange(PREDICTIONS)) * (np.arange(PREDICTIONS) < counts[:, None])
        ids = rng.integers(1000, 30000, (SAMPLES, SEQ_LEN))
        instances = Instances(
            input_ids=(ids * mask).astype(np.int32),
            input_mask=mask,
            segment_ids=(mask * (np.arange(SEQ_LEN) > lengths[:, None] // 2)).astype(np.int8),
            masked_lm_positions=columns.astype(np.int32),
            masked_lm_ids=np.where(columns, ids[:, :PREDICTIONS], 0).astype(np.int32),
            next_sentence_labels=rng.integers(0, 2, SAMPLES).astype(np.int8),
        )
        write_shard(folder / f"d_training_{number}.hdf5", instances)


def test_waiting_for_data_takes_less_than_a_hundredth_of_a_step_of_bert_base(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards")
    options = ["--data", str(tmp_path / "shards"), "--presets", "base", "--batch-sizes", "4", "--device", "cpu"]
    options += ["--devices", "1", "--precisions", "fp32", "--start", "2", "--stop", "8", "--json"]
    argv = [sys.executable, "-m", "bench.cli.main", "throughput", "pretrain", *options, "--out", str(tmp_path / "run")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=True, cwd=Path(__file__).parents[2])
    (row,) = json.loads(done.stdout)["rows"]
    share = row["data_wait_ms"] / row["step_time_ms"]
    print(f"data wait {row['data_wait_ms']:.3f} ms of {row['step_time_ms']:.0f} ms: {share:.4%}")
    assert share < 0.01
