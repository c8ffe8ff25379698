"""Operators of a CPU trace by their own time."""

from pathlib import Path

import pytest
from support.timelines import timeline
from test_kineto_reader import event, write

from analysis.metrics.operator_tables import operators_over_ranks
from analysis.metrics.range_rows import range_rows
from analysis.readers.kineto import read
from analysis.report.operator_findings import findings, range_findings


def test_own_time_adds_up_inside_the_steps_alone(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("aten::linear", 0, 300),
        event("aten::addmm", 50, 200),
        event("aten::mm", 400, 400, tid=2),
        event("aten::mm", 1500, 900),  # after the last step
    ]
    found = operators_over_ranks([read(write(tmp_path / "trace-rank0.json", events))])
    assert list(zip(found["name"], found["calls"], found["self_ms"], strict=True)) == [
        ("aten::mm", 1, 0.4),
        ("aten::addmm", 1, 0.2),
        ("aten::linear", 1, pytest.approx(0.1)),
    ]
    assert found["self_time_share"].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    families = operators_over_ranks([read(tmp_path / "trace-rank0.json")], "family")
    assert families[["family", "calls"]].to_numpy().tolist() == [["GEMM", 3]]


def test_the_longest_is_named_and_a_gpu_trace_has_its_kernels_instead() -> None:
    cpu = timeline(operators=[("aten::mm", 0, 900), ("aten::gelu", 1000, 1100)])
    families, names = findings([cpu, cpu])
    assert "GEMM takes 90 %" in families.sentence and "aten::mm" in names.sentence
    assert names.table["calls"].tolist() == [2, 2]
    gpu = timeline(operators=[("aten::mm", 0, 900)], kernels=[("sgemm", 7, 0, 10)])
    assert findings([gpu]) == [] == findings([timeline()])


def test_ranges_are_counted_by_name_inside_the_steps() -> None:
    one = timeline(0, steps=[(0, 0, 1000)], ranges=[("a", 0, 300_000), ("b", 10, 20_010), ("a", 2000, 3000)])
    other = timeline(1, ranges=[("a", 0, 100_000)])
    table = range_rows([one, other])
    assert table[["name", "ranks", "count"]].to_numpy().tolist() == [["a", 2, 2], ["b", 1, 1]]
    assert table["total_ms"].tolist() == pytest.approx([0.4, 0.02])
    assert (table.loc[0, "min_ms"], table.loc[0, "max_ms"]) == pytest.approx((0.1, 0.3))
    (finding,) = range_findings([one, other])
    assert "a takes the longest, 0.4 ms in 2" in finding.sentence
    assert range_findings([timeline()]) == []
