"""Processes per node, from options and from files."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from bench.cluster.layout import Layout, in_words, ranks_of_node, read_layout
from common.errors import Code


@pytest.mark.parametrize(
    ("here", "others", "node_rank", "counts"),
    [
        (None, (), None, (4,)),
        (2, (), None, (2,)),
        (1, ("2",), None, (1, 2)),
        (2, ("1",), 1, (1, 2)),
        (3, ("1", "2", "4"), 2, (1, 2, 3, 4)),
        (None, ("1",), 1, (1, 4)),
    ],
)
def test_every_node_comes_to_the_same_counts(
    here: int | None, others: tuple[str, ...], node_rank: int | None, counts: tuple[int, ...]
) -> None:
    layout = read_layout(here, others, node_rank, default_here=4)
    assert layout.counts == counts
    assert layout.here == (here or 4) and layout.world_size == sum(counts)


def test_ranks_follow_the_nodes_whatever_their_counts() -> None:
    counts = (1, 3, 2, 1)
    assert [list(ranks_of_node(counts, node)) for node in range(4)] == [[0], [1, 2, 3], [4, 5], [6]]
    assert in_words(counts) == "1 + 3 + 2 + 1 = 7 processes on 4 nodes"
    assert in_words((1,)) == "1 process on 1 node"


@pytest.mark.parametrize(
    ("here", "others", "node_rank", "facts"),
    [
        (0, (), None, ("--here-gpus 0", 1)),
        (-1, ("1",), None, ("--here-gpus -1", 1)),
        (1, ("0",), None, ("--other-gpus 0", 1)),
        (1, ("-2",), None, ("--other-gpus -2", 1)),
        (1, ("2", "hosts.json"), None, ("--other-gpus hosts.json", "JSON")),
        (1, ("2",), 2, ("--node-rank 2", "2 nodes", "0 to 1")),
        (1, (), 1, ("--node-rank 1", "1 node", "0 to 0")),
        (1, ("2",), -1, ("--node-rank -1",)),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    here: int | None, others: tuple[str, ...], node_rank: int | None, facts: tuple[object, ...]
) -> None:
    with refused("option-value", *facts):
        read_layout(here, others, node_rank, 1)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cluster.layout.own_names", lambda: {"localhost", "node-b.cluster.org", "10.0.0.2"})


def table(folder: Path, content: Any) -> tuple[str, ...]:
    path = folder / "hosts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return (str(path),)


@pytest.mark.parametrize("own", ["node-b", "NODE-B.cluster.org", "10.0.0.2", "localhost"])
@pytest.mark.usefixtures("names")
def test_a_node_finds_itself_in_a_file_under_any_of_its_names(tmp_path: Path, own: str) -> None:
    layout = read_layout(None, table(tmp_path, {"node-a": 4, own: 2, "node-c": 1}), None, 8)
    assert layout == Layout((4, 2, 1), 1, ("node-a", own, "node-c"))


@pytest.mark.usefixtures("names")
def test_a_node_that_is_not_in_the_file_adds_all_its_gpus(tmp_path: Path) -> None:
    others = table(tmp_path, {"node-a": 4, "node-bb": 1})
    assert read_layout(None, others, None, 8) == Layout((8, 4, 1), 0, ("", "node-a", "node-bb"))
    assert read_layout(3, others, 1, 8) == Layout((4, 3, 1), 1, ("node-a", "", "node-bb"))
    with refused("option-value", "--node-rank 3", "3 nodes"):
        read_layout(None, others, 3, 8)


@pytest.mark.usefixtures("names")
def test_localhost_takes_the_node_rank_that_is_given(tmp_path: Path) -> None:
    others = table(tmp_path, {"localhost": 2, "node-a": 4})
    assert read_layout(None, others, None, 8).counts == (2, 4)
    assert read_layout(None, others, 1, 8) == Layout((4, 2), 1, ("node-a", ""))
    with refused("option-conflict", "--node-rank 1", "hosts.json", "node-b"):
        read_layout(None, table(tmp_path, {"node-b": 2, "node-a": 4}), 1, 8)


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        ("not JSON", "file-damaged", "JSON"),
        ([1, 2], "file-format", "hosts"),
        ({}, "file-format", "hosts"),
        ({"node-a": 0}, "option-value", "'node-a' has 0"),
        ({"node-a": "4"}, "option-value", "'node-a' has \"4\""),
        ({"node-a": True}, "option-value", "'node-a' has true"),
        ({"node-a": 1.5}, "option-value", "'node-a' has 1.5"),
        ('{"node-a": 1, "node-a": 2}', "option-value", "node-a"),
        ({"localhost": 1, "node-b": 1}, "option-value", "localhost, node-b"),
        ("[" * 100_000, "file-damaged", "JSON"),
        ({"": 1}, "option-value", "host"),
        ({"node-a": 1, " ": 1}, "option-value", "host"),
    ],
)
def test_files_that_are_no_table_are_refused(tmp_path: Path, content: Any, code: Code, fact: str) -> None:
    with refused(code, "hosts.json", fact):
        read_layout(None, table(tmp_path, content), None, 1)


@pytest.mark.usefixtures("names")
def test_a_missing_file_and_another_count_are_said(tmp_path: Path) -> None:
    with refused("path-missing", "--other-gpus", tmp_path / "none.json"):
        read_layout(None, (str(tmp_path / "none.json"),), None, 1)
    with refused("option-conflict", "--here-gpus 3", "hosts.json", 2, "node-b"):
        read_layout(3, table(tmp_path, {"node-b": 2, "node-a": 4}), None, 8)


def test_the_machine_knows_its_own_name(tmp_path: Path) -> None:
    layout = read_layout(None, table(tmp_path, {"elsewhere": 1, socket.gethostname(): 2}), None, 8)
    assert (layout.counts, layout.node_rank) == ((1, 2), 1)


@pytest.mark.usefixtures("names")
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text('{"node-a": 4, "node-b": 2}', encoding="utf-8-sig")
    assert read_layout(None, (str(path),), None, 8).counts == (4, 2)
