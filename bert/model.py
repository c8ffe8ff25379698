"""BERT: the encoder, and the models that pretraining and question answering train (Devlin et al. 2018).

Shapes: B sequences, S tokens, H hidden width.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.attention import SelfAttention
from bert.batch import Batch
from bert.config import ModelConfig
from bert.dropout import dropout, dropout_add
from bert.heads import (
    MaskedWordHead,
    PretrainingOutput,
    SpanHead,
    SpanOutput,
    gather_positions,
    mean_cross_entropy,
    span_losses,
)
from bert.observer import Observer
from common.errors import UsageError

PAD_TOKEN_ID = 0

_NO_PHASE: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """What the encoder makes of a batch."""

    hidden: Tensor
    """Hidden states of the last layer [B, S, H]."""
    pooled: Tensor | None
    """tanh projection of each first token [B, H]; None without a pooler."""


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        # The padding token gets no gradient as an input, as in Hugging Face; as a prediction it does.
        self.word = nn.Embedding(config.padded_vocab_size, config.hidden_size, padding_idx=PAD_TOKEN_ID)
        self.position = nn.Embedding(config.max_positions, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.vocab_size = config.vocab_size

    @torch.no_grad()
    def reset_padding(self) -> None:
        """Zero the vocabulary's padding rows, which no token uses and no gradient reaches."""
        self.word.weight[self.vocab_size :] = 0.0

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Return [B, S, H] of ids [B, S]; segment 0 everywhere where `token_type_ids` is None."""
        summed = self.word(input_ids) + self.position.weight[: input_ids.shape[1]]
        if self.token_type is not None:
            if token_type_ids is None:
                summed = summed + self.token_type.weight[0]
            else:
                summed = summed + self.token_type(token_type_ids)
        return dropout(self.norm(summed), self.dropout, self.training)


class Layer(nn.Module):
    """One transformer layer, LayerNorm after each residual connection."""

    def __init__(self, config: ModelConfig, index: int, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.index = index
        self.dropout = config.hidden_dropout
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return [B, S, H] of [B, S, H]; bool `mask` [B, 1, 1, S] is True for real tokens, None when all are real."""
        with _phase(self.observer, "layer", self.index, ".attention"):
            attended = self.attention(hidden, mask)
            attended = dropout_add(attended, hidden, self.dropout, self.training)
            attended = self.attention_norm(attended)
        with _phase(self.observer, "layer", self.index, ".mlp"):
            transformed = self.output(F.gelu(self.intermediate(attended)))
            transformed = dropout_add(transformed, attended, self.dropout, self.training)
            result: Tensor = self.output_norm(transformed)
        return result


class BertEncoder(nn.Module):
    """BERT without heads, on padded batches. `observer` sees phases "embeddings", "layer.3", "layer.3.attention"...

    Args:
        config: shape and dropout.
        observer: its `phase` is called only while its `model_phases` is true.
        pooler: whether the first token is projected for tasks on whole sequences.
    """

    def __init__(self, config: ModelConfig, observer: Observer | None = None, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.observer = observer or Observer()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, index, self.observer) for index in range(config.num_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        initialize(self, config)
        self.embeddings.reset_padding()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> EncoderOutput:
        """Encode ids [B, S].

        Args:
            input_ids: word pieces [B, S].
            attention_mask: [B, S], nonzero for real tokens; pass None where all are real, which is faster.
            token_type_ids: segments [B, S]; None is segment 0 everywhere.

        Raises:
            UsageError: the sequences are longer than the model has positions for.
        """
        if input_ids.shape[1] > self.config.max_positions:
            raise UsageError(
                f"sequences of {input_ids.shape[1]} tokens do not fit max_positions={self.config.max_positions}: "
                "shorten them or make a model with more positions"
            )
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        with _phase(self.observer, "embeddings"):
            hidden = self.embeddings(input_ids, token_type_ids)
        for index, layer in enumerate(self.layers):
            with _phase(self.observer, "layer", index):
                hidden = layer(hidden, mask)
        pooled = None
        if self.pooler is not None:
            with _phase(self.observer, "pooler"):
                pooled = torch.tanh(self.pooler(hidden[:, 0]))
        return EncoderOutput(hidden, pooled)


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
        """Return the losses of a pretraining batch (bert.batch.Batch names its tensors)."""
        tensors = batch.tensors
        encoded = self.encoder(tensors["input_ids"], _mask(batch), tensors["token_type_ids"])
        with _phase(self.observer, "masked_words"):
            predicted = gather_positions(encoded.hidden, tensors["masked_positions"])
            word_logits = self.masked_words(predicted, self.encoder.embeddings.word.weight)
            mlm_loss = mean_cross_entropy(word_logits, tensors["masked_labels"])
        with _phase(self.observer, "next_sentence"):
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
        """Return losses and logits of a batch of windows (bert.batch.Batch names its tensors).

        Only windows whose targets are positions of real tokens count for the losses, and only real tokens compete.
        """
        tensors = batch.tensors
        mask = _mask(batch)
        hidden = self.encoder(tensors["input_ids"], mask, tensors["token_type_ids"]).hidden
        with _phase(self.observer, "answer_span"):
            logits = self.answer_span(hidden, mask)
            targets = torch.stack([tensors["start_positions"], tensors["end_positions"]], dim=1)
            start_loss, end_loss = span_losses(logits, targets, None if mask is None else mask.sum(1)).unbind()
            start_logits, end_logits = logits.unbind(1)
        return SpanOutput((start_loss + end_loss) / 2, start_loss, end_loss, start_logits, end_logits)


@torch.no_grad()
def initialize(module: nn.Module, config: ModelConfig) -> None:
    """Draw the weights of linear layers and embeddings inside `module` from N(0, initializer_range); biases are 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(std=config.initializer_range)
            part.bias.zero_()
        elif isinstance(part, nn.Embedding):
            part.weight.normal_(std=config.initializer_range)


def _mask(batch: Batch) -> Tensor | None:
    """The attention mask [B, S], None where all tokens are real: known on the CPU, a GPU need not be asked."""
    all_real = batch.counts.real_tokens == batch.counts.padded_tokens
    return None if all_real else batch.tensors["attention_mask"]


def _phase(observer: Observer, name: str, index: int | None = None, part: str = "") -> AbstractContextManager[None]:
    """Enter phase "name", "name.index" or "name.index.part"; no name is even made where nobody asks for it."""
    if not observer.model_phases:
        return _NO_PHASE
    return observer.phase(name if index is None else f"{name}.{index}{part}")
