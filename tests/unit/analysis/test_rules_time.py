"""Rules about time: findings by name, their numbers, and the one piece of advice that each may give."""

import dataclasses
from pathlib import Path

import pytest
from support.timelines import event, timeline, write

from analysis.diagnose import rules_time
from analysis.diagnose.advice import Advice, Context, faster_gemms
from analysis.diagnose.explain import explain
from analysis.diagnose.finding import Finding
from analysis.open import open_sources
from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline

LAUNCH, US, MS = "cudaLaunchKernel", 1_000, 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def rules(*timelines: Timeline, context: Context | None = None) -> dict[str, Finding]:
    """Return findings by name, after a check of their form."""
    every = rules_time.findings(timelines, context)
    for one in every:
        assert one.title and len(one.advice) <= 1 and "nan" not in one.sentence, one.sentence
        assert len(one.sentence.split()) <= 20, one.sentence
    return {one.name: one for one in every}


def advice(found: Finding) -> Advice:
    (one,) = found.advice
    return one


def slow_launches(**more: object) -> Timeline:
    """Ten kernels of 10 us, each 90 us after the one before, launched just before it starts."""
    starts = [100 * US * number for number in range(1, 11)]
    return timeline(
        steps=[(0, 0, 1100 * US)],
        kernels=[("sgemm", 7, start, start + 10 * US, index + 1) for index, start in enumerate(starts)],
        api=[(LAUNCH, start - 8 * US, start - 3 * US, index + 1) for index, start in enumerate(starts)],
        **more,
    )


def test_what_a_trace_cannot_say_is_left_out() -> None:
    cpu = rules(timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, 40)]))
    assert list(cpu) == [
        *("window", "temporal_breakdown", "compute_utilization", "idle_causes", "idle_gaps", "steps"),
        *("operator_families", "top_operators"),
    ]
    columns = {name for one in cpu.values() for name in one.table.columns}
    assert not columns & {"memory_ms", "gpu_ms", "kernels", "devices", "sm_weighted_utilization", "exposed_memory_ms"}
    assert set(cpu["idle_causes"].table["cause"]) & {"launch_bound", "allocator", "synchronization"} == set()
    assert list(rules(timeline())) == ["compute_utilization"] and rules_time.findings([]) == []
    bare = rules(timeline(steps=[(0, 0, 10 * MS), (1, 10 * MS, 30 * MS)], ranges=[("bertbench:forward", MS, 9 * MS)]))
    assert "temporal_breakdown" not in bare and set(bare["steps"].table) == {"rank", "step", "step_time_ms"}
    still = rules(timeline(steps=[(0, 0, 10)], kernels=[("gemm", 7, 5, 5), ("gelu", 7, 6, 6)]))
    assert len(still["top_kernels"].table) == 2


def test_a_launch_bound_run_launches_less_and_one_that_waits_for_data_loads_faster() -> None:
    """Of 1,100 us nine gaps of 90 us end with a launch: 87 us each until the call returns."""
    one = advice(rules(slow_launches())["idle_causes"])
    assert one.cause == "host" and one.saves == pytest.approx(9 * 87 / 1100) and "CUDA graphs" in one.remedy
    data = [("bertbench:data", start * US, (start + 85) * US) for start in range(10, 1000, 100)]
    one = advice(rules(slow_launches(ranges=data))["idle_causes"])
    # The gaps begin at 110, ..., 910, when the ranges do.
    assert one.cause == "data" and one.saves == pytest.approx(9 * 82 / 1100, rel=0.05)


@pytest.mark.parametrize(("call", "cause"), [("cudaDeviceSynchronize", "synchronization"), ("cudaFree", "allocator")])
def test_calls_that_hold_up_every_step_are_the_advice(call: str, cause: str) -> None:
    """Three steps of 100 us: a kernel of 50 us from 50 us on, launched at 45 after a call from 0 to 45."""
    api, kernels = [], []
    for step in range(3):
        at = 100 * step * US
        api += [(call, at, at + 45 * US), (LAUNCH, at + 45 * US, at + 46 * US, step + 1)]
        kernels.append(("sgemm", 7, at + 50 * US, at + 100 * US, step + 1))
    steps = [(n, 100 * n * US, 100 * (n + 1) * US) for n in range(3)]
    trace = timeline(steps=steps, kernels=[("first", 7, 0, 1), *kernels], api=api)
    one = advice(rules(trace)["idle_causes"])
    assert one.cause == cause and one.saves == pytest.approx(0.45, rel=0.001)


