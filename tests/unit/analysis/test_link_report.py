"""The parts of a report about links: shown where there are any, whole where records are damaged or results wrong."""

from pathlib import Path

import pytest
from support.page import report_page
from support.rings import Machine, write_collectives

from analysis.load import load_run
from analysis.metrics.communication.links import Link
from analysis.metrics.communication.projection import Backward
from analysis.metrics.scaling import measured_efficiency
from records.run import RunDirectory

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("pictures_of_one_pixel")]


def page_of(run: Path, *sizes: int) -> str:
    return report_page(RunDirectory(run), project_to=sizes).read_text(encoding="utf-8")


def test_a_run_of_both_shows_links_scaling_and_a_projection_that_is_marked_as_one(tmp_path: Path) -> None:
    machine = Machine()
    for ranks in (1, 2, 4):
        machine.write_steps(tmp_path, ranks, seed=ranks)
    for ranks in (2, 4):
        write_collectives(tmp_path, ranks, machine.alpha_us, machine.bandwidth_gb_s)
    page = page_of(tmp_path, 16)
    assert "A model, not a measurement" in page
    assert "bandwidth GB/s" in page
    report = tmp_path / "report"
    names = {path.name for path in report.iterdir()}
    assert {"collectives.png", "scaling.png", "collectives.csv", "links.csv",
            "projection.csv", "scaling.csv"} <= names  # fmt: skip
    assert ",comm," not in (report / "results.csv").read_text(), (
        "collectives train nothing and are no results of training"
    )
    plain = page_of(tmp_path)
    assert "Projection to more devices" not in plain and "All-reduce: time by message size" in plain


def test_efficiency_has_an_interval_around_it(tmp_path: Path) -> None:
    machine = Machine()
    for number in range(3):
        for ranks in (1, 4):
            machine.write_steps(tmp_path, ranks, seed=10 * ranks + number, round_number=number)
    base, row = measured_efficiency(load_run(RunDirectory(tmp_path)))
    assert base["efficiency"] == 1.0 and base["efficiency_low"] is None
    assert row["rounds"] == 3 and row["efficiency_low"] < row["efficiency"] < row["efficiency_high"]
    assert row["efficiency_high"] - row["efficiency_low"] < 0.1


def test_the_examples_of_the_page_about_scaling() -> None:
    import numpy as np

    line = Link(dtype="fp32", device="cuda", nodes=1, points=(), alpha_us=12.0, bandwidth_gb_s=20.0)
    backward = Backward(np.array([1, 25, 94]) * 2.0**20, np.array([2.0, 30.0, 60.0]), 60.0)
    durations = np.array([line.time_us(size, 16) / 1e3 for size in backward.bucket_bytes])
    assert durations == pytest.approx([0.46, 2.82, 9.60], abs=0.005)
    assert backward.exposed_ms(durations) == pytest.approx(9.6, abs=0.01)
    bandwidth = 67_108_864 / 0.0012 / 1e9
    assert bandwidth == pytest.approx(55.9, abs=0.05)
