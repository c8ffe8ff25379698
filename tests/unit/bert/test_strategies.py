"""The strategies without several processes: registry, options, DeepSpeed's configuration, DataParallel's division."""

import dataclasses
import functools
import importlib
import importlib.util
import json
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refusals import refused

from bert.data.batches import DataSpec
from bert.model.config import ModelConfig
from bert.observer import Observer
from bert.parallel import STRATEGIES, devices_per_rank, make_strategy, options_text
from bert.parallel.base import SingleStrategy, StepPlan, WholeModel
from bert.parallel.deepspeed_config import read_deepspeed_config, resolve, training_values
from bert.parallel.dp import joined, split_batch
from bert.tasks.pretrain.batches import SyntheticBatches
from bert.tasks.pretrain.task import PretrainTask
from bert.tasks.squad.task import SquadTask
from common.errors import Code
from common.registry import load
from common.train_spec import TrainSpec

SHIPPED = Path(__file__).resolve().parents[3] / "bench" / "deepspeed"
CONFIG = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64, vocab_size=200, hidden_dropout=0.0,
    attention_dropout=0.0, max_positions=64,
)  # fmt: skip


def run(zero_stage: int | None = None, **changes: Any) -> tuple[StepPlan, int | None]:
    """The steps of a run, and its stage of ZeRO."""
    train = {"micro_batch_size": 8, "grad_accum_steps": 2, "world_size": 4, "precision": "bf16"}
    own = {"max_grad_norm": 1.0, "optimizer": "adamw", "learning_rate": 3e-5, "weight_decay": 0.01}
    spec = TrainSpec(**{name: changes.pop(name, value) for name, value in train.items()})  # type: ignore[arg-type]
    return StepPlan(train=spec, **{**own, **changes}), zero_stage


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_loads_and_is_made_without_options(name: str) -> None:
    assert isinstance(make_strategy(name), load(STRATEGIES, name, "strategy"))
    assert devices_per_rank(name, 4) == (4 if name == "dp" else 1)


@pytest.mark.parametrize("name", ["deepspeed", "horovod"])
def test_what_is_not_installed_is_named_with_the_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None)
    with refused("package-missing", name, "pip install" if name == "deepspeed" else "WITH_HOROVOD"):
        make_strategy(name).setup("cpu")


@pytest.mark.parametrize(
    ("strategy", "options", "code", "facts"),
    [
        ("ddp", {"zero_stage": 1}, "option-not-applicable", ["ddp", "--zero-stage", "--strategy deepspeed"]),
        ("deepspeed", {"zero_stage": 4}, "option-choice", ["--zero-stage 4", "0, 1, 2, 3"]),
        ("ddp", {"bucket_mib": 0}, "option-value", ["--bucket-mib 0"]),
        ("deepspeed", {"config": [1]}, "option-value", ["DeepSpeed configuration"]),
    ],
)
def test_options_a_strategy_does_not_have_are_refused(
    strategy: str, options: dict[str, Any], code: Code, facts: list[str]
) -> None:
    with refused(code, *facts):
        options_text(strategy, options)


def test_auto_and_absent_values_come_from_the_run() -> None:
    for config in ({}, read_deepspeed_config(SHIPPED / "auto.json")):
        found = resolve(config, *run(zero_stage=2))
        assert found.zero_stage == 2 and found.optimizer == {"lr": 3e-5, "weight_decay": 0.01}
        assert found.config["train_micro_batch_size_per_gpu"] == 8
        assert found.config["gradient_accumulation_steps"] == 2
        assert found.config["train_batch_size"] == 64 and found.config["gradient_clipping"] == 1.0
        assert found.config["bf16"] == {"enabled": True} and found.config["fp16"] == {"enabled": False}
        assert found.config["zero_optimization"] == {"stage": 2}
        assert "auto" not in json.dumps(found.config) and "optimizer" not in found.config
    off = {"autotuning": {"enabled": False, "fast": True}, "amp": {"enabled": False, "opt_level": "O1"}}
    assert "amp" not in resolve(off, *run()).config


def test_what_file_and_run_say_otherwise_is_refused_with_both_values() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 1,
        "train_batch_size": 999,
        "gradient_clipping": 0.5,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "Lamb", "params": {"lr": 1e-3, "weight_decay": 0.5}},
    }
    both = (
        "train_micro_batch_size_per_gpu is 16, but the run has 8",
        "gradient_accumulation_steps is 1, but the run has 2",
        "train_batch_size is 999, but the run has 64", "gradient_clipping is 0.5", "fp16.enabled is True",
        "zero_optimization.stage is 3, but the run has 1", "optimizer.type is 'Lamb'",
        "optimizer.params.lr is 0.001, but the run has 3e-05", "optimizer.params.weight_decay is 0.5",
    )  # fmt: skip
    with refused("option-conflict", *both, '"auto"'):
        resolve(config, *run(zero_stage=1))


