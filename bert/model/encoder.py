"""BERT without heads: embeddings and transformer layers (Devlin et al. 2018).

Shapes: B sequences, S tokens, T real tokens of all sequences, H hidden width.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert.model.attention import SelfAttention, Where
from bert.model.config import ModelConfig
from bert.model.packing import Unpadded, unpad
from bert.observer import Observer
from bert.speed.copies import Linear, add_embedding
from bert.speed.dropout import dropout
from bert.speed.elementwise import Stream, feed_forward, product, product_dtype, residual_norm, stream
from bert.speed.kernels import usable
from common.errors import UsageError

PAD_TOKEN_ID = 0

_NO_PHASE: AbstractContextManager[None] = nullcontext()

# (layer, hidden states [B, S, H] or [T, H], where they lie) -> hidden states.
RunLayer = Callable[[nn.Module, Tensor | Stream, Where], Tensor | Stream]


# Without slots: DeepSpeed's ZeRO stage 3 looks at vars() of what modules return.
@dataclass(frozen=True)
class EncoderOutput:
    """Output of the encoder for a batch."""

    hidden: Tensor
    """Hidden states of the last layer [B, S, H]; those of padding are meaningless."""
    pooled: Tensor | None
    """tanh projection of each first token [B, H]; None without a pooler."""


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout. `fused` is as in a Layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        self.fused = False
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
        if self.fused and usable(self.word.weight, self.word.weight):
            return self._by_kernel(input_ids, token_type_ids, further, columns)
        summed = self.position.weight[: input_ids.shape[-1]] if columns is None else self.position(columns)
        if further is not None and token_type_ids is not None:
            first = torch.zeros_like(further[:1]) if self.token_type is None else self.token_type.weight[:1]
            summed = summed + F.embedding(token_type_ids, torch.cat([first, further]))
        elif self.token_type is not None:
            if token_type_ids is None:
                summed = summed + self.token_type.weight[0]
            else:
                summed = summed + self.token_type(token_type_ids)
        summed = add_embedding(summed, input_ids, self.word.weight, PAD_TOKEN_ID)
        return dropout(self.norm(summed), self.dropout, self.training)

    def _by_kernel(
        self, input_ids: Tensor, token_type_ids: Tensor | None, further: Tensor | None, columns: Tensor | None
    ) -> Tensor:
        from bert.speed.kernels.embedding import Tokens, embed

        if columns is None:
            columns = torch.arange(input_ids.shape[-1], device=input_ids.device).expand_as(input_ids)
        segments = None if self.token_type is None else self.token_type.weight
        if further is not None and token_type_ids is not None:
            segments = torch.cat([torch.zeros_like(further[:1]) if segments is None else segments[:1], further])
        elif segments is not None and token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        return embed(
            (self.word.weight, self.position.weight, segments), Tokens(input_ids, columns, token_type_ids), self.norm,
            self.dropout if self.training else 0.0, product_dtype(self.word.weight), PAD_TOKEN_ID,
        )  # fmt: skip


class Layer(nn.Module):
    """One transformer layer, LayerNorm after each residual connection. `fused` is that of bert.speed.elementwise."""

    def __init__(self, config: ModelConfig, index: int, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.index = index
        self.dropout = config.hidden_dropout
        self.fused = False
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.reader: tuple[Linear, ...] = ()
        """The linear layer that reads the result, in a tuple because it is part of the next layer, not of this one."""

    def forward(self, hidden: Tensor | Stream, where: Where) -> Tensor | Stream:
        """Return [B, S, H] for [B, S, H], or [T, H] for [T, H], for tokens in a layout (bert.model.attention.Where)."""
        wide, narrow, low = stream(hidden)
        with phase(self.observer, "layer", self.index, ".attention"):
            attended = product(self.attention.output, self.attention.attended(narrow, where, low), self.fused)
            wide, narrow, low = residual_norm(
                attended, wide, self.attention_norm, self.dropout, self.fused, self.intermediate
            )
        reader = self.reader[0] if self.reader else None
        with phase(self.observer, "layer", self.index, ".mlp"):
            transformed = feed_forward(self.intermediate, self.output, narrow, self.fused, low)
            result = residual_norm(transformed, wide, self.output_norm, self.dropout, self.fused, reader)
        return result if self.fused else result.wide


class BertEncoder(nn.Module):
    """BERT without heads. `observer` sees phases "embeddings", "layer.3", "layer.3.attention"...

    Batches come padded, and so does what is made of them; where `unpads` is true, the layers see only the real tokens.
    None, as it is made, is true on CPUs.

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
        layers = [Layer(config, index, self.observer) for index in range(config.num_layers)]
        for layer, following in pairwise(layers):
            layer.reader = (following.attention.qkv,)
        self.layers = nn.ModuleList(layers)
        self.run_layer: RunLayer = _call
        self.unpads: bool | None = None
        self.pooler = Linear(config.hidden_size, config.hidden_size) if pooler else None
        initialize(self, config)
        self.embeddings.reset_padding()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        further_types: Tensor | None = None,
        layout: Unpadded | None = None,
    ) -> EncoderOutput:
        """Encode ids [B, S].

        Args:
            input_ids: word pieces [B, S].
            attention_mask: [B, S], nonzero for real tokens; pass None if all are real, which is faster.
            token_type_ids: segments [B, S]; None is segment 0 everywhere.
            further_types: embeddings [K, H] of the segments from 1 on, instead of the encoder's own.
            layout: where the real tokens of the mask lie; None reads it from the mask, which on a GPU waits for it.

        Raises:
            UsageError: the sequences are longer than the model has positions for.
        """
        if input_ids.shape[1] > self.config.max_positions:
            raise UsageError(
                "data-mismatch",
                f"sequences of {input_ids.shape[1]} tokens exceed max_positions={self.config.max_positions}: "
                "shorten them or use a model with more positions",
            )
        placed = self.placed(attention_mask, layout)
        where: Where = placed
        with phase(self.observer, "embeddings"):
            if placed is None:
                where = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
                hidden = self.embeddings(input_ids, token_type_ids, further_types)
            else:
                types = None if token_type_ids is None else placed.take(token_type_ids)
                hidden = self.embeddings(placed.take(input_ids), types, further_types, placed.position_ids)
        carried: Tensor | Stream = hidden
        for index, layer in enumerate(self.layers):
            with phase(self.observer, "layer", index):
                carried = self.run_layer(layer, carried, where)
        hidden = stream(carried).wide
        if placed is not None:
            hidden = placed.put_back(hidden)
        pooled = None
        if self.pooler is not None:
            with phase(self.observer, "pooler"):
                pooled = torch.tanh(self.pooler(hidden[:, 0]))
        return EncoderOutput(hidden, pooled)

    def placed(self, attention_mask: Tensor | None, layout: Unpadded | None = None) -> Unpadded | None:
        """Return where the layers are to see the tokens of a mask [B, S]; None if they see the padded batch.

        `layout` is that of the mask if it is known, as it is for batches of a loader.
        """
        known = attention_mask if layout is None else layout.places
        if known is None:
            return None
        if not (known.device.type == "cpu" if self.unpads is None else self.unpads):
            return None
        return unpad(known) if layout is None else layout


