"""The question-answering model: its losses and gradients against transformers', its names, its FLOPs."""

import math
from typing import Any

import pytest
import torch
from support.checkpoints import theirs
from torch import Tensor

from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.model.heads import BertForQuestionAnswering, span_losses

VOCAB = 21
SHAPE = ModelConfig(
    num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=VOCAB, max_positions=8,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


def windows(lengths: list[int], starts: list[int], ends: list[int], columns: int = 8) -> Batch:
    torch.manual_seed(1)
    real = torch.arange(columns) < torch.tensor(lengths)[:, None]
    tensors = {
        "input_ids": torch.randint(5, VOCAB, real.shape) * real,
        "attention_mask": real.long(),
        "token_type_ids": (real & (torch.arange(columns) > 2)).long(),
        "start_positions": torch.tensor(starts),
        "end_positions": torch.tensor(ends),
    }
    counts = BatchCounts(len(lengths), sum(lengths), real.numel(), 0, sum(n * n for n in lengths))
    return Batch(tensors, counts)


def pair(kind: str = "BertForQuestionAnswering", config: ModelConfig = SHAPE) -> tuple[BertForQuestionAnswering, Any]:
    """Ours and theirs with the same weights."""
    other = theirs(kind)
    model = BertForQuestionAnswering(config)
    report = load_hugging_face_state(model, other.state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    return model, other


def call(model: Any, batch: Batch, **changes: Tensor) -> Any:
    segments = {} if "Distil" in type(model).__name__ else {"token_type_ids": batch.tensors["token_type_ids"]}
    names = ("input_ids", "attention_mask", "start_positions", "end_positions")
    return model(**{name: batch.tensors[name] for name in names} | segments | changes)


def gradients(model: BertForQuestionAnswering) -> dict[str, Tensor]:
    """Gradients under transformers' names."""
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    return to_hugging_face_state(model)


@pytest.mark.parametrize(("kind", "segments"), [("BertForQuestionAnswering", 2), ("DistilBertForQuestionAnswering", 0)])
@pytest.mark.parametrize(
    ("lengths", "starts", "ends"), [([8, 8, 8], [3, 0, 7], [4, 0, 7]), ([8, 5, 6], [3, 0, 4], [4, 0, 5])]
)
def test_losses_logits_and_gradients_are_those_of_transformers_over_the_real_tokens(
    kind: str, segments: int, lengths: list[int], starts: list[int], ends: list[int]
) -> None:
    model, other = pair(kind, SHAPE.replace(type_vocab_size=segments))
    batch = windows(lengths, starts, ends)
    mine, their = model(batch), call(other, batch)
    real = batch.tensors["attention_mask"].bool()
    expected = []
    for name, logits, own in (
        ("start", their.start_logits, mine.start_logits), ("end", their.end_logits, mine.end_logits)
    ):  # fmt: skip
        torch.testing.assert_close(own[real], logits[real], atol=1e-6, rtol=0)
        assert (own[~real] == -math.inf).all()
        targets = batch.tensors[f"{name}_positions"]
        rows = zip(logits, targets, real, strict=True)
        expected.append(torch.stack([-row[keep].log_softmax(0)[target] for row, target, keep in rows]).mean())
    loss = their.loss if real.all() else (expected[0] + expected[1]) / 2
    torch.testing.assert_close(mine.loss, loss, atol=1e-6, rtol=0)
    assert [mine.start_loss.item(), mine.end_loss.item()] == pytest.approx([each.item() for each in expected], abs=1e-6)
    mine.loss.backward()
    loss.backward()
    found = gradients(model)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=0, msg=name)
    assert max(gradient.abs().max() for gradient in found.values()) > 1e-3


@pytest.mark.parametrize("far", [8, 9, 511])
def test_a_target_beyond_the_window_is_left_out_as_in_transformers(far: int) -> None:
    model, other = pair()
    batch = windows([8, 8, 8], [3, far, -1], [4, 5, far])
    mine, their = model(batch), call(other, batch)
    torch.testing.assert_close(mine.loss, their.loss, atol=1e-6, rtol=0)
    mine.loss.backward()
    their.loss.backward()
    torch.testing.assert_close(model.answer_span.output.weight.grad, other.qa_outputs.weight.grad, atol=1e-6, rtol=0)


def test_windows_without_a_target_have_the_loss_0_and_no_gradients() -> None:
    model, _ = pair()
    loss = model(windows([8, 5], [8, 9], [9, 5])).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_float32(dtype: torch.dtype) -> None:
    model, _ = pair()
    batch = windows([8, 8], [3, 0], [4, 0])
    with torch.autocast("cpu", dtype):
        output = model(batch)
    assert output.loss.dtype == output.start_logits.dtype == torch.float32
    logits = torch.stack([output.start_logits, output.end_logits], 1).double()
    targets = torch.tensor([[3, 4], [0, 0]])
    assert output.loss.item() == pytest.approx(span_losses(logits, targets).mean().item(), rel=1e-6)
