"""Two small reports of Nsight Compute; tests/golden/ncu/raw.csv is what ncu 2022.3 prints of the first one.

`make test-slow` compares it with what the installed ncu prints (tests/slow/test_ncu_real.py). To write it again:
TZ=UTC ncu --import FILE --csv --page raw, of what `old_report()` returns.
"""

from support.ncu_report_file import GLOBAL, LOCAL, Kernel, Rule, report

TIME, CYCLES = "gpu__time_duration.sum", "gpc__cycles_elapsed.max"
TENSOR = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed"
L1_HITS, L2_HITS = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
GUIDE = "See the @url:Guide:https://docs.nvidia.com/a#b@ and the @section:LaunchStats:Launch Statistics@ section."
GEMM, SOFTMAX = "void sm80_gemm<int>(float *, int)", "softmax_warp_forward(float *)"


def metrics(time_ns: int, cycles: int, tensor: float, l1: float, l2: float, waits: float) -> dict[str, int | float]:
    """A warp waits `waits` cycles for memory and 1 for a barrier; 1 cycle issues and 2 more are in no reason."""
    return {
        TIME: time_ns,
        CYCLES: cycles,
        TENSOR: tensor,
        L1_HITS: l1,
        L2_HITS: l2,
        LATENCY: waits + 4,
        STALL.format("long_scoreboard"): waits,
        STALL.format("barrier"): 1.0,
        STALL.format("selected"): 1.0,
        "launch__func_cache_config": "cudaFuncCachePreferNone",  # type: ignore[dict-item]
    }


def old_report() -> bytes:
    """Processes 7, 8 and 7 again, with ranges and with rules without estimates: what Nsight Compute 2022 writes."""
    rules = [
        Rule("SOLBottleneck", "SpeedOfLight", GUIDE, "ok"),
        Rule("CPIStall", "WarpStateStats", "Stalled.", "warning"),
    ]
    first = [
        Kernel(
            GEMM,
            metrics(3000, 6000, 80.0, 10.5, 50.25, 16.0),
            rules,
            ranges={"bertbench": ["step 1", "forward"], "other": ["x:y"]},
        ),
        Kernel(
            SOFTMAX,
            metrics(1000, 1000, 0.0, 0.0, 25.5, 36.0),
            [Rule("HighPipeUtilization", "ComputeWorkloadAnalysis", "Balanced.", "none")],
            starts={"bertbench": ["all-reduce"]},
            other_thread={"bertbench": ["backward"]},
        ),
    ]
    second = [Kernel(SOFTMAX, metrics(5000, 10_000, 0.0, 100.0, 75.0, 6.0))]
    return report([(7, first), (8, second), (7, [Kernel(GEMM, metrics(1000, 3000, 50.0, 30.5, 90.25, 56.0))])])


def new_report() -> bytes:
    """One process with estimates, as later versions write them: 10 us in all."""
    occupancy = Rule("TheoreticalOccupancy", "Occupancy", "Few warps.", speedup=(GLOBAL, 40.0))
    bottleneck = Rule("SOLBottleneck", "SpeedOfLight", "Small grid.")
    kernels = [
        Kernel(GEMM, {TIME: 2000, CYCLES: 1}, [occupancy, bottleneck]),
        Kernel(
            GEMM, {TIME: 6000, CYCLES: 1}, [Rule("TheoreticalOccupancy", "Occupancy", "Fewer.", speedup=(GLOBAL, 20.0))]
        ),
        Kernel(
            SOFTMAX,
            {TIME: 2000, CYCLES: 1},
            [Rule("UncoalescedAccess", "SourceCounters", "Apart.", speedup=(LOCAL, 90.0))],
        ),
    ]
    return report([(7, kernels)])
