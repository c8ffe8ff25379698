"""The model that GAP is trained with: an encoder and one of the heads in bert.tasks.gap.heads."""

from torch import Tensor, nn

from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import phase
from bert.model.models import BertForLabels
from bert.tasks.gap.examples import LABELS
from bert.tasks.gap.heads import HEADS, MentionHead
from bert.train.observer import Observer
from common.registry import lookup


class BertForMentions(BertForLabels):
    """Encoder and a head that decides which of two names a pronoun means.

    Args:
        config: shape and dropout.
        head: a name in HEADS; its weights are called so, too.
        observer: sees the encoder's phases and "mention_head".

    Raises:
        UsageError: no such head.
    """

    def __init__(self, config: ModelConfig, head: str, observer: Observer | None = None) -> None:
        made = lookup(HEADS, head, "head")
        super().__init__(config, len(LABELS), observer, pooler=made.uses_pooler)
        self.mention_head = nn.ModuleDict({head: made(config)})

    def logits(self, batch: Batch) -> Tensor:
        """Return logits [B, 3] of neither, A and B."""
        (head,) = self.mention_head.values()
        assert isinstance(head, MentionHead)
        encoded = self.encode(batch, head.types(batch.tensors))
        with phase(self.observer, "mention_head"):
            logits: Tensor = head(encoded, batch.tensors)
        return logits
