from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_kineto_reader import event, write

from analysis.metrics.breakdown import breakdown, union_ns
from analysis.names import family
from analysis.readers.kineto import read


def test_a_cpu_profile_adds_up_self_times_inside_the_steps(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("bertbench:forward", 0, 400, "user_annotation"),
        event("bertbench:layer.0.attention", 10, 100, "user_annotation"),
        event("bertbench:backward", 400, 500, "user_annotation"),
        event("aten::linear", 0, 300),
        event("aten::addmm", 50, 200),
        event("aten::mm", 400, 400, tid=2),
        event("aten::mm", 1500, 900),  # after the last step
    ]
    found = breakdown(read(write(tmp_path / "trace-rank0.json", events)))
    assert found.source == "CPU operators"
    assert [(row["name"], row["total_ms"]) for row in found.operators] == [
        ("aten::mm", 0.4),
        ("aten::addmm", 0.2),
        ("aten::linear", pytest.approx(0.1)),
    ]
    assert found.operators[0]["share"] == pytest.approx(4 / 7)
    assert found.steps == [{"step": 3, "wall_ms": 1.0, "busy_ms": 0.7, "busy_share": pytest.approx(0.7)}]
    assert {row["phase"]: row["share"] for row in found.phases} == pytest.approx(
        {"forward": 0.4, "backward": 0.5, "other": 0.1}
    )
    assert [row["family"] for row in found.families] == ["matrix product"]


def test_a_gpu_profile_counts_kernels_and_their_union(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#0", 0, 1000, "user_annotation"),
        event("aten::mm", 0, 900),
        event("ampere_sgemm", 0, 300, "kernel"),
        event("ncclDevKernel_AllReduce", 200, 300, "kernel", tid=9),
        event("late", 950, 200, "kernel"),
    ]
    found = breakdown(read(write(tmp_path / "a.json", events)))
    assert found.source == "GPU kernels"
    assert found.steps[0]["busy_ms"] == pytest.approx(0.55)
    families = {row["family"]: row["total_ms"] for row in found.families}
    assert families["communication"] == pytest.approx(0.3) and families["matrix product"] == pytest.approx(0.3)


def test_a_trace_without_steps_or_work_gives_empty_tables(tmp_path: Path) -> None:
    found = breakdown(read(write(tmp_path / "a.json", [])))
    assert found.steps == found.operators == found.phases == found.families == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "matrix product"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm_backward", "normalisation"),
        ("aten::gelu", "activation"),
        ("aten::bernoulli_", "dropout"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::_log_softmax", "softmax and loss"),
        ("aten::copy_", "copy and cast"),
        ("gloo:all_reduce", "communication"),
        ("aten::add", "elementwise"),
        ("mystery", "other"),
    ],
)
def test_families_by_name(name: str, expected: str) -> None:
    assert family(name) == expected


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=30))
def test_the_union_counts_every_covered_nanosecond_once(spans: list[tuple[int, int]]) -> None:
    intervals = [(start, start + length) for start, length in spans]
    covered = {point for start, end in intervals for point in range(start, end)}
    assert union_ns(intervals) == len(covered)
