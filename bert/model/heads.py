"""Heads and the models they make of the encoder: masked words and next sentence (Devlin et al. 2018, section 3.1),
labels (4.1), answer spans (4.2).

Shapes: B sequences, S tokens, H hidden width, M predicted positions of the whole batch, V padded vocabulary, K labels.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder, EncoderOutput, initialize, phase
from bert.observer import Observer

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
    """Mean cross-entropy over the predicted positions in nats, times the batch's weight; 0 when there is none."""
    nsp_loss: Tensor
    """Mean cross-entropy of the next-sentence labels in nats."""


@dataclass(frozen=True)
class SpanOutput:
    """Output of a model for windows of questions and contexts."""

    loss: Tensor
    """Mean of start_loss and end_loss, a float32 scalar: what is trained on."""
    start_loss: Tensor
    """Mean cross-entropy of the answers' first tokens in nats; 0 when no window of the batch has a target."""
    end_loss: Tensor
    """Mean cross-entropy of the answers' last tokens in nats; 0 when no window of the batch has a target."""
    start_logits: Tensor
    """Logit of each token as the start of the answer [B, S], float32; -inf at padding."""
    end_logits: Tensor
    """Logit of each token as the end of the answer [B, S], float32; -inf at padding."""


@dataclass(frozen=True)
class ClassificationOutput:
    """Output of a model for whole sequences."""

    loss: Tensor | None
    """Mean loss of the batch, a float32 scalar: what is trained on; None if the batch has no labels."""
    logits: Tensor
    """Of each class [B, K], float32; with K = 1 in a regression the value itself."""


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
        """Exclude the padding rows from every prediction; needed after anything that rewrites `bias`."""
        self.bias[self.vocab_size :] = PADDING_BIAS

    def forward(self, hidden: Tensor, word_embedding: Tensor) -> Tensor:
        """Return logits [M, V] of hidden states [M, H] and the embedding [V, H]; those of padding rows never win."""
        return self.decode(self.norm(F.gelu(self.dense(hidden))), word_embedding)

    def decode(self, transformed: Tensor, word_embedding: Tensor) -> Tensor:
        """Return logits [M, V] of transformed hidden states [M, H] and the embedding [V, H]."""
        return F.linear(transformed, word_embedding, self.bias)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits [M, V] and labels [M], as `mean_cross_entropy`."""
        return mean_cross_entropy(logits, labels)


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
            mask: [B, S], nonzero for real tokens, the others get -inf: no answer is in padding, and so neither loss
                nor answer depends on how far a batch is padded. None if all are real.
        """
        logits: Tensor = self.output(hidden).float().transpose(1, 2)
        return logits if mask is None else logits.masked_fill(mask[:, None, :] == 0, -math.inf)


