"""Strategies on two gloo ranks in every precision they have there: the losses of one process, exact resume."""

import importlib.util
import json
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from support.cli import ROOT
from support.process_runs import SAVED, alone, losses_of, only_first_checkpoint, pair

# What rounding to a type of so few bits leaves of the agreement of losses.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed: docs/how-to/strategies.md"
    )


def soak(*cases: tuple[object, ...]) -> list[ParameterSet]:
    return [pytest.param(*case, marks=pytest.mark.soak) for case in cases]


def check(
    data: Path, tmp_path: Path, strategy: str, precision: str, optimizer: str, options: str = "", on: str = ""
) -> None:
    common = {"precision": precision, "optimizer": optimizer}
    reference = alone(data, tmp_path / "alone", **common)
    ours = {**common, "strategy_options": options}
    whole = pair(data, tmp_path / "a", strategy, tmp_path / "run", **ours)
    expected = {event.step: event.loss for event in reference.progress}
    tolerance = TOLERANCE[precision]
    assert losses_of(whole) == pytest.approx(expected, rel=tolerance)
    scores = [event["evaluation"]["values"]["mlm_loss"] for event in whole if event["event"] == "Evaluated"]
    wanted = [event.evaluation.values["mlm_loss"] for event in reference.of("Evaluated")]
    assert scores == pytest.approx(wanted, rel=10 * tolerance)
    after = {step: loss for step, loss in losses_of(whole).items() if step >= SAVED}
    copy = only_first_checkpoint(tmp_path / "run", tmp_path / "interrupted")
    assert losses_of(pair(data, tmp_path / "b", strategy, copy, **ours)) == after
    if on:
        # A checkpoint of one process goes on here, and one of here in another strategy.
        came = pair(data, tmp_path / "c", strategy, only_first_checkpoint(tmp_path / "alone", tmp_path / "on"), **ours)
        assert losses_of(came) == pytest.approx({step: expected[step] for step in losses_of(came)}, rel=tolerance)
        went = pair(data, tmp_path / "d", on, only_first_checkpoint(tmp_path / "run", tmp_path / "off"), **common)
        assert losses_of(went) == pytest.approx(after, rel=tolerance)


@pytest.mark.parametrize(
    ("precision", "optimizer", "on"),
    [("fp32", "lamb", "ddp"), *soak(("bf16", "adamw", ""), ("fp16", "lamb", ""))],
)
def test_sharded_ranks_train_as_one(data: Path, tmp_path: Path, precision: str, optimizer: str, on: str) -> None:
    check(data, tmp_path, "fsdp", precision, optimizer, on=on)


@needs("deepspeed")
@pytest.mark.parametrize(
    ("stage", "precision", "optimizer", "on"),
    [
        (3, "fp32", "adamw", "ddp"),
        *soak(
            (0, "fp32", "lamb", ""), (0, "bf16", "adamw", ""), (1, "fp32", "adamw", "fsdp"), (2, "bf16", "adamw", "")
        ),
    ],
)
def test_deepspeed_trains_as_one(
    data: Path, tmp_path: Path, stage: int, precision: str, optimizer: str, on: str
) -> None:
    check(data, tmp_path, "deepspeed", precision, optimizer, json.dumps({"zero_stage": stage}), on)


@needs("deepspeed")
def test_a_deepspeed_file_fills_in_and_steers_a_run(data: Path, tmp_path: Path) -> None:
    config = json.loads((ROOT / "bench/deepspeed/auto.json").read_text())
    config["zero_optimization"]["stage"] = 2
    options = json.dumps({"config": config})
    expected = {event.step: event.loss for event in alone(data, tmp_path / "a", optimizer="adamw").progress}
    events = pair(data, tmp_path / "b", "deepspeed", tmp_path / "run", optimizer="adamw", strategy_options=options)
    assert losses_of(events) == pytest.approx(expected, rel=1e-5)


@needs("horovod")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_horovod_trains_as_one(data: Path, tmp_path: Path, precision: str) -> None:
    check(data, tmp_path, "horovod", precision, "adamw", on="ddp")
