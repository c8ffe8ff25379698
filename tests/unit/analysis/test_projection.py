"""Projections: held against a cluster that is played event by event, and refused where nothing carries them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import refusals
from support.commands import text
from support.page import report_page
from support.rings import Machine, write_collectives

from analysis.load import load_run
from analysis.metrics.communication import projection
from analysis.metrics.communication.projection import backward_pass, bucket_ends, exposed_ms, project
from analysis.render.link_tables import projection_blocks
from analysis.render.tables import Table
from analysis.wording import UNKNOWN
from records.run import RunDirectory

MIB = 1 << 20


def projected(run: Path, *sizes: int, same_links: bool = False) -> list[dict[str, Any]]:
    return project(load_run(RunDirectory(run)), sizes, same_links)


def measured_machine(run: Path, machine: Machine, ranks: tuple[int, ...], seed: int = 0, **comm: Any) -> None:
    for number, count in enumerate(ranks):
        machine.write_steps(run, count, seed=10 * seed + number)
        if count > 1:
            values = {"noise": 0.01, "bias": 0.01, "seed": 10 * seed + number, **comm}
            write_collectives(run, count, machine.alpha_us, machine.bandwidth_gb_s, **values)


def test_buckets_are_closed_once_they_are_full_and_no_gradient_is_divided() -> None:
    sizes = [600_000, 600_000, 10 * MIB, 20 * MIB, 94 * MIB, 3 * MIB]
    assert bucket_ends(sizes, MIB, 25 * MIB) == [2, 4, 5, 6]
    assert bucket_ends([5], MIB, 25 * MIB) == [1]
    assert bucket_ends([2 * MIB, 26 * MIB], MIB, 25 * MIB) == [1, 2]


def test_what_the_backward_pass_hides_of_the_buckets_by_hand() -> None:
    ready = np.array([1.0, 4.0, 10.0])
    assert exposed_ms(ready, np.array([2.0, 3.0, 1.0]), 10.0) == 1.0, "only the last one comes after the end"
    assert exposed_ms(ready, np.array([8.0, 3.0, 1.0]), 10.0) == 3.0, "they queue: 1 + 8, + 3, + 1 = 13"
    assert exposed_ms(ready, np.array([[2.0, 3.0, 0.0], [0.0, 0.0, 5.0]]), 10.0).tolist() == [0.0, 5.0]


@pytest.mark.parametrize("ranks", [(1, 2, 4, 8), (2, 4, 8)])
def test_a_cluster_played_event_by_event_is_projected(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    machine = Machine()
    measured_machine(tmp_path, machine, ranks)
    row_16, row_64 = projected(tmp_path, 16, 64)
    for row in (row_16, row_64):
        truth = float(np.median(machine.steps(row["world_size"], 80, seed=99)[0]))
        assert row["reason"] == "" and row["base_world_size"] == 8
        assert row["step_time_ms"] == pytest.approx(truth, rel=0.03)
        assert row["step_time_ms_low"] < truth < row["step_time_ms_high"]
        assert row["samples_per_second"] == pytest.approx(1e3 * 8 * row["world_size"] / truth, rel=0.03)
        assert abs(row["check_error"]) < 0.03
        assert row["work_ms"] + row["waiting_ms"] + row["exposed_ms"] == pytest.approx(row["step_time_ms"])
    assert row_64["waiting_ms"] > row_16["waiting_ms"] > 0


@pytest.mark.parametrize(
    "machine",
    [
        Machine(bandwidth_gb_s=1.2),  # communication is what takes the time
        Machine(bandwidth_gb_s=80.0, alpha_us=3.0),  # all of it is hidden but the last bucket
        Machine(gradients=(MIB,) * 6 + (94 * MIB,), jitter=0.005),  # as BERT's embeddings: large, and last
    ],
)
def test_truth_lies_in_the_interval_for_other_machines_too(tmp_path: Path, machine: Machine) -> None:
    measured_machine(tmp_path, machine, (1, 2, 4))
    (row,) = projected(tmp_path, 16)
    truth = float(np.median(machine.steps(16, 80, seed=5)[0]))
    assert row["reason"] == ""
    assert row["step_time_ms"] == pytest.approx(truth, rel=0.05)
    assert row["step_time_ms_low"] < truth < row["step_time_ms_high"]
    assert row["efficiency_low"] < row["efficiency"] < row["efficiency_high"]


def test_rounds_that_differ_widen_the_interval_by_students_t(tmp_path: Path) -> None:
    """Works of 100 x (0.98, 1, 1.02) ms: logarithms have s = 0.02, so t(0.975, 2) x s / sqrt(3) = 4.97 % each way."""
    exact = Machine(jitter=1e-6, bandwidth_gb_s=1e6, alpha_us=1e-3, gradients=(MIB,))
    for number, factor in enumerate((0.98, 1.0, 1.02)):
        speed = dataclasses.replace(exact, backward_ms=60.0 * factor, rest_ms=40.0 * factor)
        speed.write_steps(tmp_path / "rounds", 2, round_number=number)
    write_collectives(tmp_path / "rounds", 2, 1e-3, 1e6, noise=1e-6)
    (row,) = projected(tmp_path / "rounds", 4)
    assert row["step_time_ms"] == pytest.approx(100.0, rel=1e-3) and row["assumption"] == ""
    assert row["step_time_ms_low"] == pytest.approx(100.0 / 1.051, rel=0.01)
    assert row["step_time_ms_high"] == pytest.approx(100.0 * 1.051, rel=0.01)
    assert row["efficiency_low"] > 0.99, "a slow process is slow in the base too"

    # One round, where three of one device are there: they say how processes differ (t x s = 8.6 %, for one round).
    exact.write_steps(tmp_path / "one", 2)
    write_collectives(tmp_path / "one", 2, 1e-3, 1e6, noise=1e-6)
    (row,) = projected(tmp_path / "one", 4)
    assert row["step_time_ms_high"] / row["step_time_ms_low"] < 1.001
    assert "one round was measured" in row["assumption"], "what is not known is said, not made up"
    for number, factor in enumerate((0.98, 1.0, 1.02)):
        speed = dataclasses.replace(exact, backward_ms=60.0 * factor, rest_ms=40.0 * factor)
        speed.write_steps(tmp_path / "one", 1, round_number=number)
    (row,) = projected(tmp_path / "one", 4)
    assert row["assumption"] == "" and row["base_world_size"] == 2
    assert row["step_time_ms_high"] == pytest.approx(100.0 * np.exp(4.303 * 0.02), rel=0.015)


def test_wide_intervals_hold_the_truth_too_and_what_is_not_refused_is_known_to_twenty_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widest = projection.WIDEST_INTERVAL
    assert widest == pytest.approx(1.5)
    monkeypatch.setattr(projection, "WIDEST_INTERVAL", float("inf"))
    machine = Machine(bandwidth_gb_s=1.2)
    truth = float(np.median(machine.steps(8, 400, seed=77)[0]))
    held: list[bool] = []
    kept: list[float] = []
    for seed in range(20):
        run = tmp_path / str(seed)
        measured_machine(run, machine, (1, 2), seed=seed, bias=0.12, noise=0.03, sizes=(MIB, 64 * MIB, 2.0))
        (row,) = projected(run, 8)
        if row["reason"]:
            assert re.search("no line|differs from the measured", row["reason"]), row["reason"]
            continue
        held.append(row["step_time_ms_low"] < truth < row["step_time_ms_high"])
        if row["step_time_ms_high"] <= widest * row["step_time_ms_low"]:
            kept.append(abs(row["step_time_ms"] / truth - 1))
    assert len(held) >= 10 and sum(held) >= 0.9 * len(held), held
    assert 3 <= len(kept) < len(held) and max(kept) < 0.2, kept


def test_one_measured_device_is_projected_without_a_check(tmp_path: Path) -> None:
    machine = Machine()
    machine.write_steps(tmp_path, 1)
    write_collectives(tmp_path, 4, machine.alpha_us, machine.bandwidth_gb_s)
    (row,) = projected(tmp_path, 8)
    assert row["reason"] == "" and row["check_error"] is None and row["base_world_size"] == 1
    assert row["assumption"].split("; ") == [
        "devices do not slow each other down (one alone was measured)",
        "processes do not differ (one round was measured: --rounds 3 shows how they do)",
    ]


def test_one_cpu_device_projects_nothing_as_ranks_share_its_memory(tmp_path: Path) -> None:
    machine = Machine()
    machine.write_steps(tmp_path, 1, device="cpu")
    write_collectives(tmp_path, 2, machine.alpha_us, machine.bandwidth_gb_s, device="cpu")
    assert "measure 2 devices" in refused(tmp_path, 2)
    machine.write_steps(tmp_path, 2, device="cpu")
    rows = projected(tmp_path, 4)
    assert [row["base_world_size"] for row in rows if not row["reason"]] == [2], rows


def test_what_is_refused_for_one_reason_is_said_once(tmp_path: Path) -> None:
    Machine().write_steps(tmp_path, 2)
    shown = text(projection_blocks(projected(tmp_path, 8, 16, 32)))
    assert shown.count("no all-reduce of fp32 was measured") == 1 and shown.count("devices") == 3


def test_buckets_of_another_size_are_simulated_as_they_are_asked_for(tmp_path: Path) -> None:
    machine = Machine(bandwidth_gb_s=1.2, gradients=(MIB,) * 90, bucket_mib=90)
    measured_machine(tmp_path, machine, (1, 2, 4))
    (row,) = projected(tmp_path, 16)
    truth = float(np.median(machine.steps(16, 80, seed=5)[0]))
    usual = float(np.median(dataclasses.replace(machine, bucket_mib=None).steps(16, 80, seed=5)[0]))
    assert row["buckets"] == 1 and row["strategy"] == "ddp bucket_mib=90" and row["reason"] == ""
    assert row["step_time_ms"] == pytest.approx(truth, rel=0.05) and truth > 1.2 * usual


def test_other_buckets_and_recomputation_are_configurations_of_their_own(tmp_path: Path) -> None:
    usual = Machine()
    measured_machine(tmp_path, usual, (1, 2))
    dataclasses.replace(usual, bucket_mib=5).write_steps(tmp_path, 2)
    dataclasses.replace(usual, backward_ms=90.0).write_steps(tmp_path, 2, recomputing=True)
    rows = {row["strategy"]: row for row in projected(tmp_path, 4)}
    assert {name: row["rounds"] for name, row in rows.items()} == {
        "ddp": 1, "ddp bucket_mib=5": 1, "ddp checkpointing": 1
    }  # fmt: skip
    assert [rows[name]["buckets"] for name in ("ddp", "ddp bucket_mib=5")] == [5, 15], "caps of 1 + 25 MiB, of 5 MiB"
    assert rows["ddp checkpointing"]["work_ms"] > 1.2 * rows["ddp"]["work_ms"]


def refused(run: Path, *sizes: int, same_links: bool = False) -> str:
    (row,) = projected(run, *sizes, same_links=same_links)
    assert row["step_time_ms"] is None and row["samples_per_second_low"] is None
    return str(row["reason"])


def test_without_measured_all_reduces_there_is_none(tmp_path: Path) -> None:
    Machine().write_steps(tmp_path, 2)
    assert "bertbench comm" in refused(tmp_path, 8)


def test_without_moments_of_gradients_there_is_none(tmp_path: Path) -> None:
    Machine().write_steps(tmp_path, 2, timeline=False)
    write_collectives(tmp_path, 2, 12.0, 20.0)
    assert "when its gradients were ready" in refused(tmp_path, 4)


def test_two_ranks_do_not_carry_to_sixty_four(tmp_path: Path) -> None:
    measured_machine(tmp_path, Machine(), (1, 2))
    assert "projections to 8 at most" in refused(tmp_path, 64)


def test_sizes_must_reach_the_largest_bucket(tmp_path: Path) -> None:
    machine = Machine(gradients=(94 * MIB,))
    machine.write_steps(tmp_path, 1)
    write_collectives(tmp_path, 4, 12.0, 20.0, sizes=(1024, 16 * MIB, 2.0))
    assert "--max-bytes 128M" in refused(tmp_path, 8)


def test_times_that_are_no_line_carry_nothing(tmp_path: Path) -> None:
    machine = Machine(bandwidth_gb_s=0.5)
    machine.write_steps(tmp_path, 1)
    write_collectives(tmp_path, 4, machine.alpha_us, machine.bandwidth_gb_s, bias=0.3, seed=3)
    assert re.search("differs from the measured all-reduces|too uncertain to report", refused(tmp_path, 8))


def test_other_links_between_nodes_are_an_assumption_that_has_to_be_made(tmp_path: Path) -> None:
    machine = Machine()
    machine.write_steps(tmp_path, 1)
    inside = {"gpus": [{"name": "G"}] * 4}
    write_collectives(tmp_path, 4, machine.alpha_us, machine.bandwidth_gb_s, environment=inside)
    assert "--same-links" in refused(tmp_path, 8)
    (row,) = projected(tmp_path, 8, same_links=True)
    assert row["reason"] == "" and "as fast as inside" in row["assumption"]
    (row,) = projected(tmp_path, 4, same_links=True)
    assert row["reason"] == "" and "inside" not in row["assumption"], "four are inside of the node"
    write_collectives(tmp_path, 4, 40.0, 2.0, nodes=2, environment=inside)
    (slower,) = projected(tmp_path, 8)
    assert slower["reason"] == "" and slower["all_reduce_ms"] > 5 * row["all_reduce_ms"], "links between nodes measured"


def test_a_simulation_that_misses_what_was_measured_projects_nothing(tmp_path: Path) -> None:
    machine = Machine()
    machine.write_steps(tmp_path, 2)
    write_collectives(tmp_path, 2, machine.alpha_us, machine.bandwidth_gb_s / 40)
    assert "is off by +" in refused(tmp_path, 4)


def test_fewer_devices_than_were_measured_are_no_projection(tmp_path: Path) -> None:
    measured_machine(tmp_path, Machine(), (4,))
    assert "4 devices were measured" in refused(tmp_path, 2)
    with refusals.refused("option-value", "--project 1", "2 devices"):
        projected(tmp_path, 1)


def test_as_many_devices_as_were_measured_stand_beside_the_measurement_without_an_efficiency(tmp_path: Path) -> None:
    machine = Machine()
    measured_machine(tmp_path, machine, (2, 4))
    same, further = projected(tmp_path, 4, 8)
    truth = float(np.median(machine.steps(4, 80, seed=99)[0]))
    # 8 samples a device: 32 in a step.
    assert same["measured_samples_per_second"] == pytest.approx(1e3 * 32 / truth, rel=0.03)
    assert same["efficiency"] is same["efficiency_low"] is same["efficiency_high"] is None and same["reason"] == ""
    assert further["measured_samples_per_second"] is None and 0 < further["efficiency"] <= 1.05
    table, *assumed = projection_blocks([same, further])
    assert any(str(line).endswith(same["assumption"]) for line in assumed)
    assert isinstance(table, Table)
    of = {name: [row[table.headings.index(name)].text for row in table.rows] for name in table.headings}
    assert of["measured samples/s"][1] == of["efficiency"][0] == UNKNOWN != of["efficiency"][1]
    page = report_page(RunDirectory(tmp_path), project_to=(4,)).read_text()
    assert "measured samples/s" in page


def test_damaged_records_of_the_backward_pass_are_named(tmp_path: Path) -> None:
    for damage in ({}, {"bytes": [1], "ready_ms": []}, {"bytes": [1], "ready_ms": [1.0], "backward_ms": 0},
                   {"bytes": ["x"], "ready_ms": [1.0], "backward_ms": 1.0}):  # fmt: skip
        with refusals.refused("file-damaged", "--out"):
            backward_pass(damage)
