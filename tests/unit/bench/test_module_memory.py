"""Memory of a module's step from fake tensors, against what PyTorch's profiler sees of a real step."""

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bench.implementations.module_memory import step_bytes

SHAPE = {
    "vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "pad_token_id": 0,
}  # fmt: skip
OF_MODERNBERT = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


def model_of(kind: str, checkpointing: bool) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForMaskedLM

    config = CONFIG_MAPPING[kind](**SHAPE, **(OF_MODERNBERT if kind == "modernbert" else {}))
    model = AutoModelForMaskedLM.from_config(config)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def inputs() -> dict[str, torch.Tensor]:
    shape = (3, 48)
    ids, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[0, 20:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def real_peak(model: Any, dtype: torch.dtype | None, micro_batches: int) -> int:
    given = inputs()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(micro_batches):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = model(**given).loss
            loss.backward()
            del loss
    assert profiler.profiler is not None
    now = most = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("kind", "dtype", "checkpointing", "micro_batches"),
    [
        ("bert", None, False, 1),
        ("bert", torch.bfloat16, False, 2),
        ("bert", None, True, 1),
        ("modernbert", torch.bfloat16, False, 1),
    ],
)
def test_the_peak_is_that_of_a_real_step(
    kind: str, dtype: torch.dtype | None, checkpointing: bool, micro_batches: int
) -> None:
    real = model_of(kind, checkpointing)
    with torch.device("meta"):
        model = model_of(kind, checkpointing)
    weights, most = step_bytes(model, inputs, dtype, micro_batches)
    assert weights == sum(parameter.numel() * 4 for parameter in real.parameters())
    # Small tensors that a kernel allocates for itself are not seen.
    assert most == pytest.approx(real_peak(real, dtype, micro_batches), rel=0.01)
