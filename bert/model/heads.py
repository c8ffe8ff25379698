"""Heads: masked words and next sentence (Devlin et al. 2018, section 3.1), labels (4.1), answer spans (4.2).

Shapes: B sequences, S tokens, H hidden width, M predicted positions of the whole batch, V padded vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.model.config import ModelConfig
from bert.speed.copies import Linear, linear

# Bias of the vocabulary's padding rows. Against it exp() is exactly 0 in float32, so these rows take no probability and
# get no gradient, which is why it never changes; and float16 can hold it.
PADDING_BIAS = -1e4

_NO_TARGET = -100


# Without slots: DeepSpeed's ZeRO stage 3 looks at vars() of what modules return.
@dataclass(frozen=True)
class PretrainingOutput:
    """Losses of one micro-batch, float32 scalars on the device."""

    loss: Tensor
    """mlm_loss + nsp_loss, what is trained on."""
    mlm_loss: Tensor
    """Mean cross-entropy over the predicted positions in nats; 0 when there is none."""
    nsp_loss: Tensor
    """Mean cross-entropy of the next-sentence labels in nats."""


@dataclass(frozen=True)
class SpanOutput:
    """What a model makes of questions and the windows their answers are looked for in."""

    loss: Tensor
    """Mean of start_loss and end_loss, a float32 scalar: what is trained on."""
    start_loss: Tensor
    """Mean cross-entropy of the answers' first tokens in nats; 0 when no window of the batch has a target."""
    end_loss: Tensor
    """Mean cross-entropy of the answers' last tokens in nats, likewise."""
    start_logits: Tensor
    """Of each token, that the answer begins there [B, S], float32; -inf at padding."""
    end_logits: Tensor
    """Of each token, that the answer ends there [B, S], float32; -inf at padding."""


@dataclass(frozen=True)
class ClassificationOutput:
    """What a model makes of whole sequences."""

    loss: Tensor | None
    """Mean loss of the batch, a float32 scalar: what is trained on; None where the batch has no labels."""
    logits: Tensor
    """Of each class [B, K], float32; with K = 1 in a regression the value itself."""


class MaskedWordHead(nn.Module):
    """Transform and decoder of the masked-word predictions; the decoder is the word embedding, given with each call."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        self.dense = Linear(config.hidden_size, config.hidden_size)
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
        return linear(transformed, word_embedding, self.bias)


def gather_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return the rows [M, H] of hidden states [B, S, H] at flat positions [M], row x S + column."""
    return hidden.flatten(0, 1).index_select(0, positions)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits [M, V] and labels [M], computed in float32; 0, with gradients, for M = 0."""
    total = F.cross_entropy(logits.float(), labels, reduction="sum")
    return total / max(labels.numel(), 1)


def label_loss(logits: Tensor, labels: Tensor, regression: bool) -> Tensor:
    """Mean cross-entropy in nats of logits [B, K] and classes [B]; of a regression the mean squared error of [B, 1] and
    values [B].

    Both are computed in float32.
    """
    if regression:
        return F.mse_loss(logits.float().squeeze(1), labels.float())
    return mean_cross_entropy(logits, labels)


class SpanHead(nn.Module):
    """Two scores for each token: that an answer begins there, and that it ends there (Devlin et al. 2018, 4.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return float32 logits [B, 2, S], starts then ends, of hidden states [B, S, H].

        Args:
            hidden: last hidden states [B, S, H].
            mask: [B, S], nonzero for real tokens, the others get -inf: no answer lies in padding, and so neither loss
                nor answer depends on how far a batch is padded. None where all are real.
        """
        logits: Tensor = self.output(hidden).float().transpose(1, 2)
        return logits if mask is None else logits.masked_fill(mask[:, None, :] == 0, -math.inf)


def span_losses(logits: Tensor, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Mean cross-entropy [2] in nats of starts and of ends, each over the windows that have such a target.

    A target behind the last token has no logit to be held against: it is left out, as in the published code. Negative
    targets stand for position 0. Where none is left the loss is 0, with gradients.

    Args:
        logits: float32 [B, 2, S].
        targets: positions of first and last token [B, 2].
        lengths: real tokens of each sequence [B], from position 0 on; None where all S are real.
    """
    ends = logits.shape[2] if lengths is None else lengths[:, None]
    targets = targets.clamp(min=0)
    used = targets < ends
    targets = targets.masked_fill(~used, _NO_TARGET)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET, reduction="none")
    return losses.view_as(targets).sum(0) / used.sum(0).clamp(min=1)
