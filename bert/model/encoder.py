"""BERT without heads by PyTorch's functions, on padded batches: embeddings and transformer layers (Devlin et al. 2018).

This is the plain step, the reference; bert.speed.layers computes the same faster.

Shapes: B sequences, S tokens, H hidden width, N heads, D width of a head (H = N x D).
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.data.batch import Unpadded
from bert.model.config import ModelConfig
from bert.observer import Observer
from common.errors import UsageError

PAD_TOKEN_ID = 0

_NO_PHASE: AbstractContextManager[None] = nullcontext()


# Without slots: DeepSpeed's ZeRO stage 3 looks at vars() of what modules return.
@dataclass(frozen=True)
class EncoderOutput:
    """Output of the encoder for a batch."""

    tokens: Tensor
    """Hidden states of the last layer [B, S, H], or of the tokens in a layout [T, H]."""
    pooled: Tensor | None
    """tanh projection of each first token [B, H]; None without a pooler."""
    layout: Unpadded | None = None
    """None where tokens are padded."""

    @property
    def hidden(self) -> Tensor:
        """Hidden states of the last layer [B, S, H]; those of padding are meaningless."""
        return self.tokens if self.layout is None else self.layout.put_back(self.tokens)

    def predicted(self, positions: Tensor) -> Tensor:
        """Return the hidden states [M, H] at the batch's masked positions [M]."""
        if self.layout is None:
            return self.tokens.flatten(0, 1).index_select(0, positions)
        known = self.layout.predicted
        return self.tokens.index_select(0, self.layout.tokens_at(positions) if known is None else known)


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

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None,
        further: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        """Return [B, S, H] of ids [B, S], or [..., H] of ids [...] at `columns` [...], such as [T].

        Segment 0 is everywhere where `token_type_ids` is None. With `further` [K, H] there is segment 0 and, in place
        of the others, these: 1 to K.
        """
        summed = self.word(input_ids) + self.places(input_ids, token_type_ids, further, columns)
        return F.dropout(self.norm(summed), self.dropout, self.training)

    def places(
        self, input_ids: Tensor, token_type_ids: Tensor | None, further: Tensor | None, columns: Tensor | None
    ) -> Tensor:
        """Return the sum of position and segment embeddings, of a shape that those of words can be added to."""
        summed = self.position.weight[: input_ids.shape[-1]] if columns is None else self.position(columns)
        if further is not None and token_type_ids is not None:
            return summed + F.embedding(token_type_ids, self.segments(further))
        if self.token_type is None:
            return summed
        return summed + (self.token_type.weight[0] if token_type_ids is None else self.token_type(token_type_ids))

    def segments(self, further: Tensor) -> Tensor:
        """Return segment 0 and, in place of the others, `further` [K, H]."""
        first = torch.zeros_like(further[:1]) if self.token_type is None else self.token_type.weight[:1]
        return torch.cat([first, further])


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, eq. 1), before dropout and residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return [B, S, H] for [B, S, H] and a bool mask [B, 1, 1, S], True for tokens that may be attended to."""
        output: Tensor = self.output(self.context(self.qkv(hidden), mask))
        return output

    def context(self, qkv: Tensor, mask: Tensor | None) -> Tensor:
        """Return what the heads attend to [B, S, H], of their queries, keys and values side by side [B, S, 3 H]."""
        query, key, value = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return context.transpose(1, 2).flatten(-2)


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
        """Return [B, S, H] for [B, S, H] and a mask as in SelfAttention."""
        with phase(self.observer, "layer", self.index, ".attention"):
            attended = F.dropout(self.attention(hidden, mask), self.dropout, self.training)
            hidden = self.attention_norm(attended + hidden)
        with phase(self.observer, "layer", self.index, ".mlp"):
            transformed = F.dropout(self.output(F.gelu(self.intermediate(hidden))), self.dropout, self.training)
            result: Tensor = self.output_norm(transformed + hidden)
        return result


class BertEncoder(nn.Module):
    """BERT without heads. `observer` sees phases "embeddings", "layer.3", "layer.3.attention"...

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
        self.recomputes = False
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        initialize(self, config)
        self.embeddings.reset_padding()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        further_types: Tensor | None = None,
        layout: Unpadded | None = None,
        key: Tensor | None = None,
    ) -> EncoderOutput:
        """Encode ids [B, S].

        Args:
            input_ids: word pieces [B, S].
            attention_mask: [B, S], nonzero for real tokens; pass None if all are real, which is faster.
            token_type_ids: segments [B, S]; None is segment 0 everywhere.
            further_types: embeddings [K, H] of the segments from 1 on, instead of the encoder's own.
            layout: where the real tokens of the mask lie, for an encoder that computes these alone.
            key: Batch.key, for an encoder that drops out by kernels.

        Raises:
            UsageError: the sequences are longer than the model has positions for.
        """
        self.refuse_longer(input_ids)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        with phase(self.observer, "embeddings"):
            hidden = self.embeddings(input_ids, token_type_ids, further_types)
        for index, layer in enumerate(self.layers):
            with phase(self.observer, "layer", index):
                hidden = self.run_layer(layer, hidden, mask)
        return self.output(hidden)

    def refuse_longer(self, input_ids: Tensor) -> None:
        """Refuse sequences that are longer than the model has positions for."""
        if input_ids.shape[1] > self.config.max_positions:
            raise UsageError(
                "data-mismatch",
                f"sequences of {input_ids.shape[1]} tokens exceed max_positions={self.config.max_positions}: "
                "shorten them or use a model with more positions",
            )

    def run_layer(self, layer: nn.Module, *given: Any) -> Any:
        """Return what a layer gives, recomputed in the backward pass where `recomputes`."""
        if not (self.recomputes and torch.is_grad_enabled()):
            return layer(*given)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(layer, *given, use_reentrant=False)

    def output(self, tokens: Tensor, layout: Unpadded | None = None) -> EncoderOutput:
        """Return the output of hidden states [B, S, H], or [T, H] of tokens in a layout."""
        if self.pooler is None:
            return EncoderOutput(tokens, None, layout)
        with phase(self.observer, "pooler"):
            first = tokens[:, 0] if layout is None else tokens.index_select(0, layout.ends[:-1])
            return EncoderOutput(tokens, torch.tanh(self.pooler(first)), layout)


def recompute_activations(model: nn.Module) -> None:
    """Enable activation checkpointing: layers keep only their input and recompute the rest in the backward pass.

    Losses and gradients stay the same, dropout included; a step computes one more forward pass of the layers
    (Chen et al. 2016, arXiv 1604.06174).
    """
    for part in model.modules():
        if isinstance(part, BertEncoder):
            part.recomputes = True


@torch.no_grad()
def initialize(module: nn.Module, config: ModelConfig) -> None:
    """Draw the weights of linear layers and embeddings inside `module` from N(0, initializer_range); biases are 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(std=config.initializer_range)
            part.bias.zero_()
        elif isinstance(part, nn.Embedding):
            part.weight.normal_(std=config.initializer_range)


def phase(observer: Observer, name: str, index: int | None = None, part: str = "") -> AbstractContextManager[None]:
    """Enter phase "name", "name.index" or "name.index.part"; no name is even made where nobody asks for it."""
    if not observer.model_phases:
        return _NO_PHASE
    return observer.phase(name if index is None else f"{name}.{index}{part}")
