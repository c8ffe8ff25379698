"""The FLOP formula against PyTorch's own count of the operations."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig, preset
from bert.model.flops import model_flops
from bert.model.models import BertForPretraining


def full_batch(size, seq_len, predictions, vocab_size):
    tensors = {
        "input_ids": torch.randint(1, vocab_size, (size, seq_len)),
        "attention_mask": torch.ones(size, seq_len, dtype=torch.long),
        "token_type_ids": torch.zeros(size, seq_len, dtype=torch.long),
        "masked_positions": torch.randperm(size * seq_len)[: size * predictions],
        "masked_labels": torch.randint(0, vocab_size, (size * predictions,)),
        "next_sentence_labels": torch.zeros(size, dtype=torch.long),
    }
    tokens = size * seq_len
    return Batch(tensors, BatchCounts(size, tokens, tokens, size * predictions, size * seq_len**2))


@pytest.mark.parametrize(
    ("config", "size", "seq_len", "predictions"),
    [
        (preset("tiny"), 2, 128, 19),
        (preset("mini"), 1, 64, 10),
        (
            ModelConfig(
                num_layers=3, hidden_size=48, num_heads=2, intermediate_size=100, vocab_size=999, vocab_multiple=1
            ),
            3,
            200,
            1,
        ),
    ],
)
def test_formula_is_what_pytorch_counts_on_a_full_batch(config, size, seq_len, predictions):
    config = config.replace(hidden_dropout=0.0, attention_dropout=0.0)
    model = BertForPretraining(config)
    batch = full_batch(size, seq_len, predictions, config.vocab_size)
    # The math backend makes every product where the counter sees it, and none twice, as the backward of flash does.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch).loss.backward()
    counted = counter.get_total_flops()
    # What is computed beyond the model: the decoder's padding rows, 6 x hidden for each row and prediction.
    padding = 6 * (config.padded_vocab_size - config.vocab_size) * config.hidden_size * size * predictions
    assert model_flops(config, batch.counts) == counted - padding
    assert model_flops(config, batch.counts) == pytest.approx(counted, rel=0.005)


def test_base_costs_what_its_published_shape_says():
    base = preset("base")
    token = model_flops(base, BatchCounts(0, 1, 1, 0, 0))
    assert token == 6 * 12 * (4 * 768**2 + 2 * 768 * 3072) == 6 * 84_934_656
    assert model_flops(base, BatchCounts(0, 0, 0, 1, 0)) == 6 * (768**2 + 768 * 30522)
    assert model_flops(base, BatchCounts(0, 0, 0, 0, 128**2)) == 12 * 12 * 768 * 128**2
    assert model_flops(base, BatchCounts(1, 0, 0, 0, 0)) == 6 * (768**2 + 2 * 768)


def test_batches_add_up_and_padding_is_free():
    config = preset("mini")
    first, second = BatchCounts(2, 150, 256, 20, 12_000), BatchCounts(3, 300, 384, 45, 33_000)
    assert model_flops(config, first + second) == model_flops(config, first) + model_flops(config, second)
    padded = BatchCounts(2, 150, 1024, 20, 12_000)
    assert model_flops(config, padded) == model_flops(config, first)
