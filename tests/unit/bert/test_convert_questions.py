"""Checkpoints of question answering: ours, Hugging Face's and TensorFlow's, with logits equal in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_folders import (
    IDS,
    MASK,
    PIECES,
    SHAPE,
    assert_equal_outputs,
    loaded,
    saved_by_tensorflow,
    theirs,
)
from torch import Tensor

from bert.checkpoints.conversion import convert
from bert.checkpoints.files import load_model, save_model
from bert.checkpoints.read import find_checkpoint
from bert.data.batch import Batch, BatchCounts
from bert.model.heads import BertForQuestionAnswering
from bert.train.resume import load_weights

REAL = MASK.bool()
POOLER = {"bert/pooler/dense/bias": torch.ones(16), "bert/pooler/dense/kernel": torch.ones(16, 16)}


def ours(segments: int = 2) -> BertForQuestionAnswering:
    torch.manual_seed(0)
    model = BertForQuestionAnswering(SHAPE.replace(type_vocab_size=segments)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return model


@torch.no_grad()
def results(model: BertForQuestionAnswering) -> list[Tensor]:
    """Hidden states and logits of real tokens."""
    zeros = torch.zeros(len(IDS), dtype=torch.long)
    tensors = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": torch.zeros_like(IDS)}
    found = model(
        Batch(tensors | {"start_positions": zeros, "end_positions": zeros}, BatchCounts(2, 10, IDS.numel(), 0, 0))
    )
    return [model.encoder(IDS, MASK).hidden[REAL], found.start_logits[REAL], found.end_logits[REAL]]


@torch.no_grad()
def their_results(model: Any) -> list[Tensor]:
    found = model(input_ids=IDS, attention_mask=MASK, output_hidden_states=True)
    return [found.hidden_states[-1][REAL], found.start_logits[REAL], found.end_logits[REAL]]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "segments"), [("BertForQuestionAnswering", 2), ("DistilBertForQuestionAnswering", 0)])
def test_a_model_of_ours_answers_alike_in_transformers_and_comes_back_bit_by_bit(
    tmp_path: Path, kind: str, segments: int
) -> None:
    model = ours(segments)
    save_model(tmp_path / "ours", model)
    (tmp_path / "ours" / "vocab.txt").write_text("\n".join(PIECES))
    done = convert(tmp_path / "ours", tmp_path / "hf")
    assert (done.architecture, done.missing, done.unexpected, done.notes) == (kind, (), (), ())
    assert done.converted == done.tensors_read == len(model.state_dict())
    written = loaded(tmp_path / "hf")
    assert type(written).__name__ == kind
    assert_close(their_results(written), results(model))
    done = convert(tmp_path / "hf", tmp_path / "back", target="bertbench")
    assert (done.architecture, done.missing, done.unexpected) == (kind, (), ())
    back = BertForQuestionAnswering(model.config)
    load_weights(find_checkpoint(tmp_path / "back"), back, back.config, True)
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in model.state_dict().items())
    convert(tmp_path / "ours", tmp_path / "copy", target="bertbench")
    assert load_model(tmp_path / "copy")[1].keys() == model.state_dict().keys()


@pytest.mark.parametrize("target", ["hugging-face", "bertbench"])
def test_a_tensorflow_checkpoint_of_run_squad_keeps_its_head_and_loses_its_pooler(tmp_path: Path, target: Any) -> None:
    source = theirs("BertForQuestionAnswering")
    slots = {"cls/squad/output_weights/adam_m": torch.zeros(2, 16), "global_step": torch.tensor(3)}
    prefix = saved_by_tensorflow(tmp_path / "tf" / "model.ckpt-10", source, POOLER | slots)
    done = convert(prefix, tmp_path / "dst", target=target)
    assert (done.architecture, done.missing, done.unexpected) == ("BertForQuestionAnswering", (), tuple(sorted(POOLER)))
    assert done.skipped == tuple(sorted(slots)) and done.converted == done.tensors_read - 2
    if target == "bertbench":
        convert(tmp_path / "dst", tmp_path / "back")
    written = loaded(tmp_path / ("dst" if target == "hugging-face" else "back"))
    assert all(torch.equal(written.state_dict()[name], value) for name, value in source.state_dict().items())
    assert_equal_outputs(written, source)
