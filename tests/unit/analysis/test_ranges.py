"""Known nanoseconds by hand."""

import pandas as pd
import pytest
from support.refusals import refused

from analysis.metrics.time.ranges import RangeNode, range_tree
from analysis.render.finding_tables import range_tree_table
from analysis.timeline import Timeline

MS = 1_000_000
Range = tuple[str, str, float, float]


def timeline(ranges: list[Range], steps: tuple[tuple[int, float, float], ...] = ((3, 100, 200),)) -> Timeline:
    nothing = pd.DataFrame({name: [] for name in ("name", "kind", "start", "end")})
    table = pd.DataFrame(
        [
            {"name": name, "thread": thread, "start": int(start * MS), "end": int(end * MS)}
            for name, thread, start, end in ranges
        ],
        columns=["name", "thread", "start", "end"],
    )
    marked = pd.DataFrame(
        [{"step": step, "start": int(start * MS), "end": int(end * MS), "thread": "1/1"} for step, start, end in steps]
    )
    return Timeline(rank=0, steps=marked, operators=nothing, kernels=nothing, ranges=table)


def nodes(tree: RangeNode) -> list[RangeNode]:
    return [tree, *(node for child in tree.children for node in nodes(child))]


def shape(tree: RangeNode) -> list[tuple[str, int]]:
    return [(node.name, node.depth) for node in nodes(tree)]


FORWARD: list[Range] = [
    ("bertbench:capture", "1/1", 0, 400),
    ("bertbench:data", "1/1", 100, 110),
    ("bertbench:forward", "1/1", 110, 150),
    ("bertbench:layer.0", "1/1", 110, 130),
    ("bertbench:layer.0.attention", "1/1", 110, 121),
    ("bertbench:layer.0.mlp", "1/1", 121, 130),
    ("bertbench:layer.1", "1/1", 130, 150),
    ("bertbench:backward", "1/1", 150, 190),
    ("bertbench:forward", "1/1", 210, 240),  # of the next step
]


def test_ranges_nest_by_containment_with_times_relative_to_the_step() -> None:
    tree = range_tree(timeline(FORWARD), 3)
    assert shape(tree) == [
        ("step 3", 0),
        ("data", 1),
        ("forward", 1),
        ("layer.0", 2),
        ("layer.0.attention", 3),
        ("layer.0.mlp", 3),
        ("layer.1", 2),
        ("backward", 1),
    ]
    rows = {node.name: node for node in nodes(tree)}
    assert (rows["step 3"].start_ms, rows["step 3"].duration_ms, rows["step 3"].share) == (0, 100, 1)
    assert (rows["layer.0.mlp"].start_ms, rows["layer.0.mlp"].duration_ms) == (21, 9)
    assert rows["layer.0.mlp"].share == pytest.approx(0.09)


def test_other_threads_stand_under_the_step_by_time_never_inside_this_thread_s_ranges() -> None:
    tree = range_tree(
        timeline(
            [
                ("bertbench:backward", "1/1", 150, 190),
                ("autograd", "1/2", 155, 180),
                ("autograd.layer.0", "1/2", 160, 170),
                ("loader", "1/3", 0, 900),  # contains the step: of no step
            ]
        ),
        3,
    )
    assert shape(tree)[1:] == [("backward", 1), ("autograd", 1), ("autograd.layer.0", 2)]
    assert [child.own_thread for child in tree.children] == [True, False]
    assert "1/2" in rows_of(tree)[-1][-1] and all("1/1" not in row[-1] for row in rows_of(tree))


def test_a_range_over_an_end_of_the_step_counts_with_the_part_inside() -> None:
    tree = range_tree(timeline([("before", "1/2", 50, 120), ("after", "1/2", 190, 260), ("whole", "1/2", 100, 200)]), 3)
    lengths = {node.name: (node.start_ms, node.duration_ms) for node in nodes(tree)}
    assert lengths == {"step 3": (0, 100), "whole": (0, 100), "before": (0, 20), "after": (90, 10)}


def test_a_range_that_reaches_out_of_the_one_it_began_in_is_not_its_child() -> None:
    tree = range_tree(timeline([("a", "1/1", 100, 150), ("b", "1/1", 120, 170), ("c", "1/1", 125, 140)]), 3)
    assert shape(tree)[1:] == [("a", 1), ("b", 1), ("c", 2)]
    assert [child.name for child in tree.children[1].children] == ["c"], "the smallest that contains it"


def test_a_missing_step_is_refused_and_those_there_are_named() -> None:
    with refused("option-value", "step 9", "3, 4"):
        range_tree(timeline(FORWARD, ((3, 100, 200), (4, 200, 300))), 9)


def layers(count: int) -> Timeline:
    ranges: list[Range] = [("bertbench:forward", "1/1", 100, 100 + 3 * count)]
    for number in range(count):
        start = 100 + 3 * number
        ranges += [
            (f"bertbench:layer.{number}", "1/1", start, start + 3),
            (f"bertbench:layer.{number}.attention", "1/1", start, start + 2),
            (f"bertbench:layer.{number}.mlp", "1/1", start + 2, start + 3),
        ]
    return timeline(ranges)


def rows_of(tree: RangeNode, limit: int = 3) -> list[list[str]]:
    return range_tree_table(tree, limit).texts()


def test_equal_layers_are_folded_into_one_line_with_their_sum() -> None:
    assert rows_of(range_tree(layers(12), 3)) == [
        ["step 3", "0", "100", "100 %"],
        ["  forward", "0", "36.0", "36.0 %"],
        ["    layer.0 ... layer.11: 12 x 3.00 ms", "0", "36.0", "36.0 %"],
        ["      layer.0.attention ... layer.11.attention: 12 x 2.00 ms", "0", "24.0", "24.0 %"],
        ["      layer.0.mlp ... layer.11.mlp: 12 x 1.00 ms", "2.00", "12.0", "12.0 %"],
    ]


@pytest.mark.parametrize(("limit", "lines"), [(12, 38), (11, 5), (0, 38)])
def test_the_limit_says_how_many_equal_ones_are_shown_one_by_one(limit: int, lines: int) -> None:
    # 12 layers of 3 lines, forward and the step; folded: 3 lines for the layers
    assert len(rows_of(range_tree(layers(12), 3), limit)) == lines


def test_threads_are_folded_apart_from_the_step_s_own() -> None:
    ranges: list[Range] = [("load", f"1/{thread}", 110, 120) for thread in (1, 2, 3, 4, 5)]
    rows = rows_of(range_tree(timeline(ranges), 3))
    assert [row[0] for row in rows[1:]] == ["  load", "  load: 4 x 10.0 ms"] and rows[2][-1] == "4 threads"
