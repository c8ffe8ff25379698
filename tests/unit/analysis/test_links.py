"""The alpha-beta line of simulated rings, projections of a cluster that is played event by event, and their report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import refusals
from support.charts import report_page
from support.rings import Machine, ring_all_reduce_us, write_collectives

from analysis.load import load_run
from analysis.metrics.communication.collectives import Link, fitted_links, link_rows, ring
from analysis.metrics.scaling import Backward, project
from analysis.render.result_tables import projection_blocks
from records.run import RunDirectory

MIB = 1 << 20


def measured(*trials: Path) -> list[Link]:
    return [link for path in trials for link in fitted_links(load_run(RunDirectory(path)))]


def projected(run: Path, *sizes: int) -> list[dict[str, Any]]:
    return project(load_run(RunDirectory(run)), sizes)


def measured_machine(run: Path, machine: Machine, ranks: tuple[int, ...]) -> None:
    for number, count in enumerate(ranks):
        machine.write_steps(run, count, seed=number)
        if count > 1:
            write_collectives(run, count, machine.alpha_us, machine.bandwidth_gb_s, seed=number)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_ring_of_the_model_is_that_of_messages_played_one_by_one(ranks: int) -> None:
    steps, part = ring(ranks)
    assert ring_all_reduce_us(ranks, 8e6, 5.0, 10.0) == pytest.approx(steps * 5.0 + part * 8e6 / 10.0 / 1e3)


def test_alpha_and_bandwidth_of_a_simulated_ring_are_found_over_rounds_ranks_and_nodes(tmp_path: Path) -> None:
    for ranks in (2, 4, 8):
        write_collectives(tmp_path, ranks, 12.0, 20.0, noise=0.02, seed=ranks, round_number=int(ranks == 8))
    write_collectives(tmp_path, 2, 30.0, 2.0, nodes=2)
    write_collectives(tmp_path, 16, 99.0, 20.0, wrong=3)  # counts for nothing
    inside, across = measured(tmp_path)
    rows = link_rows([inside, across])
    assert [(row["nodes"], row["ranks"]) for row in rows] == [(1, "2 4 8"), (2, "2")]
    assert inside.alpha_us == pytest.approx(12.0, rel=0.05) and inside.bandwidth_gb_s == pytest.approx(20.0, rel=0.05)
    assert across.bandwidth_gb_s == pytest.approx(2.0, rel=0.05) and rows[0]["median_error"] < 0.03


@pytest.mark.parametrize(
    ("options", "latency", "named"),
    [
        ({"sizes": (1024, 4096, 2.0)}, 12.0, "--factor"),
        ({"sizes": (1024, 64 << 10, 2.0)}, 500.0, "--max-bytes"),  # all small: they tell no bandwidth
    ],
)
def test_what_no_line_fits_is_refused_with_what_to_do(
    tmp_path: Path, options: dict[str, Any], latency: float, named: str
) -> None:
    write_collectives(tmp_path, 2, latency, 20.0, noise=0.0, **options)
    (row,) = link_rows(measured(tmp_path))
    assert row["alpha_us"] is row["bandwidth_gb_s"] is None and named in row["reason"]


@pytest.mark.parametrize(
    "machine",
    [
        Machine(jitter=0.002),
        Machine(jitter=0.002, bandwidth_gb_s=1.2),  # communication is what takes the time
        Machine(jitter=0.002, gradients=(MIB,) * 6 + (94 * MIB,)),  # as BERT's embeddings: large, and last
    ],
)
def test_a_cluster_played_event_by_event_is_projected_with_its_residuals(tmp_path: Path, machine: Machine) -> None:
    measured_machine(tmp_path, machine, (1, 2, 4))
    rows = projected(tmp_path, 4, 16)
    assert [row["world_size"] for row in rows] == [1, 2, 4, 16] and not any(row["reason"] for row in rows)
    for row in rows[:-1]:
        truth = float(np.median(machine.steps(row["world_size"], 80, seed=99)[0]))
        assert row["measured_step_time_ms"] == pytest.approx(truth, rel=0.01) and row["efficiency"] is None
        assert row["error"] == pytest.approx(row["step_time_ms"] / row["measured_step_time_ms"] - 1)
        assert abs(row["error"]) < 0.03
    last = rows[-1]
    truth = float(np.median(machine.steps(16, 80, seed=99)[0]))
    assert last["step_time_ms"] == pytest.approx(truth, rel=0.04) and last["error"] is None
    base = [one.row for one in load_run(RunDirectory(tmp_path)) if one.ok and one.trial.world_size == 4]
    (base,) = [row for row in base if row["kind"] == "throughput"]
    speedup = 4 * base["step_time_ms"] / last["step_time_ms"]
    assert last["samples_per_second"] == pytest.approx(base["samples_per_second"] * speedup)
    assert last["work_ms"] + last["predicted_exposed_ms"] == pytest.approx(last["step_time_ms"])
    assert last["efficiency"] == pytest.approx(rows[2]["measured_step_time_ms"] / last["step_time_ms"])
    assert (last["base_world_size"], last["global_batch_size"], last["link_nodes"]) == (4, 128, 1)


@pytest.mark.parametrize(
    ("bandwidth_gb_s", "ready_ms", "exposed_ms"),
    [
        (365.0, [22.5, 45.0, 67.5, 90.0], 1.606),  # a ring: 335 MB x 2 x 7/8 / 365 GB/s of the last slice
        (470.0, [22.5, 45.0, 67.5, 90.0], 1.247),  # sums in the switch, as fast as this bus
        (365.0, [87.0, 88.0, 89.0, 90.0], 87 + 4 * 1.606 - 90),  # each waits for the one before
    ],
)
def test_eight_gpus_expose_what_a_formula_gives_by_hand(
    bandwidth_gb_s: float, ready_ms: list[float], exposed_ms: float
) -> None:
    slices, ready = np.full(4, 1.34e9 / 4), np.array(ready_ms)  # BERT-large, float32 gradients
    link = Link(dtype="fp32", device="cuda", nodes=1, points={}, alpha_us=0.0, bandwidth_gb_s=bandwidth_gb_s)
    reduce_ms = np.array([link.time_us(size, 8) / 1e3 for size in slices])
    assert Backward(slices, ready, 90.0).exposed_ms(reduce_ms) == pytest.approx(exposed_ms, abs=2e-3)


def test_a_run_on_several_devices_has_the_exposure_that_the_model_predicts_beside_the_measured_one(
    tmp_path: Path,
) -> None:
    machine = Machine(jitter=0.002, bandwidth_gb_s=1.2)
    measured_machine(tmp_path, machine, (4,))
    (row,) = projected(tmp_path)
    assert (row["world_size"], row["reason"]) == (4, "")
    assert row["predicted_exposed_ms"] == pytest.approx(row["communication_ms"], rel=0.02)
    measured_machine(tmp_path / "one", machine, (1,))
    write_collectives(tmp_path / "one", 2, 12.0, 1.2)
    assert projected(tmp_path / "one") == [], "one device exposes nothing"


def refused(run: Path, *sizes: int) -> str:
    (row,) = projected(run, *sizes)
    assert row["step_time_ms"] is None and row["samples_per_second"] is None
    return str(row["reason"])


def test_what_is_not_measured_is_not_projected_and_that_is_said_once(tmp_path: Path) -> None:
    Machine().write_steps(tmp_path / "one", 2)
    write_collectives(tmp_path / "one", 2, 12.0, 20.0)
    assert "--devices" in refused(tmp_path / "one", 8), "one device count"
    for ranks in (1, 2):
        Machine().write_steps(tmp_path / "bare", ranks, timeline=False)
    write_collectives(tmp_path / "bare", 2, 12.0, 20.0)
    assert "when its gradients were ready" in refused(tmp_path / "bare", 4)
    for ranks in (1, 2):
        Machine().write_steps(tmp_path, ranks)
    assert "bertbench comm" in refused(tmp_path, 8)
    (line,) = projection_blocks(projected(tmp_path, 8, 16, 32))
    assert str(line).count("batch 8") == 1


def test_a_projection_to_one_device_is_refused() -> None:
    with refusals.refused("option-value", "--project 1", "2 devices"):
        project([], (4, 1))


@pytest.mark.more
@pytest.mark.usefixtures("pictures_of_one_pixel")
def test_a_run_of_both_shows_links_scaling_and_what_the_model_says_of_it(tmp_path: Path) -> None:
    measured_machine(tmp_path, Machine(), (1, 2, 4))
    page = report_page(RunDirectory(tmp_path)).read_text(encoding="utf-8")
    assert "A model, not a measurement" in page and "predicted exposed ms" in page and "bandwidth GB/s" in page
    report = tmp_path / "report"
    names = {path.name for path in report.rglob("*")}
    assert {"scaling.png", "collectives.csv", "links.csv", "projection.csv", "scaling.csv"} <= names
    assert ",comm," not in (report / "results.csv").read_text(), "collectives train nothing"
