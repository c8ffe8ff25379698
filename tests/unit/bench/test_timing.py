"""The step clock against work of known duration."""

import time
from typing import Any

import pytest
import torch

from bench.timing import StepClock
from bert.batch import BatchCounts
from bert.observer import StepResult

COUNTS = BatchCounts(4, 300, 512, 40, 30000)


def run_steps(clock: StepClock, steps: int = 3, micro_steps: int = 2, communicate: bool = False) -> None:
    for step in range(steps):
        clock.step_begin(step)
        for micro in range(micro_steps):
            with clock.phase("data"):
                time.sleep(0.002)
            with clock.phase("forward"), clock.phase("layer.0"):
                time.sleep(0.004)
            with clock.phase("backward"):
                time.sleep(0.006)
                if communicate and micro == micro_steps - 1:
                    clock.mark("gradients_ready")
                    time.sleep(0.005)
        with clock.phase("optimizer"):
            time.sleep(0.003)
        clock.step_end(step, StepResult(COUNTS, torch.tensor(2.5), 1e-4))


def clocked(**options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    run_steps(StepClock("cpu", lambda counts: 7.0 * counts.samples, rows.append), **options)
    return rows


def test_phases_add_up_over_micro_steps_and_to_the_step() -> None:
    for row in clocked():
        assert row["data_wait_ms"] == pytest.approx(4, abs=2)
        assert row["forward_ms"] == pytest.approx(8, abs=3)
        assert row["backward_ms"] == pytest.approx(12, abs=4)
        assert row["optimizer_ms"] == pytest.approx(3, abs=2)
        parts = row["data_wait_ms"] + row["forward_ms"] + row["backward_ms"] + row["optimizer_ms"]
        assert parts <= row["step_time_ms"] <= parts + 2
        assert row["communication_ms"] is None


def test_what_backward_waits_for_after_the_last_gradient_is_exposed_communication() -> None:
    for row in clocked(communicate=True):
        assert row["communication_ms"] == pytest.approx(5, abs=2)
        assert row["backward_ms"] == pytest.approx(12, abs=4), "it is taken out of backward"


def test_rows_carry_counts_flops_loss_and_wall_clock_in_order() -> None:
    before = time.time_ns()
    rows = clocked()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["samples"] == 4 and rows[0]["padded_tokens"] == 512 and rows[0]["model_flops"] == 28.0
    assert rows[0]["loss"] == 2.5 and rows[0]["learning_rate"] == 1e-4
    assert before <= rows[0]["start_ns"] < rows[1]["start_ns"] < rows[2]["start_ns"] <= time.time_ns()


def test_time_between_steps_is_in_no_row() -> None:
    rows: list[dict[str, Any]] = []
    clock = StepClock("cpu", lambda counts: 0.0, rows.append)
    run_steps(clock, steps=1)
    time.sleep(0.2)
    run_steps(clock, steps=1)
    assert all(row["step_time_ms"] < 150 for row in rows)


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
