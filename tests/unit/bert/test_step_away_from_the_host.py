"""A training step on a device that is not the host: no tensor of it may be left behind.

PyTorch's fake tensors keep shapes and devices without values, and refuse operators whose tensors lie on two devices, as
a GPU does; "meta" stands for the GPU here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.kernels import need_triton
from torch._subclasses.fake_tensor import FakeTensorMode

from bert.model.config import model_config
from bert.optim.lamb import Lamb
from bert.speed import kernels
from bert.speed.registry import NONE, resolve_levers, use_levers
from bert.tasks import make_task
from bert.tasks.base import DataSpec
from bert.train.observer import Observer
from records.trial import Trial

AWAY = torch.device("meta")
GLUE = '{"task": "rte"}'


@contextmanager
def without_values() -> Iterator[None]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.allow_meta = True
    with mode:
        yield


@pytest.mark.parametrize(("precision", "levers"), [("fp32", NONE), ("bf16", NONE), ("fp32", "fused-elementwise")])
@pytest.mark.parametrize(
    ("name", "options"), [("pretrain", ""), ("squad", ""), ("gap", ""), ("classify", ""), ("glue", GLUE)]
)
def test_forward_and_backward_stay_on_one_device(
    name: str, options: str, precision: str, levers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if levers == "fused-elementwise":  # kernels are not launched for tensors without values
        need_triton()
        monkeypatch.setattr(kernels, "DEVICES", {AWAY.type})
    task = make_task(name, options)
    trial = Trial(preset="tiny", task=name, seq_len=32, micro_batch_size=4)
    spec = DataSpec(data="synthetic", seq_len=32, micro_batch_size=4)
    batch = next(iter(task.batches(spec)))
    with without_values():
        with AWAY:
            model = task.build_model(model_config(trial), Observer())
        use_levers(model, resolve_levers(levers, "cuda"))  # unpad reads lengths, which fake tensors have not
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = task.loss(model, batch.to(AWAY))
        loss.backward()
    assert loss.device == AWAY and loss.dtype == torch.float32
    used = [parameter for parameter in model.parameters() if parameter.grad is not None]
    assert len(used) > 30 and all(parameter.grad is not None and parameter.grad.device == AWAY for parameter in used)


def test_lamb_leaves_nothing_on_the_host() -> None:
    with without_values():
        layer = torch.nn.Linear(8, 8, device=AWAY)
        optimizer = Lamb([{"params": list(layer.parameters())}], lr=0.1, max_grad_norm=1.0)
        for _ in range(2):
            layer(torch.ones(2, 8, device=AWAY)).sum().backward()
            optimizer.step()
    assert all(value.device == AWAY for state in optimizer.state.values() for value in state.values())


def test_a_tensor_left_on_the_host_would_be_seen() -> None:
    with pytest.raises(RuntimeError, match="same device"), without_values():
        torch.ones(2, 2, device=AWAY) @ torch.ones(2, 2)
