"""Figures of profiles: iterations, where time goes, use of cores, kernels below ceilings; what cannot be shown."""

from pathlib import Path

import pytest
from support import ncu_csv
from support.charts import SVG, svg_of, titles, values
from support.shared_files import samples
from support.timelines import timeline

from analysis.counters import KernelCounters
from analysis.metrics.kernels.core_utilization import core_use_by_family
from analysis.metrics.kernels.roofline import roofline
from analysis.readers.kineto import reader as kineto
from analysis.readers.ncu import read
from analysis.render import figure as charts
from analysis.render.figure import Figure, write_png
from analysis.render.profile_figures import core_utilization_figure, roofline_figure, trace_figures
from analysis.timeline import Timeline

MS = 1_000_000


def rank_timeline(rank: int | None, steps: int = 3) -> Timeline:
    kernels = []
    for step in range(steps):
        begin = step * 100 * MS
        kernels += [
            ("sgemm", 7, begin, begin + 40 * MS),
            ("ncclDevKernel_AllReduce", 9, begin + (30 + (rank or 0)) * MS, begin + 60 * MS),
            ("Memcpy HtoD", 7, begin + 70 * MS, begin + 75 * MS, -1, "memcpy"),
        ]
    marks = [(step, step * 100 * MS, step * 100 * MS + (80 + step) * MS) for step in range(steps)]
    return timeline(rank, steps=marks, kernels=kernels)


def of_time(*timelines: Timeline) -> list[Figure]:
    return trace_figures(timelines).get("temporal_breakdown", [])


def ranks(figure: Figure) -> list[str]:
    return [label.get_text() for label in charts.drawn(figure).axes[0].get_yticklabels()]


def test_many_ranks_are_cut_a_still_step_is_idle_and_a_cpu_trace_is_shown() -> None:
    for figure in of_time(*(rank_timeline(rank, steps=1) for rank in range(18))):
        assert len(ranks(figure)) == 16 and "first 16 of 18 ranks" in figure.caption
    iteration, _ = of_time(timeline(0, steps=[(0, 0, 10)], kernels=[("sgemm", 7, 500, 600)]))
    assert set(titles(iteration)) == {"idle"}
    cpu = timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, 40)], collectives=[("all_reduce", 30, 70)])
    assert all(len(ranks(figure)) == 1 for figure in of_time(cpu, timeline(1)))
    assert of_time() == of_time(timeline()) == []


@pytest.mark.parametrize("folder", samples("kineto/nccl-4-ranks", "kineto/dlrm-8-ranks"))
def test_every_rank_of_a_job_is_shown_in_a_small_picture(folder: Path) -> None:
    paths = sorted(folder.glob("*.json.gz"))
    for figure in of_time(*(kineto.read(path) for path in paths)):
        assert len(ranks(figure)) == len(paths) and len(charts.figure_html(figure)) < 400_000


def example(folder: Path) -> KernelCounters:
    path = folder / "a.csv"
    path.write_text(ncu_csv.raw())
    return read(path)


def counters(folder: Path) -> KernelCounters:
    """Four kernels, one of which does known work."""
    path = folder / "ncu.csv"
    path.write_text(ncu_csv.raw())
    frame = read(path).kernels.assign(**{"dram__bytes.sum": 1e6, "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1e8})
    for op in ("add", "mul", "fma"):
        frame[f"sm__sass_thread_inst_executed_op_f{op}_pred_on.sum"] = 1e6
    return KernelCounters(frame, {}, "NVIDIA H200", (9, 0), ())


def texts(figure: Figure) -> set[str]:
    return {one.text or "" for one in svg_of(figure).iter(f"{SVG}text")}


def test_a_pipe_that_is_not_in_the_file_is_named_and_has_no_bar(tmp_path: Path) -> None:
    frame = example(tmp_path).kernels.drop(columns=list(ncu_csv.METRICS[2:]))
    figure = core_utilization_figure(core_use_by_family(KernelCounters(frame, {}, None, None, ())))
    assert "Not in this file: tensor cores, SFU." in figure.caption and "tensor cores" not in titles(figure)
    nothing = KernelCounters(frame.head(0), {}, None, None, ())
    assert write_png(core_utilization_figure(core_use_by_family(nothing)), tmp_path).is_file()


def test_kernels_lie_where_their_work_and_bytes_put_them_under_labelled_ceilings(tmp_path: Path) -> None:
    lines = roofline(counters(tmp_path))
    figure = roofline_figure(lines)
    row = lines.kernels[lines.kernels["family"] == "GEMM"].iloc[0]
    assert values(figure, "GEMM", 1) == pytest.approx([row["dram_flop_per_byte"]], rel=0.01)
    assert "DRAM 4,800 GB/s" in texts(figure)
    assert any(text.startswith("tensor bf16 989 TFLOP/s") for text in texts(figure))