@pytest.mark.parametrize(
    ("config", "code", "facts"),
    [
        ({"scheduler": {"type": "WarmupLR"}}, "option-not-applicable", ["scheduler"]),
        ({"zero_optimization": {"offload_param": {"device": "cpu"}}}, "option-not-applicable", ["offload_param"]),
        ({"zero_optimization": 2}, "option-value", ['"zero_optimization"', "not 2"]),
        ({"optimizer": {"type": "SGD"}}, "option-conflict", ["optimizer.type is 'SGD'"]),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "option-conflict", ["adam_w_mode"]),
        ({"optimizer": {"params": {"momentum": 0.9}}}, "option-not-applicable", ["momentum"]),
    ],
)
def test_what_cannot_be_done_is_refused(config: dict[str, Any], code: Code, facts: list[str]) -> None:
    with refused(code, *facts):
        resolve(config, *run())


def test_lamb_runs_where_whole_tensors_are_kept() -> None:
    resolve({}, *run(optimizer="lamb", max_grad_norm=None, zero_stage=0))
    with refused("unsupported-combination", "stage 1", "LAMB", "adamw"):
        resolve({}, *run(optimizer="lamb", max_grad_norm=None, zero_stage=1))


@pytest.mark.parametrize(("name", "micro", "stage"), [("base", 532, 0), ("large", 93, 1), ("distilbert", 512, 0)])
def test_the_shipped_files_hold_the_published_values(name: str, micro: int, stage: int) -> None:
    config = read_deepspeed_config(SHIPPED / f"{name}.json")
    asked = run(micro_batch_size=micro, learning_rate=None, weight_decay=None, precision="fp16", zero_stage=None)
    found = resolve(config, *asked)
    assert found.zero_stage == stage
    assert found.optimizer == {"lr": 3e-5, "betas": (0.8, 0.999), "eps": 1e-8, "weight_decay": 3e-7}
    assert training_values(config) == {"micro_batch_size": micro, "learning_rate": 3e-5, "weight_decay": 3e-7}
    with refused("option-conflict", f"is {micro},", "8"):
        resolve(config, *run())


def test_data_parallel_is_refused_on_a_cpu() -> None:
    with refused("device-unsupported", "strategy dp", "CPU", "single", "ddp"):
        make_strategy("dp").setup("cpu")


@pytest.mark.parametrize(("task", "source"), [(PretrainTask(), "synthetic:uniform"), (SquadTask(), "synthetic")])
def test_the_parts_of_a_batch_have_its_loss_gradients_and_counts(task: Any, source: str) -> None:
    spec = DataSpec(data=source, seq_len=32, micro_batch_size=7, max_predictions=5, vocab_size=200)
    batch = dataclasses.replace(next(iter(task.batches(spec))), weight=1.25)
    torch.manual_seed(0)
    model = task.build_model(CONFIG)
    parts = split_batch(batch, 3)
    rows = [len(part.tensors["input_ids"]) for part in parts]
    assert rows == [3, 3, 1]
    assert functools.reduce(operator.add, [part.counts for part in parts]) == batch.counts
    gradients = []
    for compute in (lambda: model(batch), lambda: joined([model(part) for part in parts], rows, torch.device("cpu"))):
        model.zero_grad()
        output = compute()
        output.loss.backward()
        gradients.append((output.loss.item(), [parameter.grad.clone() for parameter in model.parameters()]))
    (loss, whole), (other, divided) = gradients
    assert other == pytest.approx(loss, rel=1e-6)
    for one, two in zip(whole, divided, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_a_whole_copy_computes_as_the_model() -> None:
    task = PretrainTask()
    observer = Observer()
    torch.manual_seed(0)
    model = task.build_model(CONFIG, observer)
    batch = next(iter(SyntheticBatches(DataSpec(data="synthetic", seq_len=16, micro_batch_size=2, vocab_size=200))))
    copied = WholeModel(model, observer)
    single = SingleStrategy()
    for _ in range(2):
        filled = copied.filled(single.weights(model), torch.device("cpu"))
        assert filled(batch).loss.item() == model(batch).loss.item()
        with torch.no_grad():
            next(model.parameters()).add_(0.01)


def test_a_file_may_say_the_norm_to_which_lamb_clips_by_itself() -> None:
    lamb = run(optimizer="lamb", max_grad_norm=None, optimizer_norm=5.0)
    for given in ({"gradient_clipping": 5}, {"gradient_clipping": 0}, {"gradient_clipping": "auto"}, {}):
        assert resolve(given, *lamb).config["gradient_clipping"] == 0
    with refused("option-conflict", "gradient_clipping is 4"):
        resolve({"gradient_clipping": 4}, *lamb)
