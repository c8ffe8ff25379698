"""The fast and the plain step: what is refused, what they lack, and how far bf16 is off."""

import dataclasses
from pathlib import Path

import pytest
import torch
from support.fake_run import ENVIRONMENT, rank_record, step_rows, write_trial
from support.layouts import batch_of, loss_and_gradients, model
from support.refusals import refused
from support.training_runs import settings

from analysis.load import load_run
from analysis.render.pages import facts
from bench.implementations.base import Implementation
from bert.speed import STEPS, apply, lacking
from bert.train.settings import check_step
from common.errors import MissingToolError
from common.train_spec import TrainSpec
from records.run import RunDirectory
from records.trial import Trial


def test_fast_sums_of_gradients_in_fp8_need_fp8() -> None:
    with refused("option-not-applicable", "--fp8-fast-gradients", "--precision fp8"):
        settings("synthetic", precision="bf16", fp8_fast_gradients=True)
    assert settings("synthetic", precision="fp8", fp8_fast_gradients=True).fp8_fast_gradients


def test_fp8_is_refused_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for strategy in ("single", "ddp"):
        check_step(TrainSpec(precision="fp8", strategy=strategy), "cpu")
    for strategy in ("fsdp", "deepspeed", "dp", "horovod"):
        check_step(TrainSpec(precision="bf16", strategy=strategy), "cpu")
        with refused("unsupported-combination", "fp8", strategy, "single"):
            check_step(TrainSpec(precision="fp8", strategy=strategy), "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, fits in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda given=capability: given)
        if fits:
            check_step(TrainSpec(precision="fp8"), "cuda")
        else:
            with refused("device-unsupported", "8.9", "8.0"):
                check_step(TrainSpec(precision="fp8"), "cuda")
    with refused("option-choice", "quick", "fast"):
        check_step(TrainSpec(step="quick"), "cpu")
    with refused("unsupported-combination", "fp8"):
        Implementation().check(Trial(preset="tiny", precision="fp8", implementation="hf"))


def test_without_triton_a_gpu_is_slower_and_a_report_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = MissingToolError("tool-missing", "Triton is not installed")
    monkeypatch.setattr("bert.speed.triton_missing", lambda: missing)
    assert lacking("fast", "cuda") is missing and lacking("plain", "cuda") is None and lacking("fast", "cpu") is None
    run = RunDirectory(tmp_path)
    for number, lacks in enumerate([str(missing), str(missing), None]):
        write_trial(
            run, dataclasses.replace(Trial(preset="mini"), round=number), {0: step_rows([100.0] * 9, 8)},
            environment=ENVIRONMENT, ranks={0: {**rank_record(), "step_lacks": lacks}},
        )  # fmt: skip
    assert ("the fast step lacks", str(missing)) in facts(load_run(run))


@pytest.mark.parametrize("step", STEPS)
def test_in_bf16_losses_and_gradients_are_as_far_off_as_bf16_alone_is(step: str) -> None:
    batch = batch_of([16, 3, 9, 1], 20)
    plain, other = model(False), model(True)
    apply(plain, "plain")
    apply(other, step)
    expected = loss_and_gradients(plain, plain(batch).loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = other(batch).loss
    found = loss_and_gradients(other, loss)
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=2e-2, atol=0)
    for name, value in expected.items():
        norm = value.norm()
        assert (found[name] - value).norm() < 0.15 * norm or norm < 1e-3 * expected["loss"].norm(), name
