"""The scripts that people run most, from end to end, at their smallest."""

import os
import subprocess
import sys
from pathlib import Path

import own_text
import pytest
from frozen import check, rows_of
from preparation import digests_of_shards
from support.cli import ROOT

pytestmark = pytest.mark.slow

TINY = {"PRESET": "tiny", "BATCH_SIZES": "2", "DEVICES": "1", "PRECISION": "fp32", "SEQ_LEN": "32"}


def run(script: str, *words: object, **variables: object) -> None:
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(ROOT / script), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("task", ["pretrain", "squad"])
def test_throughput(task: str, tmp_path: Path) -> None:
    run(f"bench/measure_throughput_{task}.sh", 1, 3, OUT=tmp_path / "run", **TINY)
    (row,) = rows_of(tmp_path / "run/results.csv")
    assert row["status"] == "ok" and float(row["samples_per_second"]) > 0 and int(row["steps_measured"]) == 2


@pytest.mark.parametrize("task", ["pretrain", "squad"])
def test_compute_utilization(task: str, tmp_path: Path) -> None:
    run(f"profiling/measure_compute_util_{task}.sh", "torch", 1, 3, OUT=tmp_path / "run", **TINY)
    (row,) = rows_of(tmp_path / "run/compute_utilization.csv")
    assert 0 < float(row["compute_utilization"]) <= 1


def test_pretraining_from_text(tmp_path: Path) -> None:
    corpus, data = own_text.corpus(tmp_path / "corpus"), tmp_path / "data"
    vocabulary = own_text.vocabulary(tmp_path)
    run("bert/data/create_datasets_from_start.sh", data, corpus, WORKERS=2, VOCAB=vocabulary, SHARDS=2)
    check("scripts", "create_datasets_from_start.sh", digests_of_shards(data))
    sizes = {"BATCH_SIZE": 4, "MICRO_BATCH_SIZE": 4, "STEPS": 3}
    phases = sizes | {f"{name}_PHASE2": value for name, value in sizes.items()}
    run("bert/run_pretraining.sh", DATA=data, OUT=tmp_path / "run", **TINY, **phases)
    curves = {phase: rows_of(tmp_path / "run" / phase / "curve.csv") for phase in ("phase1", "phase2")}
    losses = {phase: [float(row["loss"]) for row in rows] for phase, rows in curves.items()}
    check("scripts", "run_pretraining.sh", losses, rtol=1e-4)
