"""Pictures of core utilisation and the roofline are written for every kind of input, and show what they should."""

import math
from pathlib import Path
from typing import Any

import pytest
from support import ncu_csv

from analysis.counters import KernelCounters
from analysis.metrics.kernels.core_utilization import core_use, core_use_by_family
from analysis.metrics.kernels.roofline import DRAM, roofline
from analysis.readers.ncu.reader import read
from analysis.render import core_figures
from analysis.render.core_figures import draw_core_utilization, draw_roofline

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All words that are on the pictures."""
    from matplotlib.text import Text

    found: list[str] = []

    def save(figure: Any, path: Path) -> None:
        found.extend(item.get_text() for item in figure.findobj(Text) if item.get_visible())
        original(figure, path)

    original = core_figures.save
    monkeypatch.setattr(core_figures, "save", save)
    return found


def example(tmp_path: Path) -> KernelCounters:
    path = tmp_path / "a.csv"
    path.write_text(ncu_csv.raw())
    return read(path)


def with_work(tmp_path: Path, name: str = "k") -> KernelCounters:
    found = example(tmp_path)
    frame = found.kernels.assign(**{"dram__bytes.sum": 1e6, "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1e8})
    for op in ("add", "mul", "fma"):
        frame[f"sm__sass_thread_inst_executed_op_f{op}_pred_on.sum"] = 1e6
    frame["name"] = [*frame["name"].tolist()[:3], name]
    return KernelCounters(frame, {}, "NVIDIA H200", (9, 0), ())


def test_bars_carry_their_numbers_and_the_names_of_the_groups(tmp_path: Path, texts: list[str]) -> None:
    path = draw_core_utilization(tmp_path / "u.png", core_use_by_family(example(tmp_path)), "kind of work")
    assert path.read_bytes().startswith(PNG)
    assert {"GEMM", "elementwise", "FMA", "tensor cores", "70", "60", "kind of work"} <= set(texts)


def test_a_pipe_that_is_not_in_the_file_is_named_and_has_no_bar(tmp_path: Path, texts: list[str]) -> None:
    found = example(tmp_path)
    frame = found.kernels.drop(columns=list(ncu_csv.METRICS[2:]))
    draw_core_utilization(
        tmp_path / "u.png", {"4": core_use(KernelCounters(frame, {}, None, None, ()))}, "micro batch size"
    )
    assert "Not in this file: tensor cores, SFU." in texts and "tensor cores" not in texts
    draw_core_utilization(tmp_path / "e.png", {}, "nothing")
    assert (tmp_path / "e.png").read_bytes().startswith(PNG)


def test_ceilings_are_labelled_and_families_named(tmp_path: Path, texts: list[str]) -> None:
    draw_roofline(tmp_path / "r.png", roofline(with_work(tmp_path)))
    assert (tmp_path / "r.png").read_bytes().startswith(PNG)
    assert "DRAM 4,800 GB/s" in texts and "GEMM" in texts
    assert any(text.startswith("tensor bf16 989 TFLOP/s") for text in texts)


def test_what_cannot_be_placed_is_counted_in_a_note(tmp_path: Path, texts: list[str]) -> None:
    draw_roofline(tmp_path / "r.png", roofline(example(tmp_path)))
    note = " ".join(text.replace("\n", " ") for text in texts)
    assert "3 of 3 kernels (100 % of the time) cannot be placed" in note and "peak is not known" in note


def test_hostile_names_and_extreme_rates_are_drawn(tmp_path: Path) -> None:
    for measured in ({DRAM: 1e-3, "fp32": 1e3}, {DRAM: 1e300}, {"tensor_bf16": 1e290}):
        name = "$\\frac{<script>}\x00\u202e" + "x" * 5000
        assert draw_roofline(tmp_path / "r.png", roofline(with_work(tmp_path, name), measured)).exists()
    groups = {f"$_{place}\n<script>": core_use(example(tmp_path)) for place in range(40)}
    assert draw_core_utilization(tmp_path / "u.png", groups, "$x").exists()
    assert math.isfinite((tmp_path / "u.png").stat().st_size)
