"""`bertbench analyze` on traces whose idle time is in one gap, in a few gaps, or all over the steps. Times are us."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import document

Event = dict[str, Any]
PER_STEP, SHORT = 100, 10.0


def event(name: str, category: str, start: float, length: float, **args: object) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}


def kernel(number: int, start: float, length: float, called: float) -> list[Event]:
    return [
        event("cudaLaunchKernel", "cuda_runtime", called, 5, correlation=number),
        event("ampere_sgemm_128x64_tn", "kernel", start, length, device=0, stream=7, correlation=number),
    ]


def analyzed(events: list[Event], path: Path) -> dict[str, Any]:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found: dict[str, Any] = document("analyze", path)["findings"]
    return found


def start_up() -> list[Event]:
    """One step. The CPU is in cudaFree until 217,000 and then launches 120 kernels of 50 us in 840 us.

    They begin at 218,100, each 50 us after the end of the one before; 50 us after the last, the step ends. So 218.1 ms
    of start-up and 119 gaps between kernels of 0.05 ms, 5.95 ms, and 0.05 ms of tear-down: 224.1 ms idle of 230.1.
    """
    events = [event("ProfilerStep#0", "user_annotation", 0, 230_100)]
    events.append(event("cudaFree", "cuda_runtime", 10_000, 206_990, correlation=0))
    for place in range(120):
        events += kernel(place + 1, 218_100 + 100 * place, 50, 217_000 + 7 * place)
    return events


def test_one_gap_before_the_first_kernel_is_start_up_and_no_reason_to_launch_less(tmp_path: Path) -> None:
    found = analyzed(start_up(), tmp_path / "trace.json")
    largest = found["idle_gaps"]["rows"][0]
    assert (largest["length_ms"], largest["part"], largest["cpu"]) == (pytest.approx(218.1), "start-up", "cudaFree")
    assert largest["idle_time_share"] == pytest.approx(218.1 / 224.1)  # 97.3 %
    assert sum(row["idle_ms"] for row in found["idle_causes"]["rows"]) == pytest.approx(224.1)
    causes = {row["cause"]: row["idle_ms"] for row in found["idle_causes"]["rows"]}
    assert (causes.pop("start_up"), causes.pop("tear_down")) == (pytest.approx(218.1), pytest.approx(0.05))
    assert sum(causes.values()) == pytest.approx(119 * 0.05)
    # 218.1 of 230.1 ms are start-up, 94.8 %.
    assert "94.8 % before the first kernel (start-up)" in found["idle_causes"]["sentence"]
    # All 120 but the first were launched long before they began, which was launched onto an idle GPU.
    assert "the CPU runs ahead" in found["launch_queue"]["sentence"]
    for name in ("idle_causes", "idle_gaps", "launch_queue"):
        assert "CUDA graphs" not in found[name]["sentence"]


def steps(long: dict[int, list[int]], length: float = 300, count: int = 10) -> list[Event]:
    """Steps of 100 kernels of `length` us; every kernel is launched after the one before it has ended, 10 us before it
    begins. `long` has the places in each step at which the CPU needs 3,000 us more, in an operator."""
    events: list[Event] = []
    now, number = 10_000.0, 0
    for step in range(count):
        begin = now
        for place in range(PER_STEP):
            if place in long.get(step, []):
                events.append(event("aten::masked_select", "cpu_op", now + 1, 2_998))
                now += 3_000
            number += 1
            events += kernel(number, now + SHORT, length, now + 2)
            now += SHORT + length
        events.append(event(f"ProfilerStep#{step}", "user_annotation", begin, now - begin))
    return events


def test_a_few_long_gaps_are_named_and_are_no_reason_to_launch_less(tmp_path: Path) -> None:
    # 1,000 gaps of 10 us (the first is start-up), five of them 3,000 longer: 25,000 us, and the five 15,050: 60.2 %.
    # Of a gap of 10 us, 7 are over when the call ends: 700 us in the median step, times 10 7,000 of 22,000 us that
    # are launch-bound repeat. That is less than half, and 2.2 % of 325,000.
    found = analyzed(steps({2: [10, 40, 70], 7: [20, 50]}), tmp_path / "trace.json")
    rows = found["idle_gaps"]["rows"]
    assert [row["length_ms"] for row in rows] == pytest.approx([3.01] * 5)
    assert {row["step"] for row in rows} == {2, 7} and {row["cpu"] for row in rows} == {"aten::masked_select"}
    assert "5 of 1,000 gaps" in found["idle_gaps"]["sentence"] and "60.2 %" in found["idle_gaps"]["sentence"]
    causes = {row["cause"]: row["idle_ms"] for row in found["idle_causes"]["rows"]}
    assert causes["launch_bound"] == pytest.approx(994 * 0.007)  # the five long gaps are none of these
    assert causes["launch_bound"] + causes["host_pause"] == pytest.approx(22.0, abs=0.02)
    assert "60.2 %" in found["idle_causes"]["sentence"]
    for name in ("idle_causes", "idle_gaps", "launch_queue"):
        assert "CUDA graphs" not in found[name]["sentence"]


def test_what_comes_back_beside_a_few_long_gaps_is_told_apart(tmp_path: Path) -> None:
    # The same with kernels of 100 us. Launches are 110 us apart, so gaps up to 440 us are short: 995 of 7 us (the
    # median step's 700 us times 10 at most), 6,965 of 125,000 us: 5.57 %. The others have 3,000 us more, 3,007 of
    # each launch-bound: 5 x 3,007 us, 12 %, of which the operator covers 2,998 each, 14.99 ms.
    found = analyzed(steps({2: [10, 40, 70], 7: [20, 50]}, length=100), tmp_path / "trace.json")
    sentence = found["idle_causes"]["sentence"]
    assert "60.2 %" in sentence and "for 12.0 %" in sentence and "5 gaps" in sentence
    assert "14.99 of 15.0" in sentence and "ms in aten::masked_select" in sentence
    assert "5.6 % recurs in every step" in sentence
    causes = {row["cause"]: row["idle_ms"] for row in found["idle_causes"]["rows"]}
    assert causes["launch_bound"] == pytest.approx(6.965, abs=0.01)
    assert "CUDA graphs" in sentence and "CUDA graphs" in found["launch_queue"]["sentence"]


def test_long_gaps_in_every_step_are_no_reason_to_launch_less_either(tmp_path: Path) -> None:
    # 10 x 3,000 us more, one in each step: each step has 3,700 us, and all of it comes back. But 3,000 of them the CPU
    # is in an operator, which runs however few launches there are: 700 of 34,000 us of a step is what these take, 2 %.
    found = analyzed(steps({step: [50] for step in range(10)}), tmp_path / "trace.json")
    rows = {row["cause"]: row for row in found["idle_causes"]["rows"]}
    assert rows["host_pause"]["repeating_ms"] == pytest.approx(rows["host_pause"]["idle_ms"], rel=0.01)
    assert rows["launch_bound"]["idle_ms"] == pytest.approx(6.93, abs=0.05)
    assert "10 gaps" in found["idle_causes"]["sentence"] and "aten::masked_select" in found["idle_causes"]["sentence"]
    for name in ("idle_causes", "launch_queue"):
        assert "CUDA graphs" not in found[name]["sentence"] and "batch" not in found[name]["sentence"]


def test_the_last_gap_of_a_trace_is_tear_down(tmp_path: Path) -> None:
    # One kernel from 1,000 to 2,000 of a step of 10,000 us in which the CPU computes until 9,900.
    events = [
        event("ProfilerStep#1", "user_annotation", 0, 10_000),
        event("aten::to", "cpu_op", 2_500, 7_400),
        *kernel(1, 1_000, 1_000, 990),
    ]
    found = analyzed(events, tmp_path / "trace.json")
    rows = [(row["part"], row["start_ms"], row["length_ms"], row["cpu"]) for row in found["idle_gaps"]["rows"]]
    assert rows == [("tear-down", 2.0, 8.0, "aten::to"), ("start-up", 0.0, 1.0, "")]
    # 1 and 8 of 10 ms.
    assert "10.0 % before" in found["idle_causes"]["sentence"] and "80.0 % after" in found["idle_causes"]["sentence"]
    assert "CUDA graphs" not in found["idle_causes"]["sentence"]
