"""Models of pronoun resolution: the encoder and one of four heads on the pronoun and two names."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import EncoderOutput, initialize, phase
from bert.model.heads import BertForLabels
from bert.observer import Observer
from bert.tasks.gap.features import MENTION_ENDS, MENTION_STARTS, MENTIONS
from bert.tasks.gap.reading import LABELS
from common.registry import lookup


class BertForMentions(BertForLabels):
    """Encoder and a head that decides which of two names a pronoun means: `head` is a name in HEADS, its weights are
    called so, too; `observer` sees the encoder's phases and "mention_head"."""

    def __init__(self, config: ModelConfig, head: str, observer: Observer | None = None) -> None:
        made = lookup(HEADS, head, "head")
        super().__init__(config, len(LABELS), observer, pooler=made.uses_pooler)
        self.mention_head = nn.ModuleDict({head: made(config)})
        initialize(self.mention_head, config)

    def logits(self, batch: Batch) -> Tensor:
        """Return logits [B, 3] of neither, A and B."""
        (head,) = self.mention_head.values()
        assert isinstance(head, MentionHead)
        encoded = self.encode(batch, head.types(batch.tensors))
        with phase(self.observer, "mention_head"):
            logits: Tensor = head(encoded, batch.tensors)
        return logits


class MentionHead(nn.Module, ABC):
    """Base of the heads."""

    uses_pooler = False
    """Whether it looks at the pooled first token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.drop = nn.Dropout(config.hidden_dropout)

    @abstractmethod
    def forward(self, encoded: EncoderOutput, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return logits [B, 3] of what the encoder made of a batch with these tensors (bert.tasks.gap.features)."""

    def types(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return the type of each token [B, S], and the embeddings [T, H] of types from 1 on; None for the usual."""
        return None


class ConcatHead(MentionHead):
    """One linear layer on the concatenated first tokens of pronoun, A and B."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.output = nn.Linear(MENTIONS * config.hidden_size, len(LABELS))

    def forward(self, encoded: EncoderOutput, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return logits [B, 3]."""
        logits: Tensor = self.output(self.drop(first_tokens(encoded.hidden, tensors[MENTION_STARTS]).flatten(1)))
        return logits


class MulHead(MentionHead):
    """The pronoun's first token times those of A and B, and times a trained vector that stands for neither.

    logits = sum over H of P x {n, A, B}, divided by sqrt(H), as attention is (Vaswani et al. 2017, section 3.2.1).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.neither = nn.Parameter(torch.empty(config.hidden_size).normal_(std=config.initializer_range))

    def forward(self, encoded: EncoderOutput, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return logits [B, 3]."""
        # In float32: no layer keeps the sums of H terms small, and half precision has steps of 1/8 at 20.
        mentions = first_tokens(encoded.hidden, tensors[MENTION_STARTS]).float()
        pronoun, names = mentions[:, 0], mentions[:, 1:]
        candidates = torch.cat([self.neither.float().expand_as(names[:, :1]), names], dim=1)
        return (pronoun[:, None] * candidates).sum(-1) / math.sqrt(pronoun.shape[-1])


class SegmentHead(MentionHead):
    """The pooled first token, after the mentions were marked in the encoder's input by a token type of their own.

    Types 1, 2, 3 mark the first token of pronoun, A and B, type 0 all others. Row 0 of their four embeddings
    is the encoder's own; the three others are trained from scratch.
    """

    uses_pooler = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.marks = nn.Embedding(MENTIONS, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, len(LABELS))

    def types(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the type of each token [B, S], and the embeddings [3, H] of types 1, 2, 3."""
        found = torch.zeros_like(tensors["input_ids"])
        rows = torch.arange(len(found), device=found.device)
        # One after the other: which of two in one place wins must not depend on the device.
        for mention in range(MENTIONS):
            found[rows, tensors[MENTION_STARTS][:, mention]] = mention + 1
        return found, self.marks.weight

    def forward(self, encoded: EncoderOutput, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return logits [B, 3]."""
        assert encoded.pooled is not None
        logits: Tensor = self.output(self.drop(encoded.pooled))
        return logits


class SpanHead(MentionHead):
    """The mean of all tokens of each mention; one small network scores either name with the pronoun.

    Both names are scored alike, from [P; X; P x X], and neither has the score 0, as in Lee et al. 2017 (arXiv
    1707.07045), section 4: swapping the names swaps their logits.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.inner = nn.Linear(3 * config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, encoded: EncoderOutput, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return logits [B, 3]."""
        mentions = mean_tokens(encoded.hidden, tensors[MENTION_STARTS], tensors[MENTION_ENDS])
        pronoun, names = mentions[:, :1].expand_as(mentions[:, 1:]), mentions[:, 1:]
        pairs = self.drop(torch.cat([pronoun, names, pronoun * names], dim=-1))
        scores: Tensor = self.output(self.drop(F.gelu(self.inner(pairs)))).squeeze(-1)
        return torch.cat([torch.zeros_like(scores[:, :1]), scores], dim=1)


HEADS: dict[str, type[MentionHead]] = {"concat": ConcatHead, "mul": MulHead, "segment": SegmentHead, "span": SpanHead}


def first_tokens(hidden: Tensor, starts: Tensor) -> Tensor:
    """Return the rows [B, 3, H] of hidden states [B, S, H] at columns [B, 3]."""
    return hidden.gather(1, starts[:, :, None].expand(-1, -1, hidden.shape[-1]))


def mean_tokens(hidden: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Return the mean [B, 3, H] of hidden states [B, S, H] from columns `starts` [B, 3] to before `ends` [B, 3]."""
    column = torch.arange(hidden.shape[1], device=hidden.device)
    inside = (column >= starts[:, :, None]) & (column < ends[:, :, None])
    weights = inside.to(hidden.dtype) / (ends - starts)[:, :, None].to(hidden.dtype)
    return weights @ hidden
