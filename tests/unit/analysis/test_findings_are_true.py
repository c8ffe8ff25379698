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
from analysis.diagnose import communication as communication_findings
from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.explain import counter_endings, explain
from analysis.diagnose.finding import Finding, distinct_names
from analysis.diagnose.roofline import roofline_findings
from analysis.diagnose.summaries import findings as summary_findings
from analysis.metrics.communication.exposure import (
    buckets,
    communication_by_kind,
    communication_by_rank,
    exposed_union_ms,
)
from analysis.metrics.communication.matching import clock_offsets, match_collectives, stragglers
from analysis.metrics.comparison.traces import compare_traces, trace_diff
from analysis.metrics.kernels.roofline import roofline
from analysis.metrics.kernels.tables import copy_rows
from analysis.metrics.time.idle import idle_causes
from analysis.metrics.time.launches import launch_queue
from analysis.metrics.time.phases import phase_rows
from analysis.names import has_fused_optimizer
from analysis.sources import Source, open_sources
from analysis.timeline import Timeline

MS = 1_000_000
US = 1_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in found}


def of_time(*timelines: Timeline) -> dict[str, Finding]:
    return by_name(timeline_findings.findings(timelines))


def gloo(rank: int, compute: int, *spans: tuple[int, int]) -> Timeline:
    """A step of 100 ms on a CPU: `compute` ms of computation, then spans of an all-reduce."""
    return timeline(
        rank,
        steps=[(0, 0, 100 * MS)],
        operators=[("aten::mm", 0, compute * MS)],
        collectives=[("all_reduce", start * MS, end * MS) for start, end in spans],
        world_size=2,
    )


def test_a_cpu_trace_is_not_said_to_have_a_gpu_nor_columns_of_one() -> None:
    ranks = [gloo(0, 60, (60, 90)), gloo(1, 20, (20, 90))]
    found = {**of_time(*ranks), **by_name(communication_findings.findings(ranks)),
             **by_name(timeline_findings.operator_findings(ranks))}  # fmt: skip
    said = " ".join(one.sentence + one.title for one in found.values())
    assert "GPU" not in said and "CUDA" not in said and "kernel" not in said
    columns = {name for one in found.values() for name in one.table.columns}
    assert not columns & {"memory_ms", "gpu_ms", "kernels", "devices", "sm_weighted_utilization", "exposed_memory_ms"}
    assert "launch_bound" not in set(found["idle_causes"].table["cause"])
    # Computing: 80 of 200 ms; busy: 100 + 90 ... 90 + 90 of 200, so that the two shares need their own words.
    assert "The CPU does not compute 60.0 % of the time" in found["idle_causes"].sentence
    assert "10.0 % idle" in found["temporal_breakdown"].sentence


def test_a_first_rank_without_work_does_not_turn_gpus_into_cpus() -> None:
    empty = timeline(0, steps=[(0, 0, 10 * US)])
    busy = timeline(1, steps=[(0, 0, 10 * US)], kernels=[("gemm", 7, 0, 5 * US)])
    sentence = of_time(empty, busy)["compute_utilization"].sentence
    assert sentence.startswith("The GPU has a kernel running 50.0 % of the time (1 of 2 ranks)")


def test_a_trace_of_ranges_alone_is_not_said_to_be_idle() -> None:
    """What nsys records of a run on a CPU: steps and ranges, no work."""
    steps = [(0, 0, 10 * MS), (1, 10 * MS, 30 * MS)]
    found = of_time(timeline(steps=steps, ranges=[("bertbench:forward", MS, 9 * MS)]))
    assert "temporal_breakdown" not in found and "idle_causes" not in found
    assert "--profiler torch" in found["compute_utilization"].sentence
    assert "median step takes 15 ms" in found["iterations"].sentence
    assert set(found["iterations"].table["quantity"]) == {"step_time_ms"}
    assert found["steps"].sentence == "The slowest is step 1 of rank 0: 20 ms."
    assert set(found["steps"].table) == {"rank", "step", "step_time_ms"}


def test_windows_of_several_ranks_are_named_from_the_shortest_to_the_longest() -> None:
    short, long = (timeline(rank, kernels=[("gemm", 7, 0, (rank + 1) * MS)]) for rank in (0, 1))
    (both,), (one,) = timeline_findings.window_findings([short, long]), timeline_findings.window_findings([short])
    assert "all work, from its first start to its last end, 1 to 2 ms," in both.sentence
    assert "last end, 1 ms," in one.sentence
    assert both.table[["window", "steps", "span_ms"]].to_numpy().tolist() == [["work", 0, 1.0], ["work", 0, 2.0]]


