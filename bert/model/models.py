"""The models that pretraining, question answering and classification train: the encoder with its heads
(Devlin et al. 2018).

Shapes: B sequences, S tokens, H hidden width.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder, EncoderOutput, initialize, phase
from bert.model.heads import (
    ClassificationOutput,
    MaskedWordHead,
    PretrainingOutput,
    SpanHead,
    SpanOutput,
    gather_positions,
    label_loss,
    mean_cross_entropy,
    span_losses,
)
from bert.speed.dropout import dropout
from bert.train.observer import Observer
from common.errors import UsageError


class BertForPretraining(nn.Module):
    """Encoder with the masked-word and next-sentence heads."""

    def __init__(self, config: ModelConfig, observer: Observer | None = None) -> None:
        super().__init__()
        self.config = config
        self.observer = observer or Observer()
        self.encoder = BertEncoder(config, self.observer)
        self.masked_words = MaskedWordHead(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        for head in (self.masked_words.dense, self.next_sentence):
            initialize(head, config)

    def forward(self, batch: Batch) -> PretrainingOutput:
        """Return the losses of a pretraining batch (bert.data.batch.Batch names its tensors)."""
        tensors = batch.tensors
        encoded = self.encoder(tensors["input_ids"], batch.mask, tensors["token_type_ids"])
        with phase(self.observer, "masked_words"):
            predicted = gather_positions(encoded.hidden, tensors["masked_positions"])
            word_logits = self.masked_words(predicted, self.encoder.embeddings.word.weight)
            mlm_loss = mean_cross_entropy(word_logits, tensors["masked_labels"])
        with phase(self.observer, "next_sentence"):
            sentence_logits = self.next_sentence(encoded.pooled)
            nsp_loss = mean_cross_entropy(sentence_logits, tensors["next_sentence_labels"])
        return PretrainingOutput(mlm_loss + nsp_loss, mlm_loss, nsp_loss)


class BertForQuestionAnswering(nn.Module):
    """Encoder without pooler, and the span head."""

    def __init__(self, config: ModelConfig, observer: Observer | None = None) -> None:
        super().__init__()
        self.config = config
        self.observer = observer or Observer()
        self.encoder = BertEncoder(config, self.observer, pooler=False)
        self.answer_span = SpanHead(config)
        initialize(self.answer_span, config)

    def forward(self, batch: Batch) -> SpanOutput:
        """Return losses and logits of a batch of windows (bert.data.batch.Batch names its tensors).

        Only windows whose targets are positions of real tokens count for the losses, and only real tokens compete.
        """
        tensors = batch.tensors
        mask = batch.mask
        hidden = self.encoder(tensors["input_ids"], mask, tensors["token_type_ids"]).hidden
        with phase(self.observer, "answer_span"):
            logits = self.answer_span(hidden, mask)
            targets = torch.stack([tensors["start_positions"], tensors["end_positions"]], dim=1)
            start_loss, end_loss = span_losses(logits, targets, None if mask is None else mask.sum(1)).unbind()
            start_logits, end_logits = logits.unbind(1)
        return SpanOutput((start_loss + end_loss) / 2, start_loss, end_loss, start_logits, end_logits)


class BertForLabels(nn.Module, ABC):
    """Encoder with any head that gives each sequence K logits; a head is a subclass with `logits`.

    Args:
        config: shape and dropout.
        labels: K, classes that there are; 1 for a regression.
        observer: sees the encoder's phases, and those of the head.
        regression: whether labels are values, and the loss their mean squared error.
        pooler: whether the encoder has one.

    Raises:
        UsageError: a number of labels that cannot be.
    """

    def __init__(
        self,
        config: ModelConfig,
        labels: int,
        observer: Observer | None = None,
        *,
        regression: bool = False,
        pooler: bool = True,
    ) -> None:
        super().__init__()
        if labels < 1 or (regression and labels != 1):
            raise UsageError(
                "option-value",
                f"labels={labels}: {'a regression has exactly 1' if regression else 'at least 1 is needed'}",
            )
        self.config = config
        self.labels = labels
        self.regression = regression
        self.observer = observer or Observer()
        self.encoder = BertEncoder(config, self.observer, pooler=pooler)

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """Return logits [B, K] of a batch of rows."""

    def encode(self, batch: Batch, types: tuple[Tensor, Tensor] | None = None) -> EncoderOutput:
        """Return what the encoder makes of a batch; `types` [B, S], embedded from 1 on by [T, H], replace segments."""
        tensors = batch.tensors
        segments, further = (tensors["token_type_ids"], None) if types is None else types
        output: EncoderOutput = self.encoder(tensors["input_ids"], batch.mask, segments, further)
        return output

    def forward(self, batch: Batch) -> ClassificationOutput:
        """Return the loss and the logits of a batch of rows (bert.data.batch.Batch names its tensors)."""
        logits = self.logits(batch).float()
        labels = batch.tensors.get("labels")
        return ClassificationOutput(None if labels is None else label_loss(logits, labels, self.regression), logits)


class BertForSequenceClassification(BertForLabels):
    """Pooled first token, dropout and one linear layer (Devlin et al. 2018, section 4.1).

    DistilBERT's shape has BERT's pooler here too, with tanh; Hugging Face's has a layer with ReLU in its place.
    """

    def __init__(
        self, config: ModelConfig, labels: int, observer: Observer | None = None, *, regression: bool = False
    ) -> None:
        super().__init__(config, labels, observer, regression=regression)
        self.classifier = nn.Linear(config.hidden_size, labels)
        initialize(self.classifier, config)

    def logits(self, batch: Batch) -> Tensor:
        """Return logits [B, K] of a batch of rows."""
        pooled = self.encode(batch).pooled
        assert pooled is not None
        with phase(self.observer, "classifier"):
            result: Tensor = self.classifier(dropout(pooled, self.config.hidden_dropout, self.training))
        return result
