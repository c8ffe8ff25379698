"""Time by phase: what launched a kernel says which phase it is of."""

from typing import Any

import pytest
from support.timelines import timeline

from analysis.metrics.time.phases import phase_of, phase_rows

LAUNCH = "cudaLaunchKernel"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bertbench:forward", "forward"),
        ("bertbench:all-reduce", "communication"),
        ("## backward ##", "backward"),
        ("Forward pass", "forward"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "backward"),
        ("DistributedDataParallel.forward", "forward"),
        ("bertbench:layer.3.attention", None),
        ("aten::mm", None),
        ("", None),
    ],
)
def test_phases_by_name(name: str, expected: str | None) -> None:
    assert phase_of(name) == expected


LOOP = [
    ("bertbench:data", 0, 100),
    ("bertbench:forward", 100, 200),
    ("bertbench:backward", 200, 400),
    ("bertbench:optimizer", 400, 500),
]
AUTOGRAD = {"operators": [("autograd::engine::evaluate_function: MmBackward0", 100, 180, "autograd")]}
STEP = {"ranges": [], "operators": [("Optimizer.step#AdamW.step", 20, 60)]}
RECOMPUTED = {"ranges": [*LOOP, ("bertbench:forward", 250, 300)]}


@pytest.mark.parametrize(
    ("kernel", "call", "more", "expected"),
    [
        ("sgemm", (50, "main"), {}, "data"),
        ("sgemm", (100, "main"), {}, "forward"),
        ("sgemm", (199, "main"), {}, "forward"),
        ("sgemm", (600, "main"), {}, "other"),
        ("sgemm", (260, "main"), RECOMPUTED, "forward"),  # the innermost
        ("sgemm", (320, "main"), RECOMPUTED, "backward"),
        ("sgemm", (150, "autograd"), AUTOGRAD, "backward"),  # also while the loop is elsewhere
        ("sgemm", (30, "main"), STEP, "optimizer"),
        ("sgemm", (250, "worker"), {}, "backward"),  # the loop's
        ("sgemm", None, {}, "other"),
        ("ncclDevKernel_AllReduce", (250, "main"), {}, "communication"),  # whoever launched it
    ],
)
def test_a_kernel_is_of_the_phase_in_which_it_was_launched(
    kernel: str, call: tuple[int, str] | None, more: dict[str, Any], expected: str
) -> None:
    api = [] if call is None else [(LAUNCH, call[0], call[0] + 2, 1, call[1])]
    rows = phase_rows(timeline(kernels=[(kernel, 7, 5000, 5010, 1)], api=api, **{"ranges": LOOP, **more}))
    assert (rows.loc[rows["kernels"] > 0, "phase"].tolist() or ["other"]) == [expected]


def test_times_of_host_and_gpu_add_up() -> None:
    trace = timeline(
        1,
        steps=[(0, 0, 600)],
        ranges=[*LOOP, ("bertbench:all-reduce", 350, 400, "autograd")],
        kernels=[("sgemm", 7, 150, 250, 1), ("sgemm_back", 7, 300, 500, 2), ("ncclDevKernel_AllReduce", 9, 360, 460, 3),
                 ("gelu", 7, 650, 700, 4), ("unlaunched", 7, 520, 570, 9)],
        api=[(LAUNCH, 110, 112, 1), (LAUNCH, 210, 215, 2), (LAUNCH, 350, 355, 3), (LAUNCH, 590, 595, 4)],
    )  # fmt: skip
    rows = phase_rows(trace).set_index("phase")
    assert (rows[["host_ms", "gpu_ms"]] * 1e6).round().assign(kernels=rows["kernels"]).T.to_dict("list") == {
        "data": [100, 0, 0], "forward": [100, 100, 1], "backward": [150, 200, 1], "communication": [50, 100, 1],
        "optimizer": [100, 0, 0], "other": [100, 100, 2],
    }  # fmt: skip
    assert rows[["host_share", "gpu_share"]].sum().tolist() == pytest.approx([1, 1])


def test_a_cpu_has_unknown_gpu_times_and_a_trace_without_phases_has_no_rows() -> None:
    rows = phase_rows(timeline(steps=[(0, 0, 500)], ranges=LOOP))
    assert rows["phase"].tolist() == ["data", "forward", "backward", "optimizer"]
    assert rows["gpu_ms"].isna().all() and rows["kernels"].isna().all()
    assert len(phase_rows(timeline())) == 0
    assert len(phase_rows(timeline(kernels=[("sgemm", 7, 0, 10)], ranges=[("layer.3", 0, 10)]))) == 0
