"""Trials of the input alone and twins on made-up batches: planned, named, drawn and recorded."""

from pathlib import Path
from typing import Any

import numpy as np
from support.pretraining_shards import write_shard

from bench.machine.devices import Devices
from bench.run.clock import StepClock
from bench.run.measure import draw
from bench.sweep.trials import Sweep, expand
from bert.data.batches import DataSpec
from bert.tasks.pretrain.batches import Hdf5Batches
from bert.tasks.pretrain.instances import Instances

CPU = Devices("cpu", (), 4)
SEQ_LEN = 16


def make_shards(folder: Path, samples: int = 20) -> Path:
    rng = np.random.default_rng(samples)
    lengths = rng.integers(6, SEQ_LEN + 1, samples)
    mask = (np.arange(SEQ_LEN) < lengths[:, None]).astype(np.int8)
    ids = (rng.integers(200, 900, (samples, SEQ_LEN)) * mask).astype(np.int32)
    columns = np.tile(np.array([1, 3], dtype=np.int32), (samples, 1))
    labels = np.zeros(samples, dtype=np.int8)
    made = Instances(ids, mask, np.zeros_like(mask), columns, columns + 300, labels)
    write_shard(folder / "d_training_0.hdf5", made)
    return folder


def sweep(folder: Path, **changes: object) -> Sweep:
    return Sweep(**{"data": str(folder), "presets": ("tiny",), "seq_lens": (SEQ_LEN,), **changes})  # type: ignore[arg-type]


def test_input_trials_are_the_same_grid_under_ids_of_their_own(tmp_path: Path) -> None:
    asked = sweep(make_shards(tmp_path), batch_sizes=(4, 8), rounds=2)
    training, alone = expand(asked, CPU), expand(asked, CPU, kind="input")
    assert [trial.kind for trial in alone] == ["input"] * 4
    assert [(t.micro_batch_size, t.round) for t in alone] == [(t.micro_batch_size, t.round) for t in training]
    assert not {trial.trial_id for trial in alone} & {trial.trial_id for trial in training}
    assert alone[0].trial_id.startswith("input-pretrain-bertbench-")


def test_drawing_records_samples_and_the_wait(tmp_path: Path) -> None:
    stream = Hdf5Batches(DataSpec(data=str(make_shards(tmp_path, 20)), seq_len=SEQ_LEN, micro_batch_size=4))
    rows: list[dict[str, Any]] = []
    clock = StepClock("cpu", lambda counts: 0.0, rows.append)
    assert draw(iter(stream), 3, clock, lambda step: step < 5) == 5
    assert [row["samples"] for row in rows] == [12] * 5 and stream.state_dict()["samples"] == 60
    for row in rows:
        assert 0 < row["data_wait_ms"] <= row["step_time_ms"]
        assert {row[name] for name in ("forward_ms", "backward_ms", "optimizer_ms")} == {None}
    assert stream.reading.samples == 20 and stream.reading.seconds > 0
