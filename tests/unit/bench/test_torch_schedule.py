"""The PyTorch profiler's schedule: wait, warm-up, active, repeat; a trace for each cycle."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from bench.profilers.kineto import Cycle, TorchProfiler
from bench.profilers.kineto_trace import TraceObserver
from bert.data.batch import BatchCounts
from bert.observer import StepResult

RESULT = StepResult(BatchCounts(0, 0, 0, 0, 0), torch.zeros(()), 0.0, True)


def steps_in(trace: Path) -> set[str]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")}


def run(observer: TraceObserver, steps: int) -> None:
    observer.run_begin()
    for step in range(steps):
        observer.step_begin(step)
        with observer.phase("forward"):
            torch.ones(4).sum()
        observer.step_end(step, RESULT)
    observer.run_end()


@pytest.mark.parametrize(
    ("options", "window", "cycles"),
    [
        ({"wait": "2", "warmup": "1", "active": "3", "repeat": "2"}, (5, 20), [Cycle(7, 8, 11), Cycle(13, 14, 17)]),
        ({"active": "2"}, (0, 9), [Cycle(1, 2, 4), Cycle(5, 6, 8)]),
        ({"wait": "0", "warmup": "0", "active": "1"}, (3, 5), [Cycle(3, 3, 4), Cycle(4, 4, 5)]),
        ({"tensorboard": ""}, (3, 5), [Cycle(3, 3, 5)]),
    ],
)
def test_cycles_follow_each_other_as_the_schedule_says(
    options: dict[str, str], window: tuple[int, int], cycles: list[Cycle]
) -> None:
    assert TorchProfiler(options).cycles(*window) == cycles


def test_each_cycle_leaves_a_trace_of_its_active_steps(tmp_path: Path) -> None:
    options = {"wait": "1", "warmup": "1", "active": "2"}
    path = tmp_path / "trace-rank0.json.gz"
    run(TraceObserver(path, 0, TorchProfiler(options).cycles(1, 9), frozenset(options)), 10)
    traces = sorted((tmp_path / "tensorboard" / "cycles").glob("rank0.*.pt.trace.json.gz"))
    assert [steps_in(trace) for trace in traces] == [
        {"ProfilerStep#3", "ProfilerStep#4"},
        {"ProfilerStep#7", "ProfilerStep#8"},
    ]
    assert path.read_bytes() == traces[0].read_bytes()


@pytest.mark.parametrize(("steps", "recorded"), [(2, []), (3, [2]), (9, [2, 3, 4])])
def test_a_run_that_ends_early_leaves_what_was_recorded(steps: int, recorded: list[int], tmp_path: Path) -> None:
    path = tmp_path / "trace-rank0.json.gz"
    run(TraceObserver(path, 0, [Cycle(1, 2, 5)]), steps)
    assert path.exists() == bool(recorded) and not (tmp_path / "tensorboard").exists()
    assert not recorded or steps_in(path) == {f"ProfilerStep#{step}" for step in recorded}