def recompute_activations(model: nn.Module) -> None:
    """Enable activation checkpointing: layers keep only their input and recompute the rest in the backward pass.

    Losses and gradients stay the same, dropout included; a step computes one more forward pass of the layers
    (Chen et al. 2016, arXiv 1604.06174).

    Raises:
        UsageError: there is no encoder in it.
    """
    encoders = [part for part in model.modules() if isinstance(part, BertEncoder)]
    if not encoders:
        raise UsageError(
            "model-unsupported",
            f"{type(model).__name__} has no bert.model.encoder.BertEncoder, which activation checkpointing needs",
        )
    for encoder in encoders:
        encoder.run_layer = _recomputed
        for layer in encoder.layers:
            assert isinstance(layer, Layer)
            layer.reader = ()  # the input that a layer keeps would be kept in FP8 too


def _call(layer: nn.Module, hidden: Tensor | Stream, where: Where) -> Tensor | Stream:
    result: Tensor | Stream = layer(hidden, where)
    return result


def _recomputed(layer: nn.Module, hidden: Tensor | Stream, where: Where) -> Tensor | Stream:
    if not torch.is_grad_enabled():
        return _call(layer, hidden, where)
    from torch.utils.checkpoint import checkpoint

    result: Tensor | Stream = checkpoint(layer, hidden, where, use_reentrant=False)
    return result


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
