"""BERT built on PyTorch's `nn.TransformerEncoder`, as written without a model library.

It shares only the initial weights with bert.model.encoder. It has padded sequences, PyTorch's layers and attention, and
one call of `F.cross_entropy` per loss. Dropout follows BERT: the dropout of `nn.TransformerEncoderLayer` after the GELU
is removed.

Shapes: B sequences, S tokens, H hidden width, M predicted positions of the whole batch, V word pieces.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.implementations.base import Built, Implementation
from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.encoder import PAD_TOKEN_ID, initialize
from bert.observer import Observer
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from records.trial import Trial


class TorchEncoderImplementation(Implementation):
    """`torch.nn.TransformerEncoder` in eager mode, with fused AdamW."""

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the task's model; its forward pass returns the loss."""
        model = MODELS[task_data(task.name).heads](config, task)
        for layer in model.encoder.transformer.layers if trial.activation_checkpointing else []:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        return Built(model=model, compute_loss=lambda model, batch: model(batch))


class PlainEncoder(nn.Module):
    """Embeddings, `nn.TransformerEncoder` with post-LayerNorm, and an optional pooler."""

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.config = config
        self.word = nn.Embedding(config.vocab_size, hidden, padding_idx=PAD_TOKEN_ID)
        self.position = nn.Embedding(config.max_positions, hidden)
        self.token_type = nn.Embedding(config.type_vocab_size, hidden) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        sizes = (hidden, config.num_heads, config.intermediate_size)
        layer = nn.TransformerEncoderLayer(
            *sizes, config.hidden_dropout, "gelu", layer_norm_eps=config.layer_norm_eps, batch_first=True
        )
        layer.dropout = nn.Identity()  # type: ignore[assignment]
        layer.self_attn.dropout = config.attention_dropout
        self.transformer = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)
        self.pooler = nn.Linear(hidden, hidden) if pooler else None
        initialize(self, config)
        for attention in (part for part in self.modules() if isinstance(part, nn.MultiheadAttention)):
            nn.init.normal_(attention.in_proj_weight, std=config.initializer_range)
            nn.init.zeros_(attention.in_proj_bias)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the last hidden states [B, S, H] and the projected first tokens [B, H], None without a pooler."""
        ids = batch.tensors["input_ids"]
        summed = self.word(ids) + self.position.weight[: ids.shape[1]]
        if self.token_type is not None:
            summed = summed + self.token_type(batch.tensors["token_type_ids"])
        hidden = self.dropout(self.norm(summed))
        full = batch.counts.real_tokens == batch.counts.padded_tokens
        padding = None if full else batch.tensors["attention_mask"] == 0
        hidden = self.transformer(hidden, src_key_padding_mask=padding)
        return hidden, None if self.pooler is None else torch.tanh(self.pooler(hidden[:, 0]))


class PlainModel(nn.Module):
    """An encoder and the heads of a task; calling it with a batch returns the loss, a float32 scalar."""

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.encoder = PlainEncoder(config, pooler=pooler)


class _Pretraining(PlainModel):
    """Masked-language-model head with tied word embeddings, and next-sentence head."""

    def __init__(self, config: ModelConfig, task: Task) -> None:
        super().__init__(config)
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.word_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        for head in (self.transform, self.next_sentence):
            initialize(head, config)

    def forward(self, batch: Batch) -> Tensor:
        tensors = batch.tensors
        hidden, pooled = self.encoder(batch)
        predicted = hidden.flatten(0, 1)[tensors["masked_positions"]]
        transformed = self.transform_norm(F.gelu(self.transform(predicted)))
        logits = F.linear(transformed, self.encoder.word.weight, self.word_bias)
        labels = tensors["masked_labels"]
        words = F.cross_entropy(logits.float(), labels, reduction="sum") / max(labels.numel(), 1)
        return words + F.cross_entropy(self.next_sentence(pooled).float(), tensors["next_sentence_labels"])


class _Questions(PlainModel):
    """Head for answer spans; padding takes part in the softmax, as in the published code and in Hugging Face's.

    Targets beyond the window are ignored.
    """

    def __init__(self, config: ModelConfig, task: Task) -> None:
        super().__init__(config, pooler=False)
        self.span = nn.Linear(config.hidden_size, 2)
        initialize(self.span, config)

    def forward(self, batch: Batch) -> Tensor:
        hidden, _ = self.encoder(batch)
        logits = self.span(hidden).float()
        ends = logits.shape[1]
        losses = [
            F.cross_entropy(logits[..., which], batch.tensors[name].clamp(0, ends), ignore_index=ends)
            for which, name in enumerate(("start_positions", "end_positions"))
        ]
        return (losses[0] + losses[1]) / 2


class _Classification(PlainModel):
    """Classification head: dropout and one linear layer on the pooled first token."""

    def __init__(self, config: ModelConfig, task: Task) -> None:
        super().__init__(config)
        assert isinstance(task, ClassificationTask)
        self.regression = task.regression
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.classifier = nn.Linear(config.hidden_size, task.labels)
        initialize(self.classifier, config)

    def forward(self, batch: Batch) -> Tensor:
        _, pooled = self.encoder(batch)
        logits = self.classifier(self.dropout(pooled)).float()
        labels = batch.tensors["labels"]
        return F.mse_loss(logits.squeeze(1), labels.float()) if self.regression else F.cross_entropy(logits, labels)


MODELS: Mapping[str, Callable[[ModelConfig, Task], PlainModel]] = {
    "masked words": _Pretraining,
    "answer spans": _Questions,
    "classes": _Classification,
}
"""By bert.tasks.base.Heads."""
