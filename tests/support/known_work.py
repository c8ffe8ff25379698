"""Work whose time an independent clock takes, as a task and an implementation that the suite can be told to train.

A step is made of known parts: waiting for data (sleeping), forward and backward (a busy loop, or matrix products), an
optimizer (a busy loop). A loop ends by time.monotonic_ns, and what is true is what that clock said, not what was asked
for: sleeps overshoot. Each rank writes its readings down; the suite knows nothing of them.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAME = "known"
PLAN_VARIABLE = "KNOWN_WORK_PLAN"
LOG_VARIABLE = "KNOWN_WORK_LOG"
POWER_VARIABLE = "KNOWN_POWER"

PARTS = ("data", "forward", "backward", "optimizer")
COLUMNS = ("begin", "end", *PARTS, "exposed")
MOST_STEPS = 2000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a step is made of, in ms, one value per rank."""

    data_ms: Sequence[float] = (5.0,)
    forward_ms: Sequence[float] = (15.0,)
    backward_ms: Sequence[float] = (25.0,)
    optimizer_ms: Sequence[float] = (5.0,)
    products: int = 0
    """Matrix products in the forward pass, instead of its busy loop."""
    size: int = 512
    """Their n: [n, n] x [n, n]."""
    micro_batch_size: int = 4
    """Sequences of a micro-step."""
    slow_steps: int = 0
    """So many first steps take `slow_factor` times as long."""
    slow_factor: float = 1.0

    def flops(self) -> float:
        """FLOPs of a micro-step: 2 n^3 per product."""
        return 2.0 * self.size**3 * self.products


def environment(plan: Plan, log: Path, site: Path, power: bool = False) -> dict[str, str]:
    """Return variables with which processes know the work, and where they write their readings."""
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text("from support import known_work\n\nknown_work.register()\n")
    log.mkdir(parents=True)
    tests = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join(map(str, [site, tests, tests.parent]))
    found = {**os.environ, "PYTHONPATH": paths, PLAN_VARIABLE: json.dumps(asdict(plan)), LOG_VARIABLE: str(log)}
    return {**found, POWER_VARIABLE: "1"} if power else found


def register() -> None:
    """Make the work known in this process, and where it is asked for a CPU package of known power."""
    from bench.implementations import IMPLEMENTATIONS
    from bert.tasks import TASKS

    TASKS[NAME] = "support.known_work_model:KnownTask"
    IMPLEMENTATIONS[NAME] = "support.known_work_model:KnownImplementation"
    if os.environ.get(POWER_VARIABLE):
        from bench.run import telemetry

        telemetry._RAPL = KnownPackage()  # type: ignore[assignment]


def joules(at_ns: float) -> float:
    """Energy used up to a monotonic time by a machine that draws 100 + 40 sin(2 pi t / 7 s) W."""
    seconds = at_ns / 1e9
    return 100.0 * seconds + 40.0 * 7.0 / (2 * math.pi) * (1 - math.cos(2 * math.pi * seconds / 7.0))


class KnownPackage:
    """Stands for /sys/class/powercap: one CPU package, whose counter says `joules` when it is read."""

    def glob(self, pattern: str) -> list["KnownPackage"]:
        return [self]

    def read_text(self) -> str:
        return str(round(joules(time.monotonic_ns()) * 1e6))


def spin(milliseconds: float) -> None:
    """Keep a core busy for so long."""
    until = time.monotonic_ns() + round(milliseconds * 1e6)
    while time.monotonic_ns() < until:
        pass


@dataclass(frozen=True)
class Truth:
    """What the independent clocks of all ranks said of the steps of a window."""

    steps: Sequence[Sequence[Mapping[str, Any]]]
    """[rank][step] rows of COLUMNS in ms: begin and end, every part, what is `exposed` behind the last gradient."""

    def step_ms(self, rank: int | None = None) -> list[float]:
        """Times of the steps; of the slowest rank where none is named."""
        ranks = self.steps if rank is None else [self.steps[rank]]
        return [max(row["end"] - row["begin"] for row in rows) for rows in zip(*ranks, strict=True)]

    def part_ms(self, name: str, rank: int = 0) -> list[float]:
        """Times of a part of the steps."""
        return [row[name] for row in self.steps[rank]]

    def window_ns(self) -> tuple[float, float]:
        """Monotonic times between which the window ran."""
        return (
            1e6 * min(rows[0]["begin"] for rows in self.steps),
            1e6 * max(rows[-1]["end"] for rows in self.steps),
        )


def read_truth(log: Path, ranks: int, start: int, stop: int) -> Truth:
    """Read what the ranks wrote of steps [start, stop)."""
    found = [np.load(log / f"{rank}.npy")[start:stop] for rank in range(ranks)]
    return Truth([[dict(zip(COLUMNS, row, strict=True)) for row in rows.tolist()] for rows in found])
