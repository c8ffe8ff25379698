"""A step on a device that is not the host: no tensor of it may be left behind, and nothing may wait for the device.

PyTorch's fake tensors keep shapes and devices without values. They refuse operators whose tensors lie on two devices,
as a GPU does, and everything that reads a value (`tolist`, `nonzero`, `bool`); "meta" stands for the GPU here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.triton_needed import need_triton
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from bench.implementations.ours import BertbenchImplementation
from bert.data.batch import Batch
from bert.data.batches import DataSpec
from bert.model.config import model_config
from bert.observer import Observer
from bert.optim.lamb import Lamb
from bert.optim.precision import Precision
from bert.speed import FAST, PLAIN, apply, kernels
from bert.tasks import evaluation, make_task
from bert.tasks.base import Ready, Task
from bert.tasks.evaluation import outputs
from bert.train.feed import Feed
from records.trial import Trial

AWAY = torch.device("meta")
GLUE = '{"task": "rte"}'


@contextmanager
def without_values() -> Iterator[None]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.allow_meta = True
    with mode:
        yield


TASKS = pytest.mark.parametrize(
    ("name", "options"), [("pretrain", ""), ("squad", ""), ("gap", ""), ("classify", ""), ("glue", GLUE)]
)


def made(name: str, options: str, step: str = FAST) -> tuple[Task, torch.nn.Module, Batch]:
    """A task, its model on the device, and a batch with padding as a loader makes it, on the host."""
    task = make_task(name, options)
    trial = Trial(preset="tiny", task=name, seq_len=32)
    spec = DataSpec(data="synthetic:uniform", seq_len=32, micro_batch_size=4)
    batch = next(iter(Feed(task.batches(spec), False, BertbenchImplementation().adapter(trial))))
    assert batch.mask is not None and batch.layout is not None
    with without_values(), AWAY:
        model = task.build_model(model_config(trial), Observer())
    apply(model, step)
    return task, model, batch


@pytest.mark.parametrize(
    ("precision", "step", "by_kernels"),
    [
        ("fp32", PLAIN, False),
        ("bf16", PLAIN, False),
        ("fp32", FAST, True),
        ("fp32", FAST, False),
        ("bf16", FAST, False),
    ],
)
@TASKS
def test_forward_and_backward_stay_on_one_device(
    name: str, options: str, precision: str, step: str, by_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_kernels:  # kernels are not launched for tensors without values
        need_triton()
        monkeypatch.setattr(kernels, "DEVICES", {AWAY.type})
    task, model, batch = made(name, options, step)
    with without_values():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = task.loss(model, batch.to(AWAY))
        loss.backward()
    assert loss.device == AWAY and loss.dtype == torch.float32
    used = [parameter for parameter in model.parameters() if parameter.grad is not None]
    assert len(used) > 30 and all(parameter.grad is not None and parameter.grad.device == AWAY for parameter in used)


@TASKS
def test_an_evaluation_waits_for_its_results_alone(name: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "inference_mode", lambda *mode: torch.no_grad())  # fake tensors cannot be made in it
    _, model, batch = made(name, options)
    model.eval()
    seen: list[Batch] = []

    def forward(given: Batch) -> object:
        seen.append(given)
        with without_values():
            return model(given)

    rows = np.arange(4)
    apart = [(rows, replace(batch, layout=None))]
    monkeypatch.setattr(evaluation, "evaluation_rows", lambda *request: apart)
    ready = Ready(forward, AWAY, Precision("fp32", "cpu"), 4)  # type: ignore[arg-type]
    ((numbers, output),) = outputs(ready, ())  # type: ignore[arg-type]
    assert numbers is rows and output is not None
    layout = seen[0].layout
    assert layout is not None and batch.layout is not None
    assert layout.ends.device == AWAY and layout.lengths == batch.layout.lengths


def test_a_step_without_the_layout_of_a_loader_would_wait() -> None:
    task, model, batch = made("pretrain", "")
    with pytest.raises(DataDependentOutputException), without_values():
        task.loss(model, replace(batch, layout=None).to(AWAY))


def test_lamb_leaves_nothing_on_the_host() -> None:
    with without_values():
        layer = torch.nn.Linear(8, 8, device=AWAY)
        optimizer = Lamb([{"params": list(layer.parameters())}], lr=0.1, max_grad_norm=1.0)
        for _ in range(2):
            layer(torch.ones(2, 8, device=AWAY)).sum().backward()
            optimizer.step()
    assert all(value.device == AWAY for state in optimizer.state.values() for value in state.values())
