"""Runs: exact resume, phases, what may change, divergence, overflows; and the settings."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import training_runs
from support.refusals import refused
from support.training_runs import Recorder, run, settings

from bert.checkpoints.read import saved_steps
from bert.data.batch import Batch
from bert.optim.schedule import PHASES
from bert.parallel.base import SingleStrategy
from bert.train.base_run import LossLog
from bert.train.checkpoint import read
from bert.train.settings import phase_defaults, resolve_settings
from common.errors import Code

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("precision", "optimizer", "accumulation"),
    [("fp32", "lamb", 2), ("bf16", "lamb", 1), ("fp16", "lamb", 1), ("fp32", "adamw", 1), ("fp16", "adamw", 2)],
)
def test_a_stopped_run_goes_on_with_identical_losses(
    data: Path, tmp_path: Path, precision: str, optimizer: str, accumulation: int
) -> None:
    wanted = settings(data, precision=precision, optimizer=optimizer, grad_accum_steps=accumulation, eval_every=4)
    whole, begun, ended = Recorder(), Recorder(stop_after=5), Recorder()
    assert run(wanted, tmp_path / "whole", whole).finished
    stopped = run(wanted, tmp_path / "parts", begun)
    assert not stopped.finished and stopped.applied_steps == 5
    assert stopped.checkpoint == tmp_path / "parts/step-0000005"
    outcome = run(wanted, tmp_path / "parts", ended)
    assert outcome.finished and outcome.resumed_from == stopped.checkpoint
    assert list(ended.losses) == [5, 6, 7]
    assert {**begun.losses, **ended.losses} == whole.losses
    assert ended.of("Evaluated")[0].evaluation == whole.of("Evaluated")[1].evaluation
    assert [event.learning_rate for event in ended.progress] == [e.learning_rate for e in whole.progress[5:]]


def test_no_step_reads_lengths_from_the_mask(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that would wait for it: batches of training and evaluation bring their layout."""

    def refuse(mask: torch.Tensor) -> None:
        raise AssertionError("a step has read its mask")

    monkeypatch.setattr("bert.speed.layers.unpad", refuse)
    assert run(settings(data, eval_every=4), tmp_path, Recorder()).finished


def test_a_finished_run_is_not_trained_again_and_more_steps_go_on(data: Path, tmp_path: Path) -> None:
    run(settings(data, steps=2), tmp_path)
    second, third = Recorder(), Recorder()
    outcome = run(settings(data, steps=2), tmp_path, second)
    assert outcome.finished and not second.losses and outcome.checkpoint == tmp_path / "step-0000002"
    assert run(settings(data, steps=3), tmp_path, third).applied_steps == 3
    assert "steps 3 instead of 2" in third.warnings


