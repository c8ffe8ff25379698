"""Every part of a step can be called alone, changes nothing, and is timed as it should be."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refusals import refused
from support.triton_needed import need_triton

from bench.cli.speed_of_light import SpeedOfLightOptions, planned
from bench.floor.measure import _Steps, _time_rounds, typical_batch
from bench.floor.parts import Part, Subject, make_parts
from bench.machine.devices import find_devices
from bench.run.stopwatch import Stopwatch
from bench.sweep.trials import Workload
from bert.data.batches import DataSpec
from bert.model.config import ModelConfig
from bert.observer import Observer
from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.base import SingleStrategy
from bert.speed import apply, copy_weights, native
from bert.speed.copies import has_low_gradients
from bert.tasks import make_task, resolve_options, task_data
from bert.train.loop import Training
from common.train_spec import TrainSpec
from records.components import Component, read_components, read_rounds, write_components
from records.files import RowWriter
from records.run import TrialDirectory
from records.trial import Trial

SHAPE = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64, max_positions=64, vocab_size=101
)  # fmt: skip


def subject(task_name: str = "pretrain", precision: str = "fp32", way: str = "fast") -> Subject:
    torch.manual_seed(0)
    data, given = task_data(task_name), {"task": "stsb"} if task_name == "glue" else {}
    options = resolve_options(task_name, given, data.inspect("synthetic", 32, given))
    task = make_task(task_name, options)
    model = task.build_model(SHAPE)
    apply(model, way)
    copy_weights(model, TrainSpec(step=way, precision=precision, strategy="single"))
    spec = DataSpec(data="synthetic:uniform", seq_len=32, micro_batch_size=4, vocab_size=101)
    stream = iter(task.batches(spec))
    training = Training(
        model=model, optimizer=adamw(model, 1e-4), compute_loss=task.loss, batches=stream,
        strategy=SingleStrategy(), precision=Precision(precision, "cpu"),
    )  # fmt: skip
    batch = typical_batch(stream, lambda each: float(each.counts.real_tokens))
    step = make_task(task_name, options).step(SHAPE)
    return Subject(task, step, model, training, batch)


def again(step: Subject, **changes: Any) -> Subject:
    """Return the subject as its model is now."""
    parts = ("task", "step", "model", "training", "batch")
    return Subject(**{name: getattr(step, name) for name in parts} | changes)


@pytest.mark.parametrize(("precision", "way"), [("fp32", "fast"), ("bf16", "plain"), ("bf16", "fast")])
@pytest.mark.parametrize("task_name", ["pretrain", "squad", "glue", "classify"])
def test_every_part_runs_and_leaves_the_weights_as_they_are(task_name: str, precision: str, way: str) -> None:
    step = subject(task_name, precision, way)
    before = {name: parameter.detach().clone() for name, parameter in step.model.named_parameters()}
    parts = make_parts(step)
    for part in parts:
        part.run()
    names = [part.component.name for part in parts]
    assert len(set(names)) == len(names)
    assert {part.component.group for part in parts} == {
        "layers", "attention", "head", "elementwise", "copies", "optimizer"
    }  # fmt: skip
    total = sum(part.component.calls_per_step * part.component.model_flops for part in parts)
    assert total == step.step.model_flops(step.batch.counts)
    assert any(name.startswith("casts of weights") for name in names) == (precision == "bf16" and way == "plain")
    for name, parameter in step.model.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.grad is None, name


@pytest.mark.parametrize(("way", "name"), [("plain", "padded"), ("fast", "unpadded")])
def test_parts_have_the_rows_that_the_layers_compute(way: str, name: str) -> None:
    step = subject(way=way)
    seen: list[torch.Size] = []
    step.model.encoder.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:-1]))
    step.model(step.batch)
    assert (step.extent.layout, step.extent.tokens) == (name, seen[0].numel())
    parts = {part.component.name: part for part in make_parts(step)}
    product = parts["attention output, forward"].component
    assert product.computed_flops == 2 * seen[0].numel() * SHAPE.hidden_size**2
    widths = {"padded": 4 * 32**2, "unpadded": step.batch.counts.squared_lengths}
    assert parts["attention"].component.computed_flops == 12 * SHAPE.hidden_size * widths[name]


@pytest.mark.parametrize(("way", "kernel"), [("plain", False), ("plain", True), ("fast", True)])
def test_the_bytes_of_the_optimizer_are_those_of_what_the_step_runs(
    way: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = subject("pretrain", "bf16", way)
    if kernel:
        need_triton()
        from bert.speed.kernels import optimizers

        training = dataclasses.replace(step.training, optimizer=adamw(step.model, 1e-4, fused=True))
        step, calls = again(step, training=training), list[str]()
        monkeypatch.setattr(optimizers, "launch", lambda made, *given, **how: calls.append(made.fn.__name__))
    parts = {part.component.name: part for part in make_parts(step) if part.component.group == "optimizer"}
    count = sum(p.numel() for p in step.model.parameters())
    copied = sum(p.numel() for p in step.model.parameters() if has_low_gradients(p))
    assert (copied > 0) == (way == "fast")
    assert parts["optimizer"].component.bytes == 28 * count  # a bf16 gradient and a copy are as much as one in float32
    for part in parts.values():
        part.run()
    if kernel:
        assert calls == ["optimizer_prepare", "optimizer_update"]


class Clock(Stopwatch):
    """A stopwatch of a time line that parts move on."""

    now = 0

    def mark(self) -> int:
        return self.now


def test_rounds_hold_each_part_once_with_a_whole_step_and_end_as_asked(tmp_path: Path) -> None:
    clock = Clock()
    order: list[str] = []

    def part(name: str, ms: float) -> Part:
        def run() -> None:
            order.append(name)
            clock.now += int(ms * 1e6)

        return Part(Component(name=name, group="layers", shape="", calls_per_step=1), run)

    parts = [part("slow", 50.0), part("quick", 0.5)]
    directory = TrialDirectory(tmp_path)
    steps = _Steps(subject().training, Observer())
    steps.make("warmup", 2)
    trial = Trial(kind="components", min_steps=3, max_steps=4, max_seconds=1e-9)
    with RowWriter(tmp_path / "components-0.csv", ["round", "component", "calls", "time_ms"]) as writer:
        assert _time_rounds(trial, parts, writer, steps, clock) == 3
    assert steps.series == {"warmup": [0, 2], "before": [0, 0], "rounds": [2, 5], "after": [0, 0]}
    write_components(directory, [part.component for part in parts], {})
    found = read_rounds(directory, read_components(directory))
    assert found == {"slow": [pytest.approx(50.0)] * 3, "quick": [pytest.approx(0.5)] * 3}
    text = (tmp_path / "components-0.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in text[1:]] == ["slow", "quick", "quick", "slow", "slow", "quick"]
    assert {line.split(",")[2] for line in text if ",quick," in line} == {"4"}
    assert len(list(itertools.takewhile(lambda name: name == "slow", order))) == 4


def test_fused_parts_hold_the_casts_and_sums_between_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for fused in (False, True):
        step = subject("pretrain", "bf16")
        monkeypatch.setenv(native.VARIABLE, "1" if fused else "0")
        found[fused] = {part.component.name: part.component for part in make_parts(again(step))}
    name = "dropout, residual, norm"
    assert found[True][name].bytes - found[False][name].bytes == 2 * 2 * step.extent.tokens * SHAPE.hidden_size
    calls = [found[fused]["residual gradients"].calls_per_step for fused in (True, False)]
    assert calls == [1, 2 * SHAPE.num_layers] and found[True].keys() == found[False].keys()


def test_there_is_no_floor_in_fp8() -> None:
    options = SpeedOfLightOptions(workload=Workload(precisions=("fp8",), presets=("tiny",)))
    with refused("device-unsupported", "fp8", "bertbench throughput"):
        planned(options, find_devices("cpu"))
