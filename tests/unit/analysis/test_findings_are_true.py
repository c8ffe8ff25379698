"""Sentences and numbers of cases that lie at the edge: CPU traces, unknown ranks, no lengths, several at a time."""

import dataclasses
import math
from pathlib import Path

import pandas as pd
import pytest
from support.profiles import SAMPLES
from support.refusals import refused
from support.timelines import timeline

from analysis.counters import KernelCounters, Summary
from analysis.diagnose.explain import counter_endings, explain
from analysis.diagnose.finding import Finding, distinct_names
from analysis.diagnose.summaries import findings as summary_findings
from analysis.metrics.comparison.traces import compare_traces, trace_diff
from analysis.metrics.kernels.tables import copy_rows
from analysis.metrics.time.idle import launch_queue
from analysis.metrics.time.phases import phase_rows
from analysis.names import has_fused_optimizer
from analysis.sources import Source, open_sources
from analysis.timeline import LostKernels

MS = 1_000_000
US = 1_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in found}


def test_a_side_without_gpu_work_says_why_it_has_none() -> None:
    lost = timeline(steps=[(0, 0, 90)], operators=[("aten::mm", 0, 40)])
    lost = dataclasses.replace(lost, problems=(LostKernels("b.json has no kernels: copy it"),))
    with refused("run-mismatch", "b.json has no kernels"):
        compare_traces([timeline(steps=[(0, 0, 90)], kernels=[("gemm", 7, 0, 40)])], [lost])


def test_calls_take_time_not_number_and_unknown_sizes_have_no_rate() -> None:
    calls = Summary(
        "api", "calls", pd.DataFrame([("cudaLaunchKernel", 10, 9_000)], columns=["name", "count", "total_ns"])
    )
    assert "of the calls' time" in summary_findings([calls])[0].sentence
    table = pd.DataFrame({"name": ["HtoD"], "count": [1], "total_ns": [1000], "total_bytes": [math.nan]})
    (found,) = summary_findings([Summary("copies", "copies", table)])
    assert found.table["gb_per_second"].isna().all()


def test_steps_without_length_do_not_compare() -> None:
    still = timeline(steps=[(0, 5, 5), (1, 9, 9)], kernels=[("gemm", 7, 6, 8)])
    with refused("trace-without-work"):
        compare_traces([still], [still])


def test_names_of_findings_are_distinct_over_traces_tables_and_files(tmp_path: Path) -> None:
    SAMPLES["kineto"](tmp_path / "a.json")
    for name in ("k.csv", "k2.csv"):
        (tmp_path / name).write_text(totals_csv(tmp_path) + ("\n" if name == "k.csv" else ""))
    names = [one.name for one in explain(open_sources(tmp_path))]
    assert len(set(names)) == len(names) and {"kernel_families", "kernel_families_2", "kernel_families_3"} <= set(names)


def totals_csv(folder: Path) -> str:
    path = folder / "made"
    SAMPLES["nsys_csv"](path)
    text = path.read_text()
    path.unlink()
    return text


def test_endings_of_tables_of_counters_are_distinct_short_and_plain() -> None:
    files = tuple(Path(name) for name in ("a.csv", "b/a.csv", "a_2.csv", "ÄÖ.csv", f"{'x' * 250}.csv", "A b-c.csv"))
    nothing = KernelCounters(pd.DataFrame(), {}, None, None, ())
    endings = counter_endings(Source(path=Path(), counters=(nothing,) * len(files), counter_files=files))
    assert endings == ["_a", "_a_3", "_a_2", "_table", f"_{'x' * 60}", "_a_b_c"]
    assert distinct_names(["a", "a_2", "a", "a"]) == ["a", "a_2", "a_3", "a_4"]


def test_hand_worked_launches_copies_and_phases() -> None:
    """Kernels launched at 0, 20 us by calls of 5 us, begun at 8, 41 us: one waits at 0-8, 20-41, none at 8-20 us.

    The copy, launched at 10 us and begun at 20 us, is no kernel.
    """
    run = timeline(
        steps=[(0, 0, 100 * US)],
        ranges=[("forward", 0, 18 * US), ("backward", 18 * US, 30 * US)],
        api=[("cudaLaunchKernel", at * US, (at + 5) * US, number) for number, at in ((1, 0), (2, 10), (3, 20))],
        kernels=[("gemm", 7, 8 * US, 30 * US, 1), ("Memcpy HtoD (Pinned -> Device)", 8, 20 * US, 40 * US, 2, "memcpy"),
                 ("gelu", 7, 41 * US, 51 * US, 3)],
    )  # fmt: skip
    queue = launch_queue([run]).iloc[0]
    assert queue[["depth_max", "delay_median_us", "matched", "launches_per_step"]].tolist() == [1, 14.5, 2, 2]
    assert queue["depth_mean"] == pytest.approx((8 + 21) / 41) and queue["empty_share"] == pytest.approx(12 / 41)
    copy = copy_rows(run).iloc[0]
    assert (copy["direction"], copy["host_memory"], copy["overlapped_share"]) == ("HtoD", "pinned", 0.5)
    phases = phase_rows(run).set_index("phase")
    assert phases["gpu_ms"].to_dict() == {"forward": 0.042, "backward": 0.01, "other": 0.0}
    assert phases["kernels"].to_dict() == {"forward": 1, "backward": 1, "other": 0}
    assert phases["host_share"].to_dict() == pytest.approx({"forward": 0.18, "backward": 0.12, "other": 0.7})


def test_a_hand_worked_difference() -> None:
    """Two ranks and two steps against one rank and one step: sums are per step and rank."""
    steps = [(0, 0, 100 * MS), (1, 100 * MS, 200 * MS)]
    before = [timeline(rank, steps=steps, kernels=[("gemm", 7, 0, 20 * MS), ("gelu", 7, 120 * MS, 124 * MS)])
              for rank in (0, 1)]  # fmt: skip
    after = [timeline(0, steps=steps[:1], kernels=[("gemm", 7, 0, 15 * MS), ("norm", 7, 30 * MS, 31 * MS)])]
    rows = trace_diff(before, after).set_index("name")
    assert rows["delta_ms"].to_dict() == {"gemm": 5.0, "gelu": -2.0, "norm": 1.0}
    assert rows["change"].to_dict() == {"gemm": "slower", "gelu": "removed", "norm": "added"}
    assert rows["ratio"]["gemm"] == 1.5 and rows["change_share"]["gemm"] == 5 / 8 and math.isnan(rows["ratio"]["norm"])


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("aten::_fused_adamw_", True),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>", True),
        ("adamw_update", True),
        ("lamb_apply", True),
        ("aten::_foreach_add_", False),
        ("fused_dropout", False),
    ],
)
def test_a_fused_optimizer_is_not_advised_where_there_is_one(name: str, fused: bool) -> None:
    assert has_fused_optimizer(["aten::mm", name]) == fused
