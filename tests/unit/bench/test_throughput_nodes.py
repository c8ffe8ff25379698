"""`throughput --nodes`: a check inside a world of ranks."""

import pytest
from support.commands import result
from support.refusals import refused

from bench.cli import throughput
from bench.cluster.world import World


def test_outside_a_world_several_nodes_are_refused() -> None:
    with refused("option-not-applicable", "--nodes 1 2", "bertbench launch"):
        result("throughput", "pretrain", "--nodes", "1", "2")


def test_a_number_of_nodes_below_one_is_refused() -> None:
    with refused("option-value", "--nodes 0", 1):
        result("throughput", "pretrain", "--nodes", "0")


@pytest.mark.parametrize("asked", [(), (2,), (2, 2)])
def test_a_world_on_as_many_nodes_is_measured(asked: tuple[int, ...]) -> None:
    World(0, 0, 4, 2, nodes=2).check_nodes(asked)


@pytest.mark.parametrize("asked", [(1,), (3,), (1, 2)])
def test_a_world_on_another_number_of_nodes_is_refused(asked: tuple[int, ...]) -> None:
    with refused("option-conflict", f"--nodes {' '.join(map(str, asked))}", "2 nodes"):
        World(0, 0, 4, 2, nodes=2).check_nodes(asked)


def test_a_world_is_checked_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "joined_world", lambda: World(0, 0, 2, 2, nodes=1))
    with refused("option-conflict", "--nodes 2", "1 node:"):
        result("throughput", "pretrain", "--nodes", "2", "--device", "cpu")
