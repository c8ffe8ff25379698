"""`bertbench analyze` on traces whose idle time is in one gap, in a few gaps, or all over the steps. Times are us."""

from pathlib import Path
from typing import Any

import pytest
from support.commands import document
from support.timelines import call, event, write
from support.timelines import kernel as gpu_kernel

Event = dict[str, Any]
PER_STEP, SHORT = 100, 10.0


def kernel(number: int, start: float, length: float, called: float) -> list[Event]:
    return [call(called, 5, number), gpu_kernel("ampere_sgemm_128x64_tn", start, length, correlation=number)]


def analyzed(events: list[Event], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = document("analyze", write(path, events))
    return found


def start_up() -> list[Event]:
    """One step. The CPU is in cudaFree until 217,000 and then launches 120 kernels of 50 us in 840 us.

    They begin at 218,100, each 50 us after the end of the one before; 50 us after the last, the step ends. So 218.1 ms
    of start-up and 119 gaps between kernels of 0.05 ms, 5.95 ms, and 0.05 ms of tear-down: 224.1 ms idle of 230.1.
    """
    events = [event("ProfilerStep#0", 0, 230_100, "user_annotation")]
    events.append(call(10_000, 206_990, 0, "cudaFree"))
    for place in range(120):
        events += kernel(place + 1, 218_100 + 100 * place, 50, 217_000 + 7 * place)
    return events


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["cause"]: row for row in found["idle_causes"]["rows"]}


def test_one_gap_before_the_first_kernel_is_start_up_and_no_reason_to_launch_less(tmp_path: Path) -> None:
    document = analyzed(start_up(), tmp_path / "trace.json")
    found, largest = document["findings"], document["findings"]["idle_gaps"]["rows"][0]
    assert (largest["length_ms"], largest["part"], largest["call"]) == (pytest.approx(218.1), "start_up", "cudaFree")
    assert largest["idle_time_share"] == pytest.approx(218.1 / 224.1)
    causes = {cause: row["idle_ms"] for cause, row in rows(found).items()}
    assert (causes.pop("start_up"), causes.pop("tear_down")) == (pytest.approx(218.1), pytest.approx(0.05))
    assert sum(causes.values()) == pytest.approx(119 * 0.05) and not document["advice"]


def steps(long: dict[int, list[int]], length: float = 300, count: int = 10) -> list[Event]:
    """Steps of 100 kernels of `length` us; every kernel is launched after the one before it has ended, 10 us before it
    begins. `long` has the places in each step at which the CPU needs 3,000 us more, in an operator."""
    events: list[Event] = []
    now, number = 10_000.0, 0
    for step in range(count):
        begin = now
        for place in range(PER_STEP):
            if place in long.get(step, []):
                events.append(event("aten::masked_select", now + 1, 2_998))
                now += 3_000
            number += 1
            events += kernel(number, now + SHORT, length, now + 2)
            now += SHORT + length
        events.append(event(f"ProfilerStep#{step}", begin, now - begin, "user_annotation"))
    return events


@pytest.mark.parametrize(
    ("long", "saves", "repeats", "pauses"),
    [
        # 1,000 gaps of 10 us, of which 7 are over when the call ends, but for the first, which is start-up: 700 us in
        # the median step. Five gaps are 3,000 longer: 15,035 of 125,000 us are pauses.
        ({2: [10, 40, 70], 7: [20, 50]}, 15.035 / 125, 994 * 0.007, 5 * 3.007),
        # One in each step: 30,070 of 140,000 us; a step launches 99 times 7 us late.
        ({step: [50] for step in range(10)}, 30.07 / 140, 990 * 0.007, 10 * 3.007),
    ],
)
def test_long_gaps_are_named_and_are_no_reason_to_launch_less(
    long: dict[int, list[int]], saves: float, repeats: float, pauses: float, tmp_path: Path
) -> None:
    document = analyzed(steps(long, length=100), tmp_path / "trace.json")
    largest = document["findings"]["idle_gaps"]["rows"]
    assert [row["length_ms"] for row in largest] == pytest.approx([3.01] * 5)
    assert {row["call"] for row in largest} == {"aten::masked_select"} and {row["step"] for row in largest} <= {*long}
    row = rows(document["findings"])["launch_bound"]
    assert row["long_ms"] == pytest.approx(pauses) and row["repeating_ms"] == pytest.approx(repeats, abs=0.03)
    assert row["idle_ms"] == pytest.approx(pauses + (999 - sum(map(len, long.values()))) * 0.007)
    (advice,) = [one for one in document["advice"] if one["cause"] == "host"]
    assert advice["saves_share"] == pytest.approx(saves, rel=1e-3) and "CUDA graphs" not in advice["remedy"]
