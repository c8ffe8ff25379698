"""What a training step computes, described once from the shape of the model. Imports no torch.

FLOPs and parameters (here), predicted memory (bert.memory) and the parts that `bertbench speed-of-light` times
(bench.floor) all follow from this description. A task adds the GEMMs and passes of its heads (bert.tasks.base).

FLOPs are what the mathematics needs, whatever the implementation does. A product of [m, k] and [k, n] takes 2 m k n of
them. Training makes three for each one of the forward pass (y = x W^T, dx = dy W, dW = dy^T x): a weight matrix costs 6
FLOPs per parameter and row it is applied to (Kaplan et al. 2020, arXiv 2001.08361, section 2.1; Chowdhery et al. 2022,
arXiv 2204.02311, appendix B). Attention's scores Q K^T and weights x V take 2 n^2 H each for a sequence of n tokens,
times 3 for forward and backward. Padding tokens, the vocabulary's padding rows and activation checkpointing do not
count; nor do biases, LayerNorm, GELU, softmax, dropout, look-ups and the optimizer.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from bert.model.config import ModelConfig

if TYPE_CHECKING:
    from bert.data.batch import BatchCounts

Over = Literal["tokens", "sequences", "predictions"]
FLOAT_BYTES = 4
_LAYER_NORM = 2  # weight and bias of each feature


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How much of a batch a part of the step computes."""

    tokens: int
    sequences: int
    predictions: int
    squared_lengths: int
    """Sum over sequences of the square of the length that attention is computed on."""
    layout: str
    """padded or unpadded."""

    @classmethod
    def unpadded(cls, counts: "BatchCounts") -> "Extent":
        """Every sequence as long as it is: what the mathematics needs."""
        return cls(
            tokens=counts.real_tokens, sequences=counts.samples, predictions=counts.predicted_positions,
            squared_lengths=counts.squared_lengths, layout="unpadded",
        )  # fmt: skip

    @classmethod
    def padded(cls, counts: "BatchCounts") -> "Extent":
        """Every sequence as long as the batch is wide."""
        width = counts.padded_tokens // max(1, counts.samples)
        squares = counts.samples * width * width
        return replace(cls.unpadded(counts), tokens=counts.padded_tokens, squared_lengths=squares, layout="padded")

    def rows(self, over: Over) -> int:
        """Return how many there are of what a part goes over."""
        return {"tokens": self.tokens, "sequences": self.sequences, "predictions": self.predictions}[over]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """A matrix [columns, inner] that [rows, inner] is multiplied with: once forwards, and twice for the gradients."""

    name: str
    inner: int
    columns: int
    over: Over = "tokens"
    rows_each: int = 1
    """Rows of each token, sequence or prediction."""
    times: int = 1
    """How many such matrices a step has."""
    model_columns: int | None = None
    """Columns that the mathematics needs; None is all of them."""
    own_weight: bool = True
    """False where the matrix is another part's (the word embedding) or no parameter."""
    own_bias: bool = True

    def rows(self, extent: Extent) -> int:
        """Return m of the forward product."""
        return self.rows_each * extent.rows(self.over)

    def model_flops(self, counts: "BatchCounts") -> int:
        """Return the FLOPs of one of the three GEMMs of one such matrix."""
        columns = self.columns if self.model_columns is None else self.model_columns
        return 2 * self.rows(Extent.unpadded(counts)) * self.inner * columns

    @property
    def parameters(self) -> int:
        """Parameters of one such matrix and its bias."""
        return self.own_weight * self.inner * self.columns + self.own_bias * self.columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Work on rows of a width that no GEMM does, forwards and backwards: memory bounds it."""

    name: str
    width: int
    over: Over = "tokens"
    times: int = 1
    """How often a step does it."""
    narrow: int = 0
    """Elements in the type of the GEMMs that are read or written for each element of a row."""
    wide: int = 0
    """The same for elements in float32."""
    kept_narrow: int = 0
    """Elements in the type of the GEMMs that are kept for the backward pass for each element of a row."""
    kept_wide: int = 0
    """The same for elements in float32."""
    drops: bool = False
    """Whether a mask of the dropout of hidden states is kept."""

    def traffic(self, rows: int, element_bytes: int) -> int:
        """Return the bytes that doing it once has to move."""
        return rows * self.width * (self.narrow * element_bytes + self.wide * FLOAT_BYTES)

    def kept(self, rows: int, element_bytes: int, mask_bytes: int) -> int:
        """Return the bytes that stay from one forward to its backward pass."""
        each = self.kept_narrow * element_bytes + self.kept_wide * FLOAT_BYTES + self.drops * mask_bytes
        return rows * self.width * each


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A training step of one model: embeddings, layers, and the heads of a task."""

    config: ModelConfig
    head: tuple[Gemm, ...]
    """GEMMs after the layers, the pooler's among them. They see the padded batch."""
    head_passes: tuple[Pass, ...] = ()
    """Of the heads, what is worth timing."""
    head_vectors: int = 0
    """Parameters of the heads that belong to no GEMM, such as LayerNorm's."""

    @property
    def layers(self) -> tuple[Gemm, ...]:
        """The GEMMs of all layers, which every token passes."""
        hidden, inner, times = self.config.hidden_size, self.config.intermediate_size, self.config.num_layers
        return (
            Gemm(name="query, key, value", inner=hidden, columns=3 * hidden, times=times),
            Gemm(name="attention output", inner=hidden, columns=hidden, times=times),
            Gemm(name="feed-forward in", inner=hidden, columns=inner, times=times),
            Gemm(name="feed-forward out", inner=inner, columns=hidden, times=times),
        )

    @property
    def layer_passes(self) -> tuple[Pass, ...]:
        """GELU of the feed-forward layers, and what closes either half of a layer."""
        times = self.config.num_layers
        return (
            Pass(name="GELU", width=self.config.intermediate_size, times=times, narrow=5, kept_narrow=1),
            Pass(
                name="dropout, residual, norm", width=self.config.hidden_size, times=2 * times, narrow=2, wide=5,
                kept_wide=1, drops=True,
            ),
        )  # fmt: skip

    @property
    def embeddings(self) -> Pass:
        """Three look-ups, their sum, LayerNorm and dropout."""
        return Pass(name="embeddings", width=self.config.hidden_size, wide=5, kept_wide=1, drops=True)

    def attention_flops(self, squared_lengths: int) -> int:
        """Return FLOPs of one layer's scores and weighted values, forward and backward."""
        return 12 * self.config.hidden_size * squared_lengths

    def attention_traffic(self, tokens: int, element_bytes: int) -> int:
        """Return the least bytes of one layer's attention: queries, keys, values, result, and their gradients, each
        read and written where it must be.
        """
        return 12 * tokens * self.config.hidden_size * element_bytes

    def model_flops(self, counts: "BatchCounts") -> float:
        """Return FLOPs of one forward and backward pass over a batch with these counts."""
        gemms = sum(3 * gemm.times * gemm.model_flops(counts) for gemm in (*self.layers, *self.head))
        return float(gemms + self.config.num_layers * self.attention_flops(counts.squared_lengths))

    @property
    def head_parameters(self) -> int:
        """Parameters beside embeddings and layers, the vocabulary's padding included."""
        return self.head_vectors + sum(gemm.times * gemm.parameters for gemm in self.head)

    @property
    def parameters(self) -> int:
        """All parameters, including the vocabulary's padding."""
        config = self.config
        norm = _LAYER_NORM * config.hidden_size
        rows = config.padded_vocab_size + config.max_positions + config.type_vocab_size
        layers = sum(gemm.times * gemm.parameters for gemm in self.layers) + config.num_layers * 2 * norm
        return rows * config.hidden_size + norm + layers + self.head_parameters