def test_work_without_length_gives_words_not_nan() -> None:
    found = of_time(timeline(steps=[(0, 0, 10)], kernels=[("gemm", 7, 5, 5), ("gelu", 7, 6, 6)]))
    operators = by_name(timeline_findings.operator_findings([timeline(operators=[("aten::mm", 5, 5)])]))
    for one in (*found.values(), *operators.values()):
        assert "nan" not in one.sentence, one.name
    assert "took any time" in found["top_kernels"].sentence and "took any time" in found["kernel_families"].sentence
    assert "took any time" in operators["operator_families"].sentence


def test_the_median_step_is_that_of_the_slowest_ranks() -> None:
    """Steps of 10, 20 ms on rank 0 and 30, 12 ms on rank 1: the run's take 30 and 20 ms, the median 25."""
    first = timeline(0, steps=[(0, 0, 10 * MS), (1, 30 * MS, 50 * MS)], kernels=[("gemm", 7, 0, MS)])
    second = timeline(1, steps=[(0, 0, 30 * MS), (1, 30 * MS, 42 * MS)], kernels=[("gemm", 7, 0, MS)])
    found = of_time(first, second)["iterations"]
    row = found.table.set_index("quantity").loc["step_time_ms"]
    assert (row["steps"], row["median"], row["min"], row["max"]) == (2, 25, 20, 30)
    assert "median step takes 25 ms, from 20 to 30 ms" in found.sentence and "slowest rank" in found.title


def test_data_on_a_gpu_is_copies_and_on_a_cpu_loading() -> None:
    ranges = [("bertbench:data", 0, 20), ("bertbench:forward", 20, 100)]
    api = [("cudaMemcpyAsync", 5, 6, 1), ("cudaLaunchKernel", 25, 26, 2)]
    kernels = [("Memcpy HtoD (Pageable -> Device)", 7, 10, 30, 1, "memcpy"), ("gemm", 7, 30, 90, 2)]
    on_gpu = of_time(timeline(steps=[(0, 0, 100)], ranges=ranges, api=api, kernels=kernels))["phases"].sentence
    on_cpu = of_time(timeline(steps=[(0, 0, 100)], ranges=ranges, operators=[("aten::mm", 20, 90)]))["phases"].sentence
    assert (
        on_gpu
        == "forward takes 75.0 % of the GPU's time; data takes more than a tenth, so copy inputs from pinned memory."
    )
    assert "forward takes 80.0 % of the steps' time on the CPU" in on_cpu and "background" in on_cpu


def test_collectives_at_the_same_time_are_exposed_once() -> None:
    """gloo spans 40-90 and 50-95 ms beside computation of 0-60: exposed 60-95, not 30 + 35."""
    run = gloo(0, 60, (40, 90), (50, 95))
    assert exposed_union_ms(run, buckets(run)) == 35
    found = by_name(communication_findings.findings([run]))["buckets"]
    assert list(found.table["exposed_ms"]) == [30, 35]
    assert "of step 0 accounts for 35 of 35 ms" in found.sentence and "10 ms of computation" in found.sentence


def test_what_ranks_may_leave_early_is_not_split_and_all_ranks_are_not_asked_for() -> None:
    ranks = [
        timeline(rank, kernels=[("ncclDevKernel_Broadcast", 7, 0, 50), ("gemm", 8, 50, 100)],
                 collectives=[("broadcast", 0, 50, 100, -1, 7, "g", 2, 1)], world_size=2)
        for rank in (0, 1)
    ]  # fmt: skip
    sentence = by_name(communication_findings.findings(ranks))["all_reduce_by_rank"].sentence
    assert "read the traces of all ranks" not in sentence and "broadcast" in sentence
    alone = by_name(communication_findings.findings(ranks[:1]))["all_reduce_by_rank"].sentence
    assert "read the traces of all ranks" in alone


