"""Implementations too slow to start for the fast tests."""

import shutil

import pytest
from support.cli import SHORT, Cli

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_the_compiled_hugging_face_model_trains_and_its_first_step_is_no_measurement(cli: Cli) -> None:
    done = cli.run(*SHORT, "--batch-sizes", "2", "--implementations", "hf", "hf-compiled", "--rounds", "1", timeout=800)
    assert done.returncode == 0, done.stderr
    eager, compiled = cli.results()
    assert compiled["status"] == "ok", compiled["reason"]
    assert compiled["steps_warmup"] == 1 and compiled["steps_measured"] == 2
    assert compiled["parameters"] == eager["parameters"]
