"""Figures of kernel counters: bars with their numbers, kernels under their ceilings, and what cannot be shown."""

from pathlib import Path

import pytest
from every_figure import counters
from support import ncu_csv

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ceilings import DRAM
from analysis.metrics.kernels.core_utilization import core_use, core_use_by_family
from analysis.metrics.kernels.roofline import roofline
from analysis.readers.ncu.reader import read
from analysis.render.figure import Bars, Line, Text
from analysis.render.kernel_figures import core_utilization_figure, roofline_figure
from analysis.render.png import write_png


def example(folder: Path) -> KernelCounters:
    path = folder / "a.csv"
    path.write_text(ncu_csv.raw())
    return read(path)


def test_bars_have_their_numbers_and_the_names_of_the_groups(tmp_path: Path) -> None:
    use = core_use_by_family(example(tmp_path))
    (panel,) = core_utilization_figure(use, "kind of work").panels
    groups = [text for _, text in panel.x.ticks or ()]
    assert {"GEMM", "elementwise"} <= set(groups) and panel.x.label == "kind of work"
    (tensor,) = [one for one in panel.named("tensor cores") if isinstance(one, Bars)]
    assert tensor.end[groups.index("GEMM")] == pytest.approx(use["GEMM"].pipes["tensor"].percent)
    assert {"70", "60"} <= {one.text for one in panel.series if isinstance(one, Text)}


def test_a_pipe_that_is_not_in_the_file_is_named_and_has_no_bar(tmp_path: Path) -> None:
    frame = example(tmp_path).kernels.drop(columns=list(ncu_csv.METRICS[2:]))
    figure = core_utilization_figure({"4": core_use(KernelCounters(frame, {}, None, None, ()))}, "micro batch size")
    assert "Not in this file: tensor cores, SFU." in figure.note and not figure.panels[0].named("tensor cores")
    assert write_png(core_utilization_figure({}, "nothing"), tmp_path).is_file()


def test_kernels_lie_where_their_work_and_bytes_put_them_under_labelled_ceilings(tmp_path: Path) -> None:
    found = roofline(counters(tmp_path))
    (panel,) = roofline_figure(found).panels
    (gemm,) = [one for one in panel.named("GEMM") if isinstance(one, Line)]
    row = found.kernels[found.kernels["family"] == "GEMM"].iloc[0]
    assert (gemm.x[0], gemm.y[0]) == (row["intensity_flop_per_byte"], row["achieved_flops"])
    texts = [one.text for one in panel.series if isinstance(one, Text)]
    assert "DRAM 4,800 GB/s" in texts and any(text.startswith("tensor bf16 989 TFLOP/s") for text in texts)


def test_each_level_has_its_own_place_and_slope(tmp_path: Path) -> None:
    own = counters(tmp_path)
    more = {"lts__t_bytes.sum": 4e6, "lts__t_bytes.sum.peak_sustained": 5.0, "lts__cycles_elapsed.avg.per_second": 1e12}
    found = roofline(KernelCounters(own.kernels.assign(**more), {}, own.device_name, own.compute_capability, ()))
    figure = roofline_figure(found)
    (panel,) = figure.panels
    (dram,), (l2,) = (panel.named(name) for name in ("GEMM", "GEMM, L2"))
    assert isinstance(dram, Line) and isinstance(l2, Line) and (dram.marker, l2.marker) == ("circle", "square")
    assert l2.x[0] == pytest.approx(dram.x[0] / 4) and l2.y[0] == dram.y[0]
    (slope,) = [one for one in panel.named("l2") if isinstance(one, Line)]
    assert slope.y[0] / slope.x[0] == pytest.approx(5e12) and "square" in figure.note
    assert "L2 5,000 GB/s" in [one.text for one in panel.series if isinstance(one, Text)]
    assert not panel.named("GEMM, L1/TEX") and write_png(figure, tmp_path).is_file()


def test_what_cannot_be_placed_is_counted_in_a_note(tmp_path: Path) -> None:
    note = roofline_figure(roofline(example(tmp_path))).note
    assert "3 of 3 kernels (100 % of the time) cannot be placed" in note and "peak is unknown" in note


@pytest.mark.parametrize(
    "measured",
    [
        {DRAM: 1e300},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({DRAM: 1e-3, "fp32": 1e3}, {"tensor_bf16": 1e290})),
    ],
)
def test_hostile_names_and_extreme_rates_are_drawn(tmp_path: Path, measured: dict[str, float]) -> None:
    hostile = counters(tmp_path, "$\\frac{<script>}\x00\u202e" + "x" * 5000)
    assert write_png(roofline_figure(roofline(hostile, measured)), tmp_path).is_file()
    groups = {f"$_{place}\n<script>": core_use(hostile) for place in range(40)}
    assert write_png(core_utilization_figure(groups, "$x"), tmp_path).is_file()
