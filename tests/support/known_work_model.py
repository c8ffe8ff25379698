"""The task and the implementation of known_work.py; imports torch."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.known_work import COLUMNS, LOG_VARIABLE, MOST_STEPS, NAME, PARTS, PLAN_VARIABLE, Plan, spin

from bench.implementations.base import Built
from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.model.step import Step
from bert.observer import Observer
from bert.tasks.base import Task
from bert.tasks.pretrain.task import PretrainTask
from bert.train.feed import Adapt
from records.trial import Trial


def _plan() -> Plan:
    return Plan(**json.loads(os.environ[PLAN_VARIABLE]))


class KnownStep(Step):
    """The FLOPs are those of the matrix products."""

    def model_flops(self, counts: BatchCounts) -> float:
        plan = _plan()
        return plan.flops() * counts.samples / plan.micro_batch_size


class KnownTask(PretrainTask):
    """The batches of pretraining."""

    name = NAME

    def step(self, config: ModelConfig) -> Step:
        return KnownStep(config=config, head=())


class Clock:
    """This rank's own readings of time.monotonic_ns, one row per step."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.plan = _plan()
        self._row: dict[str, float] = {}
        self._ready = 0
        self._steps = 0
        # Mapped memory: writing a row calls nothing, and a process that ends without ado has written it.
        path = Path(os.environ[LOG_VARIABLE]) / f"{self.rank}.npy"
        self._rows = np.lib.format.open_memmap(path, "w+", dtype=np.float64, shape=(MOST_STEPS, len(COLUMNS)))

    def part(self, name: str, work: Callable[[float], object]) -> None:
        """Do the work of a part and note how long it took."""
        times = getattr(self.plan, f"{name}_ms")
        wanted = times[self.rank % len(times)]
        wanted *= self.plan.slow_factor if self._steps < self.plan.slow_steps else 1.0
        begin = time.monotonic_ns()
        if name == "optimizer":
            # What lies between the end of this rank's backward work and here is the other ranks', and the all-reduce.
            self._row["exposed"] = (begin - self._ready) / 1e6
        work(wanted)
        end = time.monotonic_ns()
        self._row.setdefault("begin", begin / 1e6)
        self._row[name] = self._row.get(name, 0.0) + (end - begin) / 1e6
        self._ready = end
        if name == "optimizer":
            self._row["end"] = end / 1e6
            self._rows[self._steps] = [self._row[column] for column in COLUMNS]
            self._row, self._steps = {}, self._steps + 1


class KnownImplementation:
    """Waits, spins and multiplies as the plan says."""

    def __init__(self) -> None:
        self.clock = Clock()
        assert {f"{name}_ms" for name in PARTS} <= set(Plan.__dataclass_fields__)

    def check(self, trial: Trial) -> None:
        """It runs everywhere."""

    def adapter(self, trial: Trial) -> Adapt:
        def slowly(batch: Batch) -> Batch:
            self.clock.part("data", lambda ms: time.sleep(ms / 1000))
            return batch

        return slowly

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        clock, size = self.clock, self.clock.plan.size
        left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)

        def multiply(milliseconds: float) -> None:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                for _ in range(clock.plan.products):
                    torch.mm(left, right, out=out)

        class Backward(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
                return weight.sum()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                clock.part("backward", spin)
                return gradient.expand(4)

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(4))

            def forward(self, batch: Batch) -> torch.Tensor:
                clock.part("forward", multiply if clock.plan.products else spin)
                return Backward.apply(self.weight)

        class Optimizer(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                clock.part("optimizer", spin)

        return Built(
            model=Model(),
            make_optimizer=lambda model: Optimizer(model.parameters(), lr=0.1),
            compute_loss=lambda model, batch: model(batch),
        )