def test_exposed_copies_are_advised_against_but_for_those_before_the_first_kernel() -> None:
    load = ("Memcpy HtoD (Pageable -> Device)", 7, 0, 60 * US, -1, "memcpy")
    trace = timeline(kernels=[load, ("gelu_kernel", 7, 60 * US, 100 * US)])
    assert not rules(trace)["memory_copies"].advice
    steps = timeline(steps=[(0, 0, 100 * US)]).steps
    one = advice(rules(dataclasses.replace(trace, steps=steps))["memory_copies"])
    assert one.cause == "copies" and one.saves == pytest.approx(0.6) and "pin_memory" in one.remedy


@pytest.mark.parametrize(
    ("name", "train", "tf32"),
    [
        ("Tesla P100-SXM2-16GB", "fp16", False),  # twice fp32, without tensor cores
        ("Tesla V100-SXM2-16GB", "fp16", False),
        ("NVIDIA GeForce RTX 3090", "bf16", False),  # tf32 is as fast as fp32 there
        ("NVIDIA A100-SXM4-80GB", "bf16", True),
        ("NVIDIA T400", "bf16", True),  # nothing is known of it: a general remedy
    ],
)
def test_types_that_the_gpu_does_not_have_are_not_advised(name: str, train: str, tf32: bool) -> None:
    remedy = faster_gemms([name])
    assert ("tf32" in remedy) == tf32 and remedy.startswith(f"train in {train}" if train else "")
    trace = dataclasses.replace(timeline(kernels=[("sgemm", 7, 0, 100 * US)]), devices={0: name})
    assert bool(rules(trace)["kernel_families"].advice) == bool(remedy)
    assert not rules(trace, context=Context(row={"precision": "bf16"}))["kernel_families"].advice


def test_the_larger_of_two_gains_from_kernels_is_advised_and_none_below_five_percent() -> None:
    """Of 100 us GEMM in fp32 takes 40, elementwise work 60; of another 60 and 40."""
    gelu = timeline(kernels=[("elementwise_kernel", 7, 0, 4 * US), ("gelu_sgemm_bf16", 7, 4 * US, 100 * US)])
    assert "fusion" not in {one.cause for one in rules(gelu)["kernel_families"].advice}
    for gemm, cause in ((40, "fusion"), (60, "precision")):
        kernels = [("ampere_sgemm_128x64_tn", 7, 0, gemm * US), ("elementwise_kernel", 7, gemm * US, 100 * US)]
        one = advice(rules(timeline(kernels=kernels))["kernel_families"])
        assert (one.cause, one.saves) == (cause, pytest.approx(0.6))


@pytest.mark.parametrize(
    ("native", "types", "cause"), [(True, "float", "precision"), (False, "float", ""), (True, "c10::BFloat16", "")]
)
def test_a_cpu_is_advised_to_use_bf16_only_where_it_has_instructions(
    native: bool, types: str, cause: str, tmp_path: Path
) -> None:
    mm = event("aten::mm", 0, 20, args={"Input type": [types, types], "Input Dims": [[8, 8], [8, 8]]})
    trace = read(write(tmp_path / "trace-rank0.json", [mm]))
    found = rules(trace, context=Context(native_bf16=native))["operator_families"]
    assert [one.cause for one in found.advice] == ([cause] if cause else [])


def test_nccl_ranges_without_a_kernel_are_no_cpu_run_and_no_communication_time(tmp_path: Path) -> None:
    """Operators that move memory take 10 of 20 ms; an NCCL range of 6 ms is the time to put it into the queue."""
    events = [
        event("ProfilerStep#1", 0, 20_000, "user_annotation"),
        event("aten::copy_", 0, 10_000),
        event("nccl:all_to_all", 12_000, 6_000, "user_annotation"),
    ]
    path = write(tmp_path / "t.json", events, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}])
    found = {one.name: one for one in explain(open_sources(path))}
    row = found["temporal_breakdown"].table.iloc[0]
    assert (row["communication_ms"], row["compute_ms"]) == (0, 10) and not found["operator_families"].advice
