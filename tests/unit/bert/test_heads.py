"""The pretraining heads: padding rows, precision, empty batches."""

import pytest
import torch
import torch.nn.functional as F

from bert.model.config import ModelConfig
from bert.model.heads import MaskedWordHead, mean_cross_entropy

VOCAB = 21
CONFIG = ModelConfig(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=8, vocab_size=VOCAB)


def head_and_embedding():
    torch.manual_seed(0)
    embedding = torch.randn(CONFIG.padded_vocab_size, 16)
    embedding[VOCAB:] = 0
    return MaskedWordHead(CONFIG), embedding.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_rows_take_no_probability_and_get_no_gradient(dtype):
    head, embedding = head_and_embedding()
    hidden, labels = torch.randn(9, 16), torch.randint(0, VOCAB, (9,))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = head(hidden, embedding)
        loss = mean_cross_entropy(logits, labels)
    assert logits.shape == (9, 24) and logits.dtype == dtype
    assert (logits.float().softmax(-1)[:, VOCAB:] == 0).all()
    (65536.0 * loss).backward()  # as a GradScaler would
    assert (embedding.grad[VOCAB:] == 0).all() and (head.bias.grad[VOCAB:] == 0).all()
    assert embedding.grad[:VOCAB].abs().max() > 0 and embedding.grad.isfinite().all()
    unpadded = F.cross_entropy(logits.detach()[:, :VOCAB].double(), labels)
    assert loss.item() == pytest.approx(unpadded.item(), rel=1e-6)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cross_entropy_is_computed_in_float32(dtype, autocast):
    torch.manual_seed(0)
    logits, labels = (4 * torch.randn(50, 1000)).to(dtype), torch.randint(0, 1000, (50,))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = mean_cross_entropy(logits, labels)
    expected = -logits.double().log_softmax(-1)[torch.arange(50), labels].mean()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
