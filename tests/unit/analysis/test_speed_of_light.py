"""The floor and the waterfall of parts whose times are known, and what damaged records do."""

from pathlib import Path
from typing import Any

import pytest
from support.fake_run import step_rows, write_csv, write_trial

from analysis.metrics.speed_of_light import (
    Ceilings,
    component_rows,
    summarize_components,
    waterfall,
)
from records.components import Component, write_components
from records.run import RunDirectory, TrialDirectory
from records.schema import COMPONENT_COLUMNS
from records.trial import Trial

# 1 GFLOP takes 1 ms, 1 MB takes 1 ms.
CEILINGS = Ceilings(flops_per_second=1e12, bytes_per_second=1e9)
PARTS = [
    Component(name="layer", group="layers", shape="", calls_per_step=4, model_flops=5e9, computed_flops=8e9),
    Component(name="attention", group="attention", shape="", calls_per_step=2, model_flops=1e9, computed_flops=1e9),
    Component(name="decoder", group="head", shape="", calls_per_step=1, model_flops=2e9, computed_flops=2e9),
    Component(name="loss", group="head", shape="", calls_per_step=1, bytes=1e6),
    Component(name="GELU", group="elementwise", shape="", calls_per_step=2, bytes=3e6),
    Component(name="casts", group="copies", shape="", calls_per_step=4),
    Component(name="update", group="optimizer", shape="", calls_per_step=1, bytes=10e6),
]
TIMES = {
    "layer": [10.0, 11.0, 12.0],
    "attention": [6.0, 6.0, 6.0],
    "decoder": [3.0, 3.0, 3.0],
    "loss": [2.0, 2.0, 2.0],
    "GELU": [2.5, 2.5, 2.5],
    "casts": [0.5, 0.5, 0.5],
    "update": [14.0, 14.0, 14.0],
}
STEP = {"step_time_ms": 100.0, "step_time_ms_low": 98.0, "step_time_ms_high": 103.0}
STEP |= {"data_wait_ms": 1.5, "communication_ms": 2.5}
EXPECTED = {
    "GEMMs at the peak": 4 * 5 + 2 * 1 + 2,
    "memory-bound parts at the bandwidth": 1 + 2 * 3 + 10,
    "GEMMs on padding": 4 * 3,
    "GEMMs below the peak": 4 * (11 - 8),
    "attention": 2 * (6 - 1),
    "head and its loss": (3 - 2) + (2 - 1),
    "elementwise parts": 2 * (2.5 - 3),
    "casts and sums of gradients": 4 * 0.5,
    "optimizer": 14 - 10,
    "waiting for data": 1.5,
    "communication": 2.5,
    "not explained": 100 - 24 - 17 - 12 - 12 - 10 - 2 + 1 - 2 - 4 - 1.5 - 2.5,
    "measured step": 100,
}


def test_parts_of_known_times_give_the_known_waterfall() -> None:
    found = waterfall(PARTS, TIMES, CEILINGS, STEP)
    assert {bar["name"]: bar["ms"] for bar in found} == pytest.approx(EXPECTED)
    assert [bar["name"] for bar in found] == list(EXPECTED)
    assert sum(bar["ms"] for bar in found[:-1]) == pytest.approx(found[-1]["ms"])
    assert {bar["name"]: bar["share"] for bar in found} == pytest.approx({k: v / 100 for k, v in EXPECTED.items()})
    layers = next(bar for bar in found if bar["name"] == "GEMMs below the peak")
    assert (layers["ms_low"], layers["ms_high"]) == (pytest.approx(4 * 2), pytest.approx(4 * 4))
    assert (found[-1]["ms_low"], found[-1]["ms_high"]) == (98.0, 103.0)
    one_round = waterfall(PARTS, {name: times[:1] for name, times in TIMES.items()}, CEILINGS, STEP)
    assert {(bar["ms_low"], bar["ms_high"]) for bar in one_round[:-1]} == {(None, None)}


def test_a_part_reaches_a_share_of_the_ceiling_that_bounds_it() -> None:
    rows = {row["name"]: row for row in component_rows(PARTS, TIMES, CEILINGS)}
    layer = rows["layer"]
    assert (layer["time_ms"], layer["step_ms"], layer["floor_ms"]) == (11.0, 44.0, pytest.approx(20.0))
    assert layer["flops_per_second"] == pytest.approx(8e9 / 11e-3)
    assert layer["of_ceiling"] == pytest.approx(8 / 11)
    assert rows["GELU"]["of_ceiling"] == pytest.approx(3 / 2.5) and rows["GELU"]["flops_per_second"] is None
    assert rows["casts"]["of_ceiling"] is None and rows["casts"]["floor_ms"] == 0.0


def written(run: Path, after_ms: float = 100.0, ranks: int = 1, layer_ms: float = 0.0) -> TrialDirectory:
    """A trial of kind components as bench writes it; the last rank is the slowest, a fourth round is cut short."""
    trial = Trial(kind="components", preset="tiny", world_size=ranks, strategy="ddp" if ranks > 1 else "single")
    directory = RunDirectory(run).trial(trial.trial_id)
    counts = {"real_tokens": 800, "padded_tokens": 1024, "model_flops": 24e9}
    steps = step_rows([500.0, *[100.0] * 5, after_ms, after_ms], 8, communication=2.5, data_wait=1.5, **counts)
    series = {"warmup": [0, 1], "before": [1, 3], "rounds": [3, 6], "after": [6, 8]}
    ceilings = {"measured_peak": {"before": 9e11, "after": 1e12}, "measured_bandwidth": {"before": 1e9, "after": 8e8}}
    records = {rank: {"rank": rank, "series": series, "steps": 8, **ceilings} for rank in range(ranks)}
    write_trial(RunDirectory(run), trial, dict.fromkeys(records, steps), ranks=records)
    write_components(directory, PARTS, {"layout": "padded"})
    for rank in records:
        rows = [
            (number, name, 1, (TIMES[name][number] + layer_ms * (name == "layer")) * (rank + 1) / ranks)
            for number in range(3)
            for name in TIMES
        ]
        named = [dict(zip(COMPONENT_COLUMNS, row, strict=True)) for row in [*rows, (3, "layer", 1, 9.0)]]
        write_csv(directory.components_csv(rank), list(COMPONENT_COLUMNS), named)
    return directory


@pytest.mark.parametrize(
    ("changes", "codes"),
    [({}, set()), ({"ranks": 2}, set()), ({"after_ms": 130.0}, {"drifted"}), ({"layer_ms": 80.0}, {"not_explained"})],
)
def test_records_give_the_same_waterfall_and_the_slowest_rank_counts(
    changes: dict[str, Any], codes: set[str], tmp_path: Path
) -> None:
    directory = written(tmp_path, **changes)
    found = summarize_components(directory.read_trial(), directory)
    assert {one["code"] for one in found["cautions"]} & {"drifted", "not_explained"} == codes
    assert found["drift"]["steps"] == pytest.approx(0.3 if "drifted" in codes else 0.0)
    if codes:
        return
    assert {bar["name"]: bar["ms"] for bar in found["waterfall"]} == pytest.approx(EXPECTED)
    assert (found["floor_ms"], found["of_floor"], found["rounds"]) == (pytest.approx(41.0), pytest.approx(0.41), 3)
    assert (found["step_time_ms"], found["steps_measured"], found["mfu"]) == (100.0, 7, pytest.approx(0.24))
    assert (found["drift"]["peak"], found["drift"]["bandwidth"]) == (pytest.approx(1 / 9), pytest.approx(-0.2))
