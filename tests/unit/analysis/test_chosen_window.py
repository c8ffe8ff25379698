"""`--window`: a range, steps or a time of each reader's trace; numbers by hand, on public traces by SQL."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.commands import document
from support.timelines import call, event, kernel, timeline, write

from analysis.metrics.communication.exposure import communication_by_rank
from analysis.metrics.kernels.tables import kernel_times, operator_rows
from analysis.metrics.time.idle import idle_gaps
from analysis.metrics.time.phases import phase_rows, range_rows
from analysis.metrics.time.temporal import compute_utilization, temporal_breakdown
from analysis.metrics.time.window import windowed
from analysis.timeline import Timeline
from bench.cli.main import run
from common.errors import BertbenchError, InputError, UsageError

MS = 1_000_000
LAUNCH = "cudaLaunchKernel"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def three_steps() -> Timeline:
    """Steps of 100 ms; in each, "forward" from 10 to 40 and "backward" from 50 to 90 ms on the CPU.

    forward launches a GEMM at 20 that runs from 25 to 45 (15 ms of it in forward), backward an all-reduce at 60 that
    runs from 65 to 85 and a GEMM at 62 that runs from 75 to 105: 30 ms, 5 of them in the next step.
    """
    kernels, api, ranges, operators = [], [], [], []
    for step in range(3):
        at = 100 * step
        ranges += [("forward", (at + 10) * MS, (at + 40) * MS), ("backward", (at + 50) * MS, (at + 90) * MS)]
        operators.append(("aten::mm", (at + 19) * MS, (at + 21) * MS))
        for number, (name, called, start, end) in enumerate(
            [("sgemm", 20, 25, 45), (NCCL, 60, 65, 85), ("sgemm", 62, 75, 105)], start=3 * step + 1
        ):
            api.append((LAUNCH, (at + called) * MS, (at + called + 1) * MS, number))
            kernels.append((name, 7, (at + start) * MS, (at + end) * MS, number))
    steps = [(number, 100 * number * MS, 100 * (number + 1) * MS) for number in range(3)]
    return timeline(steps=steps, kernels=kernels, api=api, ranges=ranges, operators=operators)


def chosen(text: str, made: Timeline | None = None) -> Timeline:
    ((found,), said) = windowed([made or three_steps()], text)
    assert said == ()
    return found


def times(found: Timeline) -> dict[str, float]:
    row = temporal_breakdown(found)
    assert row is not None
    names = ("span", "busy", "idle", "compute", "communication", "exposed_communication")
    return {name: getattr(row, f"{name}_ns") / MS for name in names}


@pytest.mark.parametrize(
    ("text", "expected", "steps"),
    [
        # Step 0: GEMMs of 20 and 25 ms, an all-reduce of 20, 10 of it beside the second GEMM; 5 ms more in the others.
        ("steps", (300, 175, 125, 145, 60, 30), 3),
        ("step:1", (100, 60, 40, 50, 20, 10), 1),
        # forward alone: three times 15 of 30 ms, whatever lies between.
        ("range:forward", (90, 45, 45, 45, 0, 0), 3),
        ("range:back*", (120, 75, 45, 45, 60, 30), 3),
        # 130 to 190: 15 ms of the GEMM, 20 of the all-reduce, 15 of the GEMM, 10 of both.
        ("130ms..190ms", (60, 40, 20, 30, 20, 10), 0),
        ("0.1s..0.2s", (100, 60, 40, 50, 20, 10), 1),
        ("50..250ms", (200, 35 + 60 + 25, 80, 25 + 50 + 25, 40, 20), 1),
    ],
)
def test_where_the_time_of_a_window_goes(text: str, expected: tuple[float, ...], steps: int) -> None:
    found = chosen(text)
    measured = times(found)
    assert tuple(measured.values()) == expected, measured
    assert len(found.steps) == steps
    gaps = idle_gaps(found)
    assert gaps is not None and (gaps["end_ns"] - gaps["start_ns"]).sum() == expected[2] * MS


def test_every_table_is_of_the_range_alone() -> None:
    """forward: 90 ms; its three GEMMs of 20 ms count whole in sums, because it launched them."""
    found = chosen("range:forward")
    assert kernel_times(found).window_ns == 90 * MS
    assert compute_utilization(found).compute_utilization == pytest.approx(0.5)
    phases = phase_rows(found).set_index("phase")
    assert phases["host_ms"].to_dict() == {"forward": 90.0}
    assert phases.loc["forward", "gpu_ms"] == 60.0
    assert range_rows([found])["name"].tolist() == ["forward"]
    assert operator_rows(found)["calls"].tolist() == [3]
    assert communication_by_rank([found])["window_ms"].tolist() == [90.0]
    assert operator_rows(chosen("range:backward"))["calls"].tolist() == []
    backward = communication_by_rank([chosen("range:backward")]).iloc[0]
    assert (backward["communication_ms"], backward["exposed_ms"]) == (60.0, 30.0)


@pytest.mark.parametrize(
    ("text", "kind", "code", "named"),
    [
        ("range:backwards", InputError, "trace-without-work", "forward"),
        ("step:7", InputError, "trace-without-work", "0, 1, 2"),
        ("5s..6s", InputError, "trace-without-work", "0.305"),
        ("3s..2s", UsageError, "option-value", "empty"),
        ("step:5..4", UsageError, "option-value", "empty"),
        ("range:", UsageError, "option-value", "range:NAME"),
        ("1.2..3.4", UsageError, "option-value", "s, ms, us"),
        ("kernel", UsageError, "option-value", "range:NAME"),
    ],
)
def test_a_window_that_does_not_exist_is_refused_with_what_there_is(
    text: str, kind: type[BertbenchError], code: str, named: str
) -> None:
    with pytest.raises(kind) as raised:
        windowed([three_steps()], text)
    assert raised.value.code == code and named in str(raised.value)


def test_a_rank_without_the_range_is_named_and_left_out() -> None:
    other = dataclasses.replace(timeline(3, kernels=[("sgemm", 7, 0, MS)]), rank=3)
    kept, said = windowed([three_steps(), other], "range:forward")
    assert [found.rank for found in kept] == [0] and len(said) == 1 and "rank 3" in said[0]
    with pytest.raises(InputError, match="range"):
        windowed([other], "range:forward")


def test_the_command_takes_windows_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[dict[str, Any]] = [event("train", 0, 1_000_000, "user_annotation")]
    for number in range(2):
        at = 100_000 + 400_000 * number
        events.append(event("forward", at, 100_000, "user_annotation"))
        events.append(call(at + 10, 10, number + 1))
        events.append(kernel("ampere_sgemm_128x64_tn", at + 50_000, 200_000, correlation=number + 1))
    path = write(tmp_path / "trace.json", events)
    found = document("analyze", path, "--window", "range:forward")["findings"]
    (row,) = found["window"]["rows"]
    assert (row["window"], row["start_ms"], row["span_ms"], row["steps"]) == ("range:forward", 100, 200, 2)
    assert found["temporal_breakdown"]["rows"][0]["compute_share"] == pytest.approx(0.5)
    assert found["kernel_families"]["rows"][0]["mean_ms"] == pytest.approx(400)
    assert run(["analyze", str(path), "--window", "range:loss"]) == 2
    message = capsys.readouterr().err
    assert "forward" in message and "train" in message and "[trace-without-work]" in message
    assert run(["analyze", str(path), "--window", "yesterday"]) == 2 and "[option-value]" in capsys.readouterr().err
