"""Compiled and replayed layers on a CUDA device have the losses of plain ones, evaluation between steps included."""

import pytest
import torch
from support.layouts import batch_of, model

from bert.optim.registry import adamw
from bert.speed.registry import resolve_levers, use_levers

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def losses(levers: str) -> list[float]:
    """Losses of six steps, each followed by an evaluation of two batches."""
    torch._dynamo.reset()
    made = model(None)
    use_levers(made, resolve_levers(levers, DEVICE.type))
    made.to(DEVICE)
    optimizer = adamw(made, 1e-3)
    found = []
    for _ in range(6):
        made.train()
        loss = made(batch_of([16, 3, 9, 1], 20).to(DEVICE)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made.eval()
        with torch.inference_mode():
            others = [made(batch_of([16, 3, 9, 1], 20, seed=seed).to(DEVICE)).loss for seed in (1, 2)]
            found += [float(one) for one in (loss, *others)]
    return found


@pytest.mark.parametrize("levers", ["compile", "pack+compile", "cuda-graphs", "pack+cuda-graphs"])
def test_training_with_evaluation_between_steps_has_the_losses_of_plain_layers(levers: str) -> None:
    plain = losses("pack" if "pack" in levers else "none")
    assert losses(levers) == pytest.approx(plain, rel=2e-3)
    assert plain[-2] != plain[1], "the evaluations see the training"
