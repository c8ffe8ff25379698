"""Projections: compared with a cluster that is played event by event, and refused without the measurements for one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import refusals
from support.rings import Machine, write_collectives

from analysis.load import load_run
from analysis.metrics.communication.projection import Backward, bucket_ends, project
from analysis.render.link_tables import projection_blocks
from records.run import RunDirectory

MIB = 1 << 20


def projected(run: Path, *sizes: int) -> list[dict[str, Any]]:
    return project(load_run(RunDirectory(run)), sizes)


def measured_machine(run: Path, machine: Machine, ranks: tuple[int, ...]) -> None:
    for number, count in enumerate(ranks):
        machine.write_steps(run, count, seed=number)
        if count > 1:
            write_collectives(run, count, machine.alpha_us, machine.bandwidth_gb_s, seed=number)


def test_buckets_are_closed_once_they_are_full_and_no_gradient_is_divided() -> None:
    sizes = [600_000, 600_000, 10 * MIB, 20 * MIB, 94 * MIB, 3 * MIB]
    assert bucket_ends(sizes, MIB, 25 * MIB) == [2, 4, 5, 6]
    assert bucket_ends([5], MIB, 25 * MIB) == [1]
    assert bucket_ends([2 * MIB, 26 * MIB], MIB, 25 * MIB) == [1, 2]


def test_what_the_backward_pass_hides_of_the_buckets_by_hand() -> None:
    backward = Backward(np.ones(3), np.array([1.0, 4.0, 10.0]), 10.0)
    assert backward.exposed_ms(np.array([2.0, 3.0, 1.0])) == 1.0, "only the last one comes after the end"
    assert backward.exposed_ms(np.array([8.0, 3.0, 1.0])) == 3.0, "they queue: 1 + 8, + 3, + 1 = 13"
    assert backward.exposed_ms(np.zeros(3)) == 0.0


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
    assert last["work_ms"] + last["exposed_ms"] == pytest.approx(last["step_time_ms"])
    assert last["efficiency"] == pytest.approx(rows[2]["measured_step_time_ms"] / last["step_time_ms"])
    assert (last["base_world_size"], last["global_batch_size"], last["link_nodes"]) == (4, 128, 1)


def test_buckets_of_another_size_are_a_configuration_with_their_own_buckets(tmp_path: Path) -> None:
    measured_machine(tmp_path, Machine(gradients=(3 * MIB,) * 30), (1, 2))
    Machine(gradients=(3 * MIB,) * 30, bucket_mib=5).write_steps(tmp_path, 2)
    rows = {row["strategy_options"]: row["buckets"] for row in projected(tmp_path, 4) if row["world_size"] == 4}
    assert rows == {"": 5, '{"bucket_mib":5}': 15}, "caps of 1 + 25 MiB, of 5 MiB"


def test_the_line_of_several_nodes_is_used_where_there_is_one(tmp_path: Path) -> None:
    machine = Machine()
    measured_machine(tmp_path, machine, (1, 2))
    inside = projected(tmp_path, 8)[-1]
    write_collectives(tmp_path, 4, 40.0, 2.0, nodes=2)
    across = projected(tmp_path, 8)[-1]
    assert (inside["link_nodes"], across["link_nodes"]) == (1, 2)
    assert across["all_reduce_ms"] > 5 * inside["all_reduce_ms"]


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
