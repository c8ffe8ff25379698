"""Which batches count in a step of `bertbench measure`: scripts that read more loaders than the one they train on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import script_loads

from bench.hook import on_path
from bench.hook.on_path.sitecustomize import NOTES, VARIABLE
from records.files import SCHEMA_VERSION
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS

SAMPLES = {
    "evaluation_of_the_training_set_by_another_loader": [4] * 5,
    "evaluation_of_the_training_set_by_the_same_loader": [4] * 5,
    "a_batch_taken_before_each_epoch": [4] * 10,
    "a_new_iterator_for_each_step": [4] * 5,
    "a_second_loader_that_is_read_now_and_then": [4] * 5,
    "accumulation_over_the_end_of_an_epoch": [8] * 5,
    "accumulation_with_workers_that_persist": [8] * 5,
    "a_loader_that_is_slow_to_begin_and_to_end": [4] * 10,
    "workers_that_are_slow_to_begin": [4] * 10,
    "evaluation_by_a_slow_loader": [4] * 5,
}


Steps = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    folder = tmp_path_factory.mktemp("trial")
    settings = {"folder": str(folder), "columns": list(STEP_COLUMNS), "schema_version": SCHEMA_VERSION}
    environment = {**os.environ, VARIABLE: json.dumps(settings), "PYTHONPATH": str(Path(on_path.__file__).parent)}
    subprocess.run([sys.executable, script_loads.__file__], env=environment, timeout=600, check=True)
    assert not list((folder / NOTES).glob("problem"))
    return {loop.__name__: TrialDirectory(folder).read_steps(rank) for rank, loop in enumerate(script_loads.LOOPS)}


@pytest.mark.parametrize(("loop", "samples"), SAMPLES.items(), ids=list(SAMPLES))
def test_a_step_counts_the_batches_that_it_trains_on(steps: Steps, loop: str, samples: list[int]) -> None:
    assert [row["samples"] for row in steps[loop]] == samples


@pytest.mark.parametrize(
    ("loop", "waits"),
    [("a_loader_that_is_slow_to_begin_and_to_end", [200, 400]), ("workers_that_are_slow_to_begin", [200, 200])],
)
def test_the_wait_for_data_has_the_beginning_and_the_end_of_a_loader(steps: Steps, loop: str, waits: list[int]) -> None:
    rows = steps[loop]
    assert rows[0]["data_wait_ms"] >= waits[0] and rows[5]["data_wait_ms"] >= waits[1]
    assert all(row["data_wait_ms"] < row["step_time_ms"] for row in rows)


def test_the_wait_for_data_has_that_for_an_evaluation(steps: Steps) -> None:
    rows = steps["evaluation_by_a_slow_loader"]
    assert rows[0]["data_wait_ms"] < 400 <= rows[3]["data_wait_ms"] < rows[3]["step_time_ms"]