def test_of_some_ranks_a_bandwidth_includes_waiting_and_the_network_is_not_blamed() -> None:
    ranks = [
        timeline(rank, kernels=[(NCCL, 7, rank * MS, 10 * MS, 1)], world_size=size,
                 collectives=[("all_reduce", rank * MS, 10 * MS, 100 << 20, -1, 7, "g", size, 1)])
        for size in (2, 8) for rank in (0, 1)
    ]  # fmt: skip
    whole, part = (by_name(communication_findings.findings(ranks[at : at + 2]))["collectives"] for at in (0, 2))
    assert "once all ranks have arrived" in whole.sentence and "check the topology" in whole.sentence
    assert "waiting for other ranks included" in part.sentence and "check the topology" not in part.sentence
    assert "2 of the job's 8 ranks" in part.sentence


def test_what_was_launched_before_a_recording_is_named_as_a_difference() -> None:
    calls = [("cudaLaunchKernel", n * MS, n * MS + US, n) for n in range(1, 9)]
    kernels = [("gemm", 7, n * MS + 10, n * MS + 100, n) for n in range(1, 9)]
    early = ("gemm", 7, 0, 100, -1)
    usual, other = (timeline(steps=[(0, 0, 9 * MS)], kernels=rows, api=calls) for rows in (kernels, [early, *kernels]))
    said = [text for text in compare_traces([usual], [other]).differences if "before the recording" in text]
    assert len(said) == 1 and said[0].endswith("0 and 1")
    assert not compare_traces([other], [other]).differences


def test_a_side_without_gpu_work_says_why_it_has_none() -> None:
    lost = timeline(steps=[(0, 0, 90)], operators=[("aten::mm", 0, 40)])
    lost = dataclasses.replace(lost, problems=("b.json has no kernels: copy it",))
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


def test_a_family_whose_ceiling_is_unknown_is_not_said_to_compute_nothing() -> None:
    pipe = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"
    frame = pd.DataFrame(
        {"process": [1], "kernel_id": [0], "name": ["sgemm"], "device": pd.array([0], dtype="Int64"),
         "duration_ns": [1000.0], "cycles": [1000.0], "dram__bytes.sum": [1e3], pipe: [50.0],
         "dram__throughput.avg.pct_of_peak_sustained_elapsed": [10.0],
         **{f"sm__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum": [1e3 if kind == "f" else 0.0]
            for kind in "fdh" for op in ("add", "mul", "fma")},
         "sm__inst_executed_pipe_tensor.sum": [0.0]}
    )  # fmt: skip
    found = by_name(roofline_findings(roofline(KernelCounters(frame, {}, "some GPU", None, ()))))
    assert "the ceiling of its kind" in found["roofline_by_family"].sentence
    assert "no floating-point work" not in found["roofline_by_family"].sentence
    busy = KernelCounters(frame.assign(**{pipe: [90.0]}), {}, "some GPU", None, ())
    bound = by_name(roofline_findings(roofline(busy)))["roofline_by_family"]
    assert "GEMM is bound by compute (FMA)" in bound.sentence


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


def test_a_hand_worked_run_of_two_ranks() -> None:
    """Rank 1 comes 20 us later. One all-reduce of 1 MB: 60 us on rank 0 and 40 us on rank 1, which is the transfer.

    algbw is 10^6 bytes over 60 us and 40 us, 16.7 and 25 GB/s; with 2 ranks the bus factor is 1. Of rank 0's 60 us the
    GEMM hides 30, of the exposed 30 the last 40 are transfer: all 30 of them.
    """
    ranks = [
        timeline(0, steps=[(0, 0, 200 * US)], world_size=2,
                 kernels=[("gemm", 7, 0, 110 * US), (NCCL, 9, 80 * US, 140 * US)],
                 collectives=[("all_reduce", 80 * US, 140 * US, 10**6, -1, 9, "g", 2, 1)]),
        timeline(1, steps=[(0, 0, 200 * US)], world_size=2,
                 kernels=[("gemm", 7, 0, 100 * US), (NCCL, 9, 100 * US, 140 * US)],
                 collectives=[("all_reduce", 100 * US, 140 * US, 10**6, -1, 9, "g", 2, 1)]),
    ]  # fmt: skip
    matching = match_collectives(ranks)
    kinds = communication_by_kind(ranks, matching).set_index("rank")
    assert kinds.loc[0, "algbw_gb_s"] == pytest.approx(1e6 / 60e3) and kinds.loc[1, "busbw_gb_s"] == pytest.approx(25)
    assert kinds.loc[0, "transfer_busbw_gb_s"] == pytest.approx(25)
    rows = communication_by_rank(ranks, matching).set_index("rank")
    assert rows.loc[0, ["communication_ms", "overlapped_ms", "exposed_ms"]].tolist() == [0.06, 0.03, 0.03]
    assert rows.loc[0, ["exposed_transfer_ms", "exposed_wait_ms"]].tolist() == [0.03, 0.0]
    assert rows.loc[0, ["communication_share", "exposed_share", "overlap_share"]].tolist() == [0.3, 0.15, 0.5]
    late = stragglers(ranks, matching, clock_offsets(ranks, matching).offsets_ns)
    assert late.iloc[0][["rank", "times_last", "wait_caused_ms"]].tolist() == [1, 1, 0.02]