def span_losses(logits: Tensor, targets: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Mean cross-entropy [2] in nats of starts and of ends, each over the windows that have such a target.

    A target after the last token has no logit and is ignored, as in the published code. Negative
    targets stand for position 0. Where none is left the loss is 0, with gradients.

    Args:
        logits: float32 [B, 2, S].
        targets: positions of first and last token [B, 2].
        lengths: real tokens of each sequence [B], from position 0 on; None if all S are real.
    """
    ends = logits.shape[2] if lengths is None else lengths[:, None]
    targets = targets.clamp(min=0)
    used = targets < ends
    targets = targets.masked_fill(~used, _NO_TARGET)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET, reduction="none")
    return losses.view_as(targets).sum(0) / used.sum(0).clamp(min=1)


class BertModel(nn.Module):
    """Encoder, with a pooler or without, and the heads of a subclass; `observer` sees the phases of both."""

    def __init__(self, config: ModelConfig, observer: Observer | None = None, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.observer = observer or Observer()
        self.encoder = BertEncoder(config, self.observer, pooler=pooler)

    def encode(self, batch: Batch, types: tuple[Tensor, Tensor] | None = None) -> EncoderOutput:
        """Return the encoder's output for a batch; `types` [B, S], embedded from 1 on by [T, H], replace segments."""
        tensors = batch.tensors
        segments, further = (tensors["token_type_ids"], None) if types is None else types
        output: EncoderOutput = self.encoder(
            tensors["input_ids"], batch.mask, segments, further, layout=batch.layout, key=batch.key
        )
        return output


class BertForPretraining(BertModel):
    """Encoder with the masked-word and next-sentence heads."""

    def __init__(self, config: ModelConfig, observer: Observer | None = None) -> None:
        super().__init__(config, observer)
        self.masked_words = MaskedWordHead(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        for head in (self.masked_words.dense, self.next_sentence):
            initialize(head, config)

    def forward(self, batch: Batch) -> PretrainingOutput:
        """Return the losses of a pretraining batch (bert.data.batch.Batch names its tensors)."""
        encoded = self.encode(batch)
        with phase(self.observer, "masked_words"):
            mlm_loss = self.masked_words.loss(self._word_logits(encoded, batch), batch.tensors["masked_labels"])
            mlm_loss = mlm_loss if batch.weight == 1.0 else mlm_loss * batch.weight
        with phase(self.observer, "next_sentence"):
            sentence_logits = self.next_sentence(encoded.pooled)
            nsp_loss = mean_cross_entropy(sentence_logits, batch.tensors["next_sentence_labels"])
        return PretrainingOutput(mlm_loss + nsp_loss, mlm_loss, nsp_loss)

    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits of the predicted positions [M, V] and of the next sentences [B, 2]."""
        encoded = self.encode(batch)
        return self._word_logits(encoded, batch), self.next_sentence(encoded.pooled)

    def _word_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        predicted = encoded.predicted(batch.tensors["masked_positions"])
        logits: Tensor = self.masked_words(predicted, self.encoder.embeddings.word.weight)
        return logits


class BertForQuestionAnswering(BertModel):
    """Encoder without pooler, and the span head."""

    def __init__(self, config: ModelConfig, observer: Observer | None = None) -> None:
        super().__init__(config, observer, pooler=False)
        self.answer_span = SpanHead(config)
        initialize(self.answer_span, config)

    def forward(self, batch: Batch) -> SpanOutput:
        """Return losses and logits of a batch of windows (bert.data.batch.Batch names its tensors).

        Only windows whose targets are positions of real tokens count for the losses, and only real tokens compete.
        """
        tensors, mask, hidden = batch.tensors, batch.mask, self.encode(batch).hidden
        with phase(self.observer, "answer_span"):
            logits = self.answer_span(hidden, mask)
            targets = torch.stack([tensors["start_positions"], tensors["end_positions"]], dim=1)
            start_loss, end_loss = span_losses(logits, targets, None if mask is None else mask.sum(1)).unbind()
            start_logits, end_logits = logits.unbind(1)
        return SpanOutput((start_loss + end_loss) / 2, start_loss, end_loss, start_logits, end_logits)


class BertForLabels(BertModel, ABC):
    """Encoder with any head that gives each sequence K logits; a head is a subclass with `logits`.

    `labels` is K, the classes that there are. In a regression it is 1, labels are values, and the loss is their mean
    squared error.
    """

    def __init__(
        self, config: ModelConfig, labels: int, observer: Observer | None = None, *, regression: bool = False,
        pooler: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(config, observer, pooler=pooler)
        self.labels = labels
        self.regression = regression

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """Return logits [B, K] of a batch of rows."""

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
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.classifier = nn.Linear(config.hidden_size, labels)
        initialize(self.classifier, config)

    def logits(self, batch: Batch) -> Tensor:
        """Return logits [B, K] of a batch of rows."""
        pooled = self.encode(batch).pooled
        assert pooled is not None
        with phase(self.observer, "classifier"):
            result: Tensor = self.classifier(self.dropout(pooled))
        return result
