"""`bertbench measure` beside the scripts of benchmarks/scripts, which have clocks and counts of their own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.hook import on_path
from bench.hook.on_path.sitecustomize import NOTES, VARIABLE
from bench.hook.recorder import BY_PASSES
from records.files import SCHEMA_VERSION
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "scripts" / "structures.py"
Known = dict[str, dict[str, list[Any]]]
"""By name of a script: ends, samples and tokens of its steps."""
NAMES = [
    "tuples", "dictionaries", "pairs_of_texts", "data_classes", "two_loaders", "accumulation_over_an_epochs_end",
    "two_optimizers", "lbfgs", "amp", "averaged_weights", "evaluation_of_the_training_set", "folds_in_turn", "compiled",
    "own_profiler", "sys_exit", "iterable", "restarting_workers", "persistent_workers", "no_loader", "updates_by_hand",
    "accelerate",
]  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrialDirectory, Known]:
    folder = tmp_path_factory.mktemp("trial")
    settings = {"folder": str(folder), "columns": list(STEP_COLUMNS), "schema_version": SCHEMA_VERSION}
    variables = {**os.environ, VARIABLE: json.dumps(settings), "PYTHONPATH": str(Path(on_path.__file__).parent)}
    subprocess.run([sys.executable, str(SCRIPTS), str(folder / "own.json")], env=variables, timeout=600, check=False)
    assert {path.name for path in (folder / NOTES).iterdir()} == {"python", "torch"}
    return TrialDirectory(folder), json.loads((folder / "own.json").read_text())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_times_samples_and_tokens_are_those_that_the_script_knows(
    name: str, measured: tuple[TrialDirectory, Known]
) -> None:
    if name == "accelerate" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs accelerate: pip install accelerate")
    directory, known = measured
    assert list(known) == NAMES
    place, own = NAMES.index(name), known[name]
    rows = directory.read_steps(place)
    assert [row["samples"] for row in rows] == own["samples"] and len(rows) > 10
    assert [row["real_tokens"] for row in rows] == own["tokens"]
    # Both clocks see each end a moment apart, on a busy machine now and then a long one: how far they drift apart. The
    # hook makes its files between the first two.
    found = np.cumsum([row["step_time_ms"] for row in rows][2:])
    seen = np.cumsum(1000 * np.diff(own["ends"])[1:])
    third = len(seen) // 3
    drift, elapsed = (float(np.median(times[-third:]) - np.median(times[:third])) for times in (found - seen, seen))
    assert abs(drift) < 0.02 * elapsed
    record = directory.read_ranks()[place]
    assert (record["optimizer"] == BY_PASSES) == (name == "updates_by_hand")
    assert record["unknown"].keys().isdisjoint({"forward_ms", "backward_ms"}) or name in ("lbfgs", "compiled")