def samples_of(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that the samples trained on from now on are added to, in order."""
    seen: list[bytes] = []
    original = LossLog.compute_loss

    def listening(self: LossLog, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        seen.extend(row.numpy().tobytes() for row in batch.tensors["input_ids"])
        return original(self, model, batch)

    monkeypatch.setattr(LossLog, "compute_loss", listening)
    return seen


def test_another_batch_size_goes_on_behind_the_samples_seen_and_resumes_exactly(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = samples_of(monkeypatch)
    wanted = settings(data, steps=32)
    run(wanted, tmp_path / "whole")
    expected, seen[:] = list(seen), []
    run(wanted, tmp_path / "parts", Recorder(stop_after=5))
    shutil.copytree(tmp_path / "parts", tmp_path / "again")
    larger = dataclasses.replace(wanted, micro_batch_size=6, grad_accum_steps=2, steps=14)
    whole, begun, ended = Recorder(), Recorder(stop_after=8), Recorder()
    assert run(larger, tmp_path / "parts", whole).samples_seen == 5 * 4 + 9 * 12
    assert seen == expected, "none is left out or comes twice, also across the end of an epoch of 88"
    assert [event.samples_seen for event in whole.progress][:2] == [32, 44]
    rates = larger.learning_rates()
    assert [event.learning_rate for event in whole.progress] == [rates(made) for made in range(5, 14)]
    assert "global_batch_size 12 instead of 4" in whole.warnings
    assert whole.of("Resumed")[0].changed == {
        "steps": (32, 14), "global_batch_size": (4, 12), "micro_batch_size": (4, 6), "grad_accum_steps": (1, 2),
    }  # fmt: skip
    run(larger, tmp_path / "again", begun)
    assert run(larger, tmp_path / "again", ended).finished
    assert {**begun.losses, **ended.losses} == whole.losses
    assert not ended.of("Resumed")[0].changed and not ended.warnings


def test_phase_two_takes_weights_and_moments_and_begins_its_own_schedule(data: Path, tmp_path: Path) -> None:
    run(settings(data, steps=4), tmp_path / "one")
    longer = training_runs.shards(tmp_path / "longer", seq_len=48)
    wanted = settings(longer, seq_len=48, micro_batch_size=2, steps=4, learning_rate=1e-3, init=str(tmp_path / "one"))
    whole, begun, ended = Recorder(), Recorder(stop_after=2), Recorder()
    run(wanted, tmp_path / "whole", whole)
    run(wanted, tmp_path / "two", begun)
    assert run(wanted, tmp_path / "two", ended).finished
    assert {**begun.losses, **ended.losses} == whole.losses
    (first,), (second,) = begun.of("Resumed"), ended.of("Resumed")
    assert first.new_phase and first.moments and first.applied_steps == 0
    assert not second.new_phase and second.applied_steps == 2
    assert begun.progress[0].learning_rate == pytest.approx(1e-3 * 0.75**0.5)  # update 1 of 4 ends the warm-up
    assert read(tmp_path / "two/step-0000004").state.optimizer_steps == 8, "bias correction goes on"


def test_an_overflow_is_left_out_recovered_from_and_resumed_exactly(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LossLog.compute_loss
    calls = {"made": 0}

    def overflowing(self: LossLog, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        calls["made"] += 1
        loss = original(self, model, batch)
        return loss * 1e38 if self.samples_seen == 4 * 4 else loss

    monkeypatch.setattr(LossLog, "compute_loss", overflowing)
    wanted = settings(data, precision="fp16")
    whole, begun, ended = Recorder(), Recorder(stop_after=5), Recorder()
    outcome = run(wanted, tmp_path / "whole", whole)
    assert calls["made"] == 9 and outcome.skipped_steps == 1 and outcome.applied_steps == 8
    assert [event.applied for event in whole.progress] == [True] * 4 + [False] + [True] * 4
    scales = [event.loss_scale for event in whole.progress]
    assert scales == [2.0**16] * 4 + [2.0**15] * 5
    assert whole.progress[4].learning_rate == whole.progress[5].learning_rate
    run(wanted, tmp_path / "parts", begun)
    run(wanted, tmp_path / "parts", ended)
    assert {**begun.losses, **ended.losses} == whole.losses
    assert ended.progress[0].step == 6 and ended.progress[0].loss_scale == 2.0**15


def test_a_saved_loss_scale_outlives_the_one_that_a_strategy_begins_with(data: Path, tmp_path: Path) -> None:
    class Scaling(SingleStrategy):
        def prepare(self, optimizer: torch.optim.Optimizer, precision: Any) -> None:
            precision.load_state_dict({**precision.state_dict(), "scale": next(scales)})

    scales, begun, ended = iter((64.0, 8.0)), Recorder(stop_after=2), Recorder()
    for recorder in (begun, ended):
        run(settings(data, precision="fp16", steps=3), tmp_path, recorder, Scaling())
    assert [event.loss_scale for event in (*begun.progress, *ended.progress)] == [64.0] * 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_parameters_that_are_not_finite_are_never_saved(data: Path, tmp_path: Path, value: float) -> None:
    class Poisoning(SingleStrategy):
        """Spoils one number in the fourth update, which only the loss of the fifth would show."""

        updates = 0

        def step(self, optimizer: torch.optim.Optimizer, *rest: Any, **named: Any) -> bool | torch.Tensor:
            applied = super().step(optimizer, *rest, **named)
            self.updates += 1
            if self.updates == 4:
                optimizer.param_groups[0]["params"][-1].data.view(-1)[-1] = value
            return applied

    with refused("training-diverged", "step 4 ", "learning rate", "step-0000002"):
        run(settings(data, save_every=2), tmp_path, strategy=Poisoning())
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize(
    ("changes", "code", "facts"),
    [
        (
            {"global_batch_size": 100},
            "batch-size-mismatch",
            ["--global-batch-size 100", "--micro-batch-size", "--devices", "= 4", "--grad-accum-steps 25"],
        ),
        ({"preset": "tiniest"}, "option-choice", ["preset", "'tiniest'", "tiny"]),
        ({"warmup": 1.5}, "option-value", ["--warmup 1.5"]),
        ({"dropout": 1.0}, "option-value", ["dropout", "1.0"]),
        ({"seed": 2**32}, "option-value", ["--seed 4294967296", "0 to 4294967295"]),
        ({"shape": "num_layers=2"}, "option-value", ["'num_layers=2'", "num_heads=12"]),
        ({"learning_rate": float("nan")}, "option-value", ["--learning-rate nan"]),
        ({"world_size": 2}, "unsupported-combination", ["--strategy single", "2", "ddp"]),
        ({"data": "synthetic:odd"}, "option-choice", ["length distribution", "'odd'"]),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(changes: dict[str, Any], code: Code, facts: list[str]) -> None:
    with refused(code, *facts):
        settings(**{"data": "synthetic", **changes})


@pytest.mark.parametrize("phase", [1, 2])
def test_the_phases_have_nvidias_defaults(phase: int) -> None:
    resolved = resolve_settings(phase, {"data": "synthetic", "world_size": 8, "strategy": "ddp"})
    published = PHASES[phase]
    assert resolved.global_batch_size == {1: 65536, 2: 32768}[phase] == published.global_batch_size
    assert (resolved.preset, resolved.optimizer, resolved.schedule, resolved.seed) == ("large", "lamb", "poly", 42)
    assert (resolved.steps, resolved.warmup) == {1: (7038, 0.2843), 2: (1563, 0.128)}[phase]
    assert (resolved.seq_len, resolved.max_predictions) == {1: (128, 20), 2: (512, 80)}[phase]
    assert resolved.learning_rate == {1: 6e-3, 2: 4e-3}[phase]


def test_the_third_of_the_batch_sizes_follows_from_two() -> None:
    def sizes(**given: Any) -> tuple[int, int, int]:
        found = resolve_settings(1, {"data": "synthetic", **given})
        return found.micro_batch_size, found.grad_accum_steps, found.global_batch_size

    assert sizes(micro_batch_size=64) == (64, 1024, 65536)
    assert sizes(global_batch_size=64, micro_batch_size=16) == (16, 4, 64)
    assert sizes(global_batch_size=64, grad_accum_steps=2) == (32, 2, 64)
    assert sizes(micro_batch_size=8, grad_accum_steps=2) == (8, 2, 16)
    assert sizes(global_batch_size=8) == (8, 1, 8)
    assert sizes(global_batch_size=48) == (24, 2, 48), "a default that divides what was asked for"
    with refused("batch-size-mismatch", "100", "16 x 1 = 16", "96", "112"):
        sizes(global_batch_size=100, micro_batch_size=16)
    with refused("option-choice", "--phase 3", "1", "2"):
        phase_defaults(3)
    with refused("option-missing", "synthetic"):
        resolve_settings(1, {})
    with refused("option-unknown", "stepz", "steps"):
        resolve_settings(1, {"data": "synthetic", "stepz": 1})


def test_epochs_become_updates_and_updates_go_before_them() -> None:
    def made(samples: int | None = 100, **given: Any) -> tuple[int, int]:
        found = resolve_settings(1, {"data": "synthetic", "global_batch_size": 32, **given}, samples)
        return found.steps, found.eval_every

    assert made(epochs=2) == (7, 0) and made(epochs=0.5) == (2, 0)
    assert made(epochs=1.1, global_batch_size=10) == (11, 0), "1.1 as a binary number is a little more"
    assert made(epochs=2, steps=5) == (5, 0)
    assert made(epochs=2, eval_data="x") == (7, 4), "after each epoch, and at the end"
    assert made(steps=5, eval_data="x") == (5, 5) and made(steps=5, eval_data="x", eval_every=2) == (5, 2)
    with refused("option-not-applicable", "--epochs 2", "--steps"):
        made(None, epochs=2)
    with refused("option-not-applicable", "--data", "--steps") as caught:
        resolve_settings(None, {"data": "synthetic", "task": "squad"}, None)
    assert "--epochs" not in str(caught.value)  # it was not given
    with refused("option-value", "--epochs 0"):
        made(epochs=0)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputed_layers_change_no_loss_and_a_run_goes_on_without_them(tmp_path: Path, dropout: float) -> None:
    whole, first, second = Recorder(), Recorder(stop_after=3), Recorder()
    common = {"steps": 6, "dropout": dropout}
    run(settings("synthetic", **common), tmp_path / "whole", whole)
    run(settings("synthetic", **common, activation_checkpointing=True), tmp_path / "parts", first)
    run(settings("synthetic", **common), tmp_path / "parts", second)
    assert {**first.losses, **second.losses} == whole.losses and len(whole.losses) == 6
    assert not second.warnings