def test_a_group_of_eight_divides_what_is_gathered() -> None:
    """8 MB received by each of 8 ranks in 1 ms: algbw 8 GB/s, busbw 7/8 of it; reduce and broadcast count once."""
    for kind, factor in (("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("all_reduce", 14 / 8), ("broadcast", 1.0),
                         ("reduce", 1.0), ("all_to_all", 7 / 8)):  # fmt: skip
        run = timeline(kernels=[(NCCL, 7, 0, MS)], collectives=[(kind, 0, MS, 8 * 10**6, -1, 7, "g", 8, 1)])
        row = communication_by_kind([run]).iloc[0]
        assert row["algbw_gb_s"] == 8 and row["busbw_gb_s"] == pytest.approx(8 * factor), kind


def test_a_hand_worked_idle_step() -> None:
    """Idle: 0-30 ended by a launch at 10-14 in a data range 0-12; 50-80 in the queue since 20; 90-100 ended by nothing.

    0-14 waits for the CPU: 12 data, 2 launch-bound; 14-30 latency; 50-80 and 90-100 other.
    """
    run = timeline(
        steps=[(0, 0, 100)],
        ranges=[("bertbench:data", 0, 12)],
        api=[("cudaLaunchKernel", 10, 14, 1), ("cudaLaunchKernel", 20, 22, 2)],
        kernels=[("a", 7, 30, 50, 1), ("b", 7, 80, 90, 2)],
    )
    found = idle_causes(run)
    assert found is not None
    causes = (found.data_wait_ns, found.communication_wait_ns, found.launch_bound_ns, found.other_ns, found.idle_ns)
    assert causes == (12, 0, 2, 56, 70)


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
    queue = launch_queue(run)
    assert queue is not None
    assert (queue.depth_max, queue.delay_median_us, queue.matched) == (1, 14.5, 2)
    assert queue.depth_mean == pytest.approx((8 + 21) / 41) and queue.empty_share == pytest.approx(12 / 41)
    assert queue.short_delay_share == pytest.approx(1 / 2) and queue.launches_per_step == 2
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


def test_two_gpus_of_one_rank_are_idle_only_together_and_busy_on_average() -> None:
    run = timeline(steps=[(0, 0, 100)], kernels=[("gemm", 7, 0, 40), ("gelu", 8, 20, 60)])
    kernels = run.kernels.assign(device=[0, 1])
    found = of_time(dataclasses.replace(run, kernels=kernels))
    assert found["temporal_breakdown"].table["idle_share"].tolist() == [0.4]
    assert found["compute_utilization"].table["compute_utilization"].tolist() == [0.4]


def test_who_is_late_by_turns_is_not_called_the_straggler() -> None:
    """Rank 0 comes 50 us late to the first all-reduce, rank 1 60 us to the second: 45 and 55 % of the waiting."""
    talks = {0: [(50, 100), (140, 260)], 1: [(0, 100), (200, 260)]}
    ranks = [
        timeline(rank, world_size=2, kernels=[("gemm", 7, 0, 300 * US), *((NCCL, 9, s * US, e * US) for s, e in spans)],
                 collectives=[("all_reduce", s * US, e * US, 100, -1, 9, "g", 2, n) for n, (s, e) in enumerate(spans)])
        for rank, spans in talks.items()
    ]  # fmt: skip
    sentence = by_name(communication_findings.findings(ranks))["stragglers"].sentence
    assert (
        sentence.startswith("Rank 1 arrived last in 1 of 2 collectives")
        and "caused 54.5 %" in sentence
        and "late rank varies" in sentence
    )


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
    ranges = [("bertbench:forward", 0, 40), ("bertbench:optimizer", 40, 100)]
    run = timeline(steps=[(0, 0, 100)], ranges=ranges, operators=[("aten::mm", 0, 40), (name, 40, 100)])
    assert ("a fused one" in of_time(run)["phases"].sentence) != fused
