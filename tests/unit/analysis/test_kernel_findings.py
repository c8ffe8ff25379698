"""What the analyses of time say in words: one sentence per table, with what to try."""

import dataclasses
from typing import Any

import pytest
from support import shared_files
from support.timelines import timeline

from analysis.diagnose.sentences import faster_gemms
from analysis.diagnose.timelines import findings
from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto"
LAUNCH = "cudaLaunchKernel"
US = 1000
ALL = [
    "temporal_breakdown",
    "compute_utilization",
    "idle_causes",
    "idle_gaps",
    "kernel_families",
    "top_kernels",
    "phases",
    "memory_copies",
    "launch_queue",
    "iterations",
    "steps",
]


def said(*timelines: Timeline) -> dict[str, str]:
    found = findings(timelines)
    for finding in found:
        assert finding.name in ALL and finding.title and list(finding.table.columns)
        assert finding.sentence == "" or finding.sentence.endswith((".", "?"))
        assert "\n" not in finding.sentence and ".." not in finding.sentence
    return {finding.name: finding.sentence for finding in found}


def one_step(end: int) -> Any:
    return timeline(steps=[(0, 0, end)]).steps


def slow_launches(**more: Any) -> Timeline:
    """Ten kernels of 10 us, each 90 us after the one before, launched just before it starts."""
    starts = [100 * US * number for number in range(1, 11)]
    return timeline(
        steps=[(0, 0, 1100 * US)],
        kernels=[("sgemm", 7, start, start + 10 * US, index + 1) for index, start in enumerate(starts)],
        api=[(LAUNCH, start - 8 * US, start - 3 * US, index + 1) for index, start in enumerate(starts)],
        **more,
    )


def test_a_launch_bound_run_is_told_to_launch_less_often() -> None:
    sentences = said(slow_launches())
    assert "CUDA graphs" in sentences["idle_causes"] and "launch work" in sentences["idle_causes"]
    assert "the GPU waits for the CPU" in sentences["launch_queue"]
    assert sentences["kernel_families"].startswith("GEMM takes 100 %")
    assert sentences["iterations"].startswith("The one step takes 1.1 ms")


def test_a_run_that_waits_for_data_is_told_to_load_in_the_background() -> None:
    data = [("bertbench:data", start * US, (start + 85) * US) for start in range(10, 1000, 100)]
    assert "loader workers" in said(slow_launches(ranges=data))["idle_causes"]


def test_exposed_communication_points_to_its_table() -> None:
    kernels = [("sgemm", 7, 0, 30 * US), ("ncclDevKernel_AllReduce", 9, 20 * US, 100 * US)]
    sentences = said(timeline(steps=[(0, 0, 100 * US)], kernels=kernels))
    assert "70.0 % exposed communication" in sentences["temporal_breakdown"]
    assert "see Communication by rank" in sentences["temporal_breakdown"]


def test_pageable_copies_are_told_to_be_pinned() -> None:
    copy = ("Memcpy HtoD (Pageable -> Device)", 7, 30 * US, 90 * US, -1, "memcpy")
    sentences = said(timeline(kernels=[("sgemm", 7, 0, 30 * US), copy]))
    assert "pin_memory=True" in sentences["memory_copies"] and "pinned memory" in sentences["temporal_breakdown"]


def test_copies_before_the_first_kernel_are_start_up_and_no_advice() -> None:
    load = ("Memcpy HtoD (Pageable -> Device)", 7, 0, 60 * US, -1, "memcpy")
    made = timeline(kernels=[load, ("sgemm", 7, 60 * US, 100 * US)])
    found = {one.name: one for one in findings([made])}["temporal_breakdown"]
    assert "60.0 % copies before the first kernel" in found.sentence and not found.advice
    assert "overlap copies" not in found.sentence
    in_step = {one.name: one for one in findings([dataclasses.replace(made, steps=one_step(100 * US))])}
    assert "overlap copies" in in_step["temporal_breakdown"].sentence  # what a step copies belongs to it
    assert in_step["temporal_breakdown"].advice[0].saves == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("name", "train", "tf32"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", "", False),
        ("Tesla P40", "", False),
        ("Tesla M60", "", False),
        ("Tesla P100-SXM2-16GB", "fp16", False),  # twice fp32, without tensor cores
        ("Tesla V100-SXM2-16GB", "fp16", False),
        ("Tesla T4", "fp16", False),
        ("NVIDIA GeForce RTX 2070", "fp16", False),
        ("Tesla K40m", "", False),
        ("NVIDIA RTX 2000 Ada Generation", "bf16", True),
        ("NVIDIA T400", "bf16", True),  # nothing is known of it: a general remedy
        ("NVIDIA GeForce RTX 3090", "bf16", False),  # tf32 is as fast as fp32 there
        ("NVIDIA A100-SXM4-80GB", "bf16", True),
        ("NVIDIA H100 80GB HBM3", "bf16", True),
        ("NVIDIA GeForce RTX 5090", "bf16", False),
        ("NVIDIA GeForce RTX 5080", "bf16", True),  # not in the table
    ],
)
def test_types_that_the_gpu_does_not_have_are_not_advised(name: str, train: str, tf32: bool) -> None:
    remedy = faster_gemms([name])
    assert ("tf32" in remedy) == tf32 and bool(remedy) == bool(train or tf32)
    assert remedy.startswith(f"train in {train}") if train else not remedy
    made = dataclasses.replace(timeline(kernels=[("sgemm", 7, 0, 100 * US)]), devices={0: name})
    found = {one.name: one for one in findings([made])}["kernel_families"]
    assert bool(found.advice) == bool(remedy)
    assert "tf32" not in found.sentence or tf32


def test_what_a_trace_cannot_say_is_left_out() -> None:
    cpu = timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, 40)])
    assert list(said(cpu)) == [
        "temporal_breakdown",
        "compute_utilization",
        "idle_causes",
        "idle_gaps",
        "iterations",
        "steps",
    ]
    nothing = said(timeline())
    assert list(nothing) == ["compute_utilization"] and nothing["compute_utilization"].startswith("Unknown:")
    assert findings([]) == []


@pytest.mark.public
@pytest.mark.parametrize("folder", ["dlrm-8-ranks", pytest.param("megatron-8-ranks", marks=pytest.mark.slow)])
def test_eight_real_ranks_give_every_finding(folder: str) -> None:
    assert list(said(*(read(path) for path in sorted((TRACES / folder).glob("*.json.gz"))))) == ALL
