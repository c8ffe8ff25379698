"""Pretraining heads: masked words and next sentence (Devlin et al. 2018, section 3.1).

Shapes: B sequences, S tokens, H hidden width, M predicted positions of the whole batch, V padded vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.config import ModelConfig

# Bias of the vocabulary's padding rows. Against it exp() is exactly 0 in float32, so these rows take no probability and
# get no gradient, which is why it never changes; and float16 can hold it.
PADDING_BIAS = -1e4


@dataclass(frozen=True, slots=True)
class PretrainingOutput:
    """Losses of one micro-batch, float32 scalars on the device."""

    loss: Tensor
    """mlm_loss + nsp_loss, what is trained on."""
    mlm_loss: Tensor
    """Mean cross-entropy over the predicted positions in nats; 0 when there is none."""
    nsp_loss: Tensor
    """Mean cross-entropy of the next-sentence labels in nats."""


class MaskedWordHead(nn.Module):
    """Transform and decoder of the masked-word predictions; the decoder is the word embedding, given with each call."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.padded_vocab_size))
        self.reset_padding()

    @torch.no_grad()
    def reset_padding(self) -> None:
        """Take the padding rows out of every prediction; needed after anything that rewrites `bias`."""
        self.bias[self.vocab_size :] = PADDING_BIAS

    def forward(self, hidden: Tensor, word_embedding: Tensor) -> Tensor:
        """Return logits [M, V] of hidden states [M, H] and the embedding [V, H]; those of padding rows never win."""
        transformed = self.norm(F.gelu(self.dense(hidden)))
        return F.linear(transformed, word_embedding, self.bias)


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return the rows [M, H] of hidden states [B, S, H] at flat positions [M], row x S + column."""
    return hidden.flatten(0, 1).index_select(0, positions)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits [M, V] and labels [M], computed in float32; 0, with gradients, for M = 0."""
    total = F.cross_entropy(logits.float(), labels, reduction="sum")
    return total / max(labels.numel(), 1)
