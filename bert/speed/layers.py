"""The parts of bert.model as a fast step computes them: on real tokens alone, with fused operations.

bert.speed.apply puts these classes in the place of those of a model, whose weights stay where they are.

Shapes: B sequences, S tokens, T real tokens of all sequences, H hidden width, V padded vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bert.data.batch import Unpadded, dropout_keys, unpad
from bert.model.encoder import (
    PAD_TOKEN_ID,
    BertEncoder,
    Embeddings,
    EncoderOutput,
    Layer,
    SelfAttention,
    phase,
)
from bert.model.heads import MaskedWordHead
from bert.speed.attention import Where, attend, sums_bias
from bert.speed.copies import add_embedding, linear
from bert.speed.elementwise import (
    Stream,
    dropout,
    fp8_copy,
    gelu,
    product,
    product_dtype,
    residual_norm,
    stream,
)
from bert.speed.fp8 import Quantized
from bert.speed.kernels import usable

_SITES = 3  # of dropout in a layer: attention's weights, and what both parts add to the stream


class FastEmbeddings(Embeddings):
    """Embeddings, on a GPU by one kernel."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None,
        further: Tensor | None = None,
        columns: Tensor | None = None,
        key: Tensor | None = None,
    ) -> Tensor:
        """As Embeddings.forward; `key` is that of the dropout of a kernel."""
        if not usable(self.word.weight, self.word.weight):
            places = self.places(input_ids, token_type_ids, further, columns)
            summed = add_embedding(places, input_ids, self.word.weight, PAD_TOKEN_ID)
            return dropout(self.norm(summed), self.dropout, self.training)
        from bert.speed.kernels.vocabulary import embed

        if columns is None:
            columns = torch.arange(input_ids.shape[-1], device=input_ids.device).expand_as(input_ids)
        segments = None if self.token_type is None else self.token_type.weight
        if further is not None and token_type_ids is not None:
            segments = self.segments(further)
        elif segments is not None and token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        return embed(
            (self.word.weight, self.position.weight, segments), (input_ids, columns, token_type_ids), self.norm,
            self.dropout if self.training else 0.0, product_dtype(self.word.weight), PAD_TOKEN_ID, key,
        )  # fmt: skip


class FastAttention(SelfAttention):
    """Self-attention by the function that is the fastest one for the device and the layout of the tokens."""

    def attended(self, hidden: Tensor, where: Where, low: Quantized | None, key: Tensor | None) -> Tensor:
        """Return the context of all heads [..., H] of hidden states [..., H], before the output projection.

        `low` is `hidden` in FP8, if a kernel has written it, `key` that of the dropout of a kernel.
        """
        width, weight, bias = self.output.in_features // self.num_heads, self.qkv.weight, self.qkv.bias
        if usable(hidden, weight) and sums_bias(where, hidden.device, product_dtype(hidden), width):
            return self.context(linear(hidden, weight, bias.detach(), low), where, bias, key)
        qkv = linear(hidden, weight, bias, low) if low is not None else self.qkv(hidden)
        return self.context(qkv, where, None, key)

    def context(self, qkv: Tensor, where: Where, bias: Tensor | None = None, key: Tensor | None = None) -> Tensor:
        """Return what the heads attend to [..., H], of their queries, keys and values side by side [..., 3 H].

        `bias` and `key` are as in `attend`.
        """
        heads = qkv.unflatten(-1, (3, self.num_heads, -1))
        return attend(heads, where, self.dropout if self.training else 0.0, bias, key).flatten(-2)


class FastLayer(Layer):
    """One transformer layer, whose operations between the GEMMs are fused."""

    attention: FastAttention

    def forward(  # type: ignore[override]
        self, hidden: Tensor | Stream, where: Where, reader: nn.Linear | None, keys: Sequence[Tensor | None]
    ) -> Stream:  # fmt: skip
        """Return hidden states [..., H] for those of tokens in a layout.

        `reader` is the linear layer that reads it, `keys` are those of the layer's dropouts by kernels.
        """
        wide, narrow, low = stream(hidden)
        of_weights, first, second = keys
        with phase(self.observer, "layer", self.index, ".attention"):
            x = product(self.attention.output, self.attention.attended(narrow, where, low, of_weights))
            wide, narrow, low = residual_norm(x, wide, self.attention_norm, self.dropout, self.intermediate, first)
        with phase(self.observer, "layer", self.index, ".mlp"):
            transformed = product(self.output, *gelu(product(self.intermediate, narrow, low), self.output))
            return residual_norm(transformed, wide, self.output_norm, self.dropout, reader, second)


class FastEncoder(BertEncoder):
    """The encoder, whose layers and heads see only the real tokens of a batch."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        further_types: Tensor | None = None,
        layout: Unpadded | None = None,
        key: Tensor | None = None,
    ) -> EncoderOutput:
        """As BertEncoder.forward. Without a layout it is read from the mask, which on a GPU waits for it."""
        self.refuse_longer(input_ids)
        placed = self.placed(attention_mask, layout)
        first, *keys = dropout_keys(key, 1 + _SITES * len(self.layers))
        with phase(self.observer, "embeddings"):
            if placed is None:
                where: Where = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
                carried = self.embeddings(input_ids, token_type_ids, further_types, None, first)
            else:
                where, types = placed, None if token_type_ids is None else placed.take(token_type_ids)
                carried = self.embeddings(placed.take(input_ids), types, further_types, placed.position_ids, first)
        for index, layer in enumerate(self.layers):
            with phase(self.observer, "layer", index):
                own = keys[_SITES * index : _SITES * (index + 1)]
                carried = self.run_layer(layer, carried, where, self._reader(index), own)
        return self.output(stream(carried).wide, placed)

    def placed(self, attention_mask: Tensor | None, layout: Unpadded | None = None) -> Unpadded | None:
        """Return where the layers are to see the tokens of a mask [B, S]; None if they see the padded batch."""
        return unpad(attention_mask) if layout is None and attention_mask is not None else layout

    def _reader(self, index: int) -> nn.Linear | None:
        """Return the layer in FP8 that reads what a layer gives; none if it would keep that in FP8, too."""
        if self.recomputes or index + 1 == len(self.layers):
            return None
        following = self.layers[index + 1]
        assert isinstance(following, Layer)
        reader = following.attention.qkv
        return None if fp8_copy(reader) is None else reader


class FastMaskedWordHead(MaskedWordHead):
    """Masked-word predictions, on a GPU with a fused loss."""

    def decode(self, transformed: Tensor, word_embedding: Tensor) -> Tensor:
        """As MaskedWordHead.decode."""
        return linear(transformed, word_embedding, self.bias)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """As MaskedWordHead.loss; a GPU overwrites the logits with their gradient: nothing else may read them."""
        if not usable(logits):
            return super().loss(logits, labels)
        from bert.speed.kernels.vocabulary import mean_cross_entropy

        return mean_cross_entropy(logits, labels)


class FastDropout(nn.Dropout):
    """Dropout that takes less time on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero elements with probability p, and scale the others."""
        return dropout(input, self.p, self.training)


FAST_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    Embeddings: FastEmbeddings, SelfAttention: FastAttention, Layer: FastLayer, BertEncoder: FastEncoder,
    MaskedWordHead: FastMaskedWordHead, nn.Dropout: FastDropout,
}  # fmt: skip
