"""A trial whose ranks another launcher started."""

from pathlib import Path
from typing import Any

import pytest
from support.fake_run import step_rows, write_csv, write_trial
from support.refusals import refused

from analysis.load import load_run
from bench.launch.world import World
from bench.machine.devices import Devices
from bench.run.inside import run_inside
from bench.run.supervise import LaunchOptions
from bench.sweep.sweep import locked
from common.errors import LockedError
from records.run import RunDirectory, TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial

CPU = Devices("cpu", (), 2)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """The trials that ranks trained, where nothing is trained."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # put back afterwards
    trials: list[Trial] = []
    monkeypatch.setattr("bench.run.worker.run_rank", lambda directory, trial: trials.append(trial))
    monkeypatch.setattr("bench.run.inside.finish", lambda *_: {"status": "ok"})
    monkeypatch.setattr("bench.run.inside.capture", lambda devices: {})
    return trials


def test_a_repeated_trial_that_dies_has_not_the_result_of_the_call_before(
    tmp_path: Path, ran: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are those of the new call: with the old result they would count as a whole measurement."""
    run, trial = RunDirectory(tmp_path / "run"), Trial()
    rows = step_rows([9.0] * 20, 8)
    write_trial(run, trial, {0: rows})

    def dies(directory: TrialDirectory, trial: Trial) -> None:
        write_csv(directory.steps_csv(0), list(STEP_COLUMNS), rows[:2])
        raise OSError

    monkeypatch.setattr("bench.run.worker.run_rank", dies)
    with pytest.raises(OSError):
        run_inside(run, [trial], {}, CPU, World(0, 0, 1, 1, 1), LaunchOptions())
    assert [one.row["status"] for one in load_run(run)] == ["interrupted"]


def test_a_run_directory_that_a_sweep_uses_is_refused_by_the_first_rank_alone(tmp_path: Path, ran: list[Trial]) -> None:
    run = RunDirectory(tmp_path / "run")

    def measure(rank: int) -> Any:
        return run_inside(run, [Trial()], {}, CPU, World(rank, rank, 2, 2, 1), LaunchOptions())

    with locked(run):
        with refused("folder-locked", run.path, kind=LockedError):
            measure(0)
        assert measure(1) == [] and len(ran) == 1, "the others wait for it in the process group"
    assert measure(0) == [{"status": "ok"}] and len(ran) == 2
