"""The work of a rank in a trial of kind components: whole steps, rounds of all parts, whole steps again."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from bench.floor.parts import Part, Subject, make_parts
from bench.run.peak import matmul_peak, memory_bandwidth, peak_dtype
from bench.run.resources import reset_used_memory, used_memory
from bench.run.stopwatch import Stopwatch, stopwatch
from bert.data.batch import Batch
from bert.model.step import Step
from bert.observer import Observer
from bert.tasks.base import Task
from bert.train.loop import Training, run_step
from records.components import SERIES, write_components
from records.files import RowWriter
from records.run import TrialDirectory
from records.schema import COMPONENT_COLUMNS
from records.trial import Trial

# Steps before measuring, and whole steps before and after the rounds.
WARMUP_STEPS = 3
STEPS_AROUND = 5
# Batches from which the typical one is chosen.
_LOOKED_AT = 16
# Shorter calls are repeated for this time, so that clock resolution and launch time are negligible.
_SHORTEST_MS = {"cpu": 2.0, "cuda": 5.0}
_MOST_CALLS = 200


def measure_components(
    directory: TrialDirectory,
    trial: Trial,
    training: Training,
    model: Any,
    task: Task,
    step: Step,
    sample: Iterable[Batch],
    observer: Observer,
) -> dict[str, Any]:
    """Measure on one rank of a trial of kind components; return its record.

    It makes `min_steps` to `max_steps` rounds, no new one after `max_seconds`. The parts have the shapes of a typical
    batch of `sample`. Times go to components-<rank>.csv, steps to `observer`.
    """
    strategy = training.strategy
    device = strategy.device
    dtype, products = peak_dtype(training.model, training.precision.matmul_dtype, device)
    training.model.train()
    began = _ceilings(device, dtype)
    reset_used_memory(device)
    steps = _Steps(training, observer)
    steps.make("warmup", WARMUP_STEPS)
    steps.make("before", STEPS_AROUND)
    memory = used_memory(device)  # of steps alone, before the parts allocate theirs
    batch = typical_batch(sample, lambda each: step.model_flops(each.counts))
    subject = Subject(task, step, model, training, batch.to(device))
    parts = make_parts(subject)
    if strategy.rank == 0:
        layout = {"layout": subject.extent.layout, **asdict(batch.counts)}
        write_components(directory, [part.component for part in parts], layout)
    strategy.barrier()
    with RowWriter(directory.components_csv(strategy.rank), list(COMPONENT_COLUMNS)) as writer:
        rounds = _time_rounds(trial, parts, writer, steps, stopwatch(device.type))
    strategy.barrier()
    steps.make("after", STEPS_AROUND)
    observer.run_end()
    ended = _ceilings(device, dtype)
    ended["measured_peak"]["products"] = products
    return {
        **memory,
        "steps": steps.made,
        "rounds": rounds,
        "series": steps.series,
        "stopped_because": "all parts were timed",
        **{name: {**ended[name], "before": began[name]["rate"], "after": ended[name]["rate"]} for name in began},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def typical_batch(batches: Iterable[Batch], work: Callable[[Batch], float]) -> Batch:
    """Return the batch with the median work among the first 16."""
    first = sorted(itertools.islice(batches, _LOOKED_AT), key=work)
    return first[len(first) // 2]


def _ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    peak, bandwidth = matmul_peak(device, dtype), memory_bandwidth(device)
    return {
        "measured_peak": {**peak, "rate": peak["flops_per_second"]},
        "measured_bandwidth": {**bandwidth, "rate": bandwidth["bytes_per_second"]},
    }


class _Steps:
    """Runs whole steps, and records the range of each series."""

    def __init__(self, training: Training, observer: Observer) -> None:
        self.training, self._observer = training, observer
        self.made = 0
        self.series: dict[str, list[int]] = {name: [0, 0] for name in SERIES}

    def make(self, series: str, count: int = 1) -> None:
        """Run steps of a series."""
        first = self.series[series][0] or self.made
        for _ in range(count):
            run_step(self.training, self._observer, self.made)
            self.made += 1
        self.series[series] = [first, self.made]


def _time_rounds(trial: Trial, parts: Sequence[Part], writer: RowWriter, steps: _Steps, watch: Stopwatch) -> int:
    """Time every part once per round, in alternating order, and a whole step; return the number of rounds."""
    strategy = steps.training.strategy
    calls = {part.component.name: _calls(part, watch, trial.device) for part in parts}
    begin = time.perf_counter()
    for number in range(trial.max_steps):
        for part in parts[:: 1 if number % 2 == 0 else -1]:
            name = part.component.name
            time_ms = _time(part.run, calls[name], watch)
            writer.write({"round": number, "component": name, "calls": calls[name], "time_ms": time_ms})
        steps.make("rounds")
        spent = float(strategy.maximum(torch.tensor([time.perf_counter() - begin], dtype=torch.float64)))
        if number + 1 >= trial.min_steps and spent > trial.max_seconds:
            return number + 1
    return trial.max_steps


def _calls(part: Part, watch: Stopwatch, device: str) -> int:
    part.run()
    watch.synchronize()
    once = max(min(_time(part.run, 1, watch) for _ in range(3)), 1e-4)
    return max(1, min(_MOST_CALLS, round(_SHORTEST_MS[device] / once)))


def _time(run: Callable[[], object], calls: int, watch: Stopwatch) -> float:
    if calls > 1:
        run()
    begin = watch.mark()
    for _ in range(calls):
        run()
    end = watch.mark()
    watch.synchronize()
    return watch.elapsed_ms(begin, end) / calls
