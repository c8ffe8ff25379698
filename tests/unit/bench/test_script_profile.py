"""The profile of a script's steps, beside profilers of the script's own and where the script ends early."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import profiler as of_torch

from bench.hook.trace import Profile
from bench.hook.watch import profilers


class Recorded:
    """A profile of steps [2, 5) in this process, and what it noted."""

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self.path = folder / "trace-rank0.json.gz"
        self.profile = Profile((2, 5), str(folder), lambda name, text: self.notes.append(text))

    def run(self, steps: int, between: Callable[[int], None] = lambda number: None) -> None:
        for number in range(steps):
            self.profile.next_step(number, 0, None, 1)
            torch.ones(number + 1).sum()
            between(number)
        self.profile.finish()

    @property
    def steps(self) -> list[str]:
        events = json.loads(gzip.decompress(self.path.read_bytes()))["traceEvents"]
        return sorted({e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#")})


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(of_torch, name, getattr(of_torch, name))  # what `profilers` sets is undone
    found = Recorded(tmp_path)
    profilers(SimpleNamespace(profile=found.profile), of_torch)
    return found


def operators(own: "torch.profiler.profile") -> int:
    return sum(event.key == "aten::sum" for event in own.key_averages())


def test_the_profile_has_the_steps_of_its_window(recorded: Recorded) -> None:
    recorded.run(8)
    assert recorded.steps == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"] and not recorded.notes


def test_a_profiler_of_the_script_that_runs_is_left_alone(recorded: Recorded) -> None:
    with torch.profiler.profile() as own:
        recorded.run(8)
    assert operators(own) and not recorded.path.exists()
    assert ["script's own" in note for note in recorded.notes] == [True]


def test_one_that_is_only_prepared_counts_as_running(recorded: Recorded) -> None:
    plan = torch.profiler.schedule(wait=1, warmup=3, active=2, repeat=1)
    with torch.profiler.profile(schedule=plan) as own:
        recorded.run(8, lambda number: own.step())
    assert operators(own) and not recorded.path.exists() and len(recorded.notes) == 1


def test_the_profile_ends_before_one_of_the_script_begins(recorded: Recorded) -> None:
    plan = torch.profiler.schedule(wait=4, warmup=1, active=2, repeat=1)  # prepared at the end of step 3
    with torch.profiler.profile(schedule=plan) as own:
        recorded.run(8, lambda number: own.step())
    assert operators(own) and recorded.steps == ["ProfilerStep#2"]
    assert "after step 2" in recorded.notes[0]


def test_after_the_scripts_profiler_has_ended_ours_begins(recorded: Recorded) -> None:
    with torch.profiler.profile():
        torch.ones(3).sum()
    recorded.run(8)
    assert len(recorded.steps) == 3 and not recorded.notes


def test_the_end_of_the_script_is_no_step(recorded: Recorded) -> None:
    recorded.run(4)
    assert recorded.steps == ["ProfilerStep#2"], "the third began, and was not finished"
    assert "after step 2" in recorded.notes[0]


def test_a_script_that_ends_as_the_window_begins_has_no_profile(recorded: Recorded) -> None:
    recorded.run(3)
    assert not recorded.path.exists() and len(recorded.notes) == 1
