"""The step clock against work of known duration."""

import time
from typing import Any

import torch

from bench.run.clock import StepClock
from bench.run.stopwatch import Stopwatch
from bert.data.batch import BatchCounts
from bert.observer import StepResult

COUNTS = BatchCounts(4, 300, 512, 40, 30000)


class Device(Stopwatch):
    """A stopwatch on a time line of its own, moved by the work that is done."""

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        return self.now

    def work(self, milliseconds: float) -> None:
        self.now += round(milliseconds * 1e6)


def clocked(steps: int = 3, micro_steps: int = 2, communicate: bool = False) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    clock = StepClock("cpu", lambda counts: 7.0 * counts.samples, rows.append)
    clock._watch = device = Device()
    for step in range(steps):
        clock.step_begin(step)
        for micro in range(micro_steps):
            with clock.phase("data"):
                device.work(2)
            with clock.phase("forward"), clock.phase("layer.0"):
                device.work(4)
            with clock.phase("backward"):
                device.work(6)
                if communicate and micro == micro_steps - 1:
                    clock.mark("gradients_ready")
                    device.work(5)
        with clock.phase("optimizer"):
            device.work(3)
        device.work(0.5)
        clock.step_end(step, StepResult(COUNTS, torch.tensor(2.5), 1e-4))
        device.work(100)  # between steps
    return rows


def test_phases_add_up_over_micro_steps_and_time_between_steps_is_in_no_row() -> None:
    for row in clocked():
        assert row["data_wait_ms"] == 4 and row["forward_ms"] == 8 and row["backward_ms"] == 12
        assert row["optimizer_ms"] == 3 and row["communication_ms"] is None
        assert row["step_time_ms"] == 27.5


def test_what_backward_waits_for_after_the_last_gradient_is_exposed_communication() -> None:
    for row in clocked(communicate=True):
        assert row["communication_ms"] == 5
        assert row["backward_ms"] == 12, "it is taken out of backward"
        assert row["step_time_ms"] == 32.5


def test_rows_carry_counts_flops_loss_and_wall_clock_in_order() -> None:
    before = time.time_ns()
    rows = clocked()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["samples"] == 4 and rows[0]["padded_tokens"] == 512 and rows[0]["model_flops"] == 28.0
    assert rows[0]["loss"] == 2.5 and rows[0]["learning_rate"] == 1e-4
    assert before <= rows[0]["start_ns"] < rows[1]["start_ns"] < rows[2]["start_ns"] <= time.time_ns()


class SlowDevice:
    """A stopwatch whose marks pass only when told, as a GPU's do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reached = 0.0

    def mark(self) -> float:
        self.now += 1.0
        return self.now

    def elapsed_ms(self, begin: float, end: float) -> float:
        assert end <= self.reached, "a time was read before the device had got there"
        return end - begin

    def passed(self, mark: float) -> bool:
        return mark <= self.reached

    def synchronize(self) -> None:
        self.reached = self.now

    def fetch(self, scalar: torch.Tensor) -> torch.Tensor:
        return LateScalar(self, self.now + 1)  # type: ignore[return-value]


class LateScalar:
    """A loss on its way to the host, which may be read once the mark after it has passed."""

    def __init__(self, device: SlowDevice, ready: float) -> None:
        self.device, self.ready = device, ready

    def __float__(self) -> float:
        assert self.device.passed(self.ready), "the loss was read before the device had made it"
        return 2.5


def test_an_asynchronous_device_is_never_waited_for_until_flush() -> None:
    rows: list[dict[str, Any]] = []
    clock = StepClock("cpu", lambda counts: 0.0, rows.append)
    device = SlowDevice()
    clock._watch = device  # type: ignore[assignment]
    for step in range(3):
        clock.step_begin(step)
        clock.step_end(step, StepResult(COUNTS, torch.tensor(1.0), 0.0))
    assert rows == []
    clock.flush()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [row["step_time_ms"] for row in rows] == [1.0, 1.0, 1.0]
    assert [row["loss"] for row in rows] == [2.5, 2.5, 2.5]
