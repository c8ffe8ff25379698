"""The profile of a script's steps, beside profilers of the script's own and where the script ends early."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
        self.profile = Profile(2, 5, folder, lambda name, text: self.notes.append(text))

    def run(self, steps: int, between: Callable[[int], None] = lambda number: None) -> None:
        for number in range(steps):
            self.profile.next_step(number, 0, None, 1)
            torch.ones(number + 1).sum()
            between(number)
        self.profile.give_up("the script ended")

    @property
    def steps(self) -> list[str]:
        events = json.loads(gzip.decompress(self.path.read_bytes()))["traceEvents"]
        return sorted({e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#")})


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    for name in ("_prepare_profiler", "_enable_profiler"):
        monkeypatch.setattr(of_torch, name, getattr(of_torch, name))  # what `profilers` sets is undone
    found = Recorded(tmp_path)
    profilers(SimpleNamespace(profile=found.profile), of_torch)
    return found


def test_the_profile_has_the_steps_of_its_window(recorded: Recorded) -> None:
    recorded.run(8)
    assert recorded.steps == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"] and not recorded.notes


@pytest.mark.parametrize(
    "plan",
    [
        None,  # it runs from the beginning
        torch.profiler.schedule(wait=1, warmup=3, active=2, repeat=1),  # it is only prepared as ours would begin
        torch.profiler.schedule(wait=4, warmup=1, active=2, repeat=1),  # prepared at the end of step 3
    ],
)
def test_a_profiler_of_the_script_goes_first(recorded: Recorded, plan: Any) -> None:
    with torch.profiler.profile(schedule=plan) as own:
        recorded.run(8, lambda number: own.step())
    assert any(event.key == "aten::sum" for event in own.key_averages())
    assert not recorded.path.exists() and len(recorded.notes) == 1 and "of its own" in recorded.notes[0]


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_a_script_that_ends_before_the_window_does_has_no_profile(recorded: Recorded, steps: int) -> None:
    recorded.run(steps)
    assert not recorded.path.exists() and recorded.notes == ["the script ended\n"]
