"""Which kernels changed between two traces, by hand and on a public pair."""

import pytest
from support import shared_files
from support.refusals import refused
from support.timelines import timeline

from analysis.metrics.comparison.traces import trace_diff
from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto/hta"
MS = 1_000_000


def run(kernels: dict[str, tuple[int, int]], steps: int, rank: int = 0) -> Timeline:
    """Every step runs each kernel `calls` times for `length` ms."""
    rows = []
    for step in range(steps):
        moment = step * 1000 * MS
        for name, (calls, length) in kernels.items():
            for _ in range(calls):
                rows.append((name, 7, moment, moment + length * MS))
                moment += length * MS
    return timeline(rank, steps=[(n, n * 1000 * MS, (n + 1) * 1000 * MS) for n in range(steps)], kernels=rows)


BEFORE = {"sgemm": (2, 10), "gelu": (4, 1), "old_kernel": (1, 3), "softmax": (1, 2)}
AFTER = {"sgemm": (2, 16), "gelu": (2, 1), "flash_fwd": (1, 4), "softmax": (1, 2)}


def test_changes_are_per_step_and_the_largest_comes_first() -> None:
    # 2 ranks x 2 steps against 1 rank x 3 steps
    found = trace_diff([run(BEFORE, 2), run(BEFORE, 2, rank=1)], [run(AFTER, 3)])
    assert found["name"].tolist() == ["sgemm", "flash_fwd", "old_kernel", "gelu", "softmax"]
    assert found["delta_ms"].tolist() == pytest.approx([12, 4, -3, -2, 0])
    assert found["change"].tolist() == ["slower", "added", "removed", "faster", "same"]
    rows = found.set_index("name")
    assert rows.loc["sgemm", ["calls_before", "calls_after", "before_ms", "after_ms", "ratio"]].tolist() == [
        2,
        2,
        20,
        32,
        1.6,
    ]
    assert rows.loc["gelu", ["calls_before", "calls_after", "ratio"]].tolist() == [4, 2, 0.5]
    assert rows["ratio"].isna().to_dict()["flash_fwd"] and rows.loc["old_kernel", "ratio"] == 0
    assert rows["change_share"].tolist() == pytest.approx([12 / 21, 4 / 21, 3 / 21, 2 / 21, 0])
    assert set(found["per"]) == {"step"}


def test_families_add_up_their_kernels() -> None:
    rows = trace_diff([run(BEFORE, 1)], [run(AFTER, 1)], by="family").set_index("family")
    assert rows["delta_ms"].to_dict() == {
        "GEMM": 12,
        "attention": 4,
        "other": -3,
        "activation": -2,
        "softmax and loss": 0,
    }
    assert "name" not in rows.columns


def test_a_side_without_steps_makes_both_per_trace() -> None:
    unmarked = timeline(kernels=[("sgemm", 7, 0, 30 * MS)])
    (row,) = trace_diff([run({"sgemm": (1, 10)}, 2)], [unmarked]).to_dict("records")
    assert (row["per"], row["before_ms"], row["after_ms"], row["calls_before"]) == ("trace", 20.0, 30.0, 2.0)


def test_cpu_traces_compare_operators_by_their_own_time() -> None:
    sides = [
        timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, end), ("aten::add", 200, 210)]) for end in (40, 60)
    ]
    (row,) = trace_diff([sides[0]], [sides[1]]).to_dict("records")
    assert (row["name"], row["family"], row["change"]) == ("aten::mm", "GEMM", "slower")
    assert row["delta_ms"] == pytest.approx(20e-6)


def test_what_does_not_compare_is_said() -> None:
    gpu, cpu = run({"sgemm": (1, 10)}, 1), timeline(operators=[("aten::mm", 0, 10)])
    with refused("run-mismatch", "the second trace"):
        trace_diff([gpu], [cpu])
    with refused("run-mismatch", "the first trace"):
        trace_diff([cpu], [gpu])
    with refused("trace-without-work", "trace"):
        trace_diff([cpu], [timeline()])
    with refused("trace-without-work", "trace"):
        trace_diff([], [])


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_a_public_pair_that_differs_by_one_late_kernel() -> None:
    sides = [read(TRACES / f"trace_compare__{name}.json.gz") for name in ("base__base", "test__test")]
    assert [len(side.kernels) for side in sides] == [18, 17]
    assert sides[0].steps.set_index("step").loc[1010].diff().iloc[-1] == 122_149_000
    first, *rest = trace_diff([sides[0]], [sides[1]]).to_dict("records")
    assert (first["family"], first["change"], first["per"]) == ("elementwise", "faster", "step")
    assert (first["calls_before"], first["calls_after"]) == (1.5, 1.0), (
        "3 in 2 steps, then 2: launched in the last step"
    )
    assert {row["change"] for row in rest} == {"same"} and {row["delta_ms"] for row in rest} == {0.0}
