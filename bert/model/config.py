"""The shape of a BERT model and its published presets."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from common.errors import UsageError
from common.registry import lookup
from common.train_spec import TrainSpec

BERT_UNCASED_VOCAB_SIZE = 30522


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Shape and dropout of a BERT encoder (Devlin et al. 2018, table in section 3)."""

    num_layers: int
    """Number of transformer layers."""
    hidden_size: int
    """Width of the hidden states, a multiple of num_heads."""
    num_heads: int
    """Number of attention heads."""
    intermediate_size: int
    """Width of the feed-forward layer, 4 x hidden_size in the published models."""
    vocab_size: int = BERT_UNCASED_VOCAB_SIZE
    """Number of real word pieces, before padding."""
    vocab_multiple: int = 8
    """The embedding is padded to a multiple of this, which suits tensor cores; 1 disables padding."""
    max_positions: int = 512
    """Longest sequence in tokens."""
    type_vocab_size: int = 2
    """Number of segment types; 0 leaves segment embeddings out (DistilBERT)."""
    hidden_dropout: float = 0.1
    """Dropout probability after embeddings, attention output and feed-forward output."""
    attention_dropout: float = 0.1
    """Dropout probability of the attention weights."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in LayerNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the normal initial weights."""

    def __post_init__(self) -> None:
        """Refuse invalid shapes."""
        for name in ("num_layers", "hidden_size", "num_heads", "intermediate_size", "vocab_size", "vocab_multiple"):
            if getattr(self, name) < 1:
                raise UsageError("option-value", f"{name}={getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise UsageError(
                "option-value",
                f"hidden_size={self.hidden_size} is not a multiple of num_heads={self.num_heads}; "
                f"use {self.hidden_size // self.num_heads * self.num_heads} or change num_heads",
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UsageError("option-value", f"{name}={getattr(self, name)} must be in [0, 1)")

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word embedding: vocab_size rounded up to vocab_multiple."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def token_work(self) -> int:
        """Work of a token in the linear layers of a layer, 8 H^2 + 4 H I FLOPs (I: intermediate size), in 4 H FLOPs."""
        return 2 * self.hidden_size + self.intermediate_size

    def replace(self, **changes: int | float) -> "ModelConfig":
        """Return a copy with `changes`."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def _bert(num_layers: int, hidden_size: int, num_heads: int, type_vocab_size: int = 2) -> ModelConfig:
    return ModelConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        intermediate_size=4 * hidden_size,
        type_vocab_size=type_vocab_size,
    )


# tiny .. medium: Turc et al. 2019 (arXiv 1908.08962); base, large: Devlin et al. 2018; distilbert: Sanh et al. 2019.
PRESETS: dict[str, ModelConfig] = {
    "tiny": _bert(2, 128, 2),
    "mini": _bert(4, 256, 4),
    "small": _bert(4, 512, 8),
    "medium": _bert(8, 512, 8),
    "base": _bert(12, 768, 12),
    "large": _bert(24, 1024, 16),
    "distilbert": _bert(6, 768, 12, type_vocab_size=0),
}


def preset(name: str) -> ModelConfig:
    """Return the preset called `name`. Raises UsageError that lists the names."""
    return lookup(PRESETS, name, "preset")


# What a shape in words says, besides the vocabulary and what is drawn or dropped; the first four have no default.
_SHAPE = {
    "num_layers": int, "hidden_size": int, "num_heads": int, "intermediate_size": int, "max_positions": int,
    "type_vocab_size": int, "layer_norm_eps": float,
}  # fmt: skip


def shape_in_words(config: ModelConfig) -> str:
    """Return the shape as `shape_from_words` takes it: "num_layers=6 hidden_size=384 ...", what is usual left out."""
    usual = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    return " ".join(f"{name}={getattr(config, name)}" for name in _SHAPE if getattr(config, name) != usual[name])


def shape_from_words(text: str) -> ModelConfig:
    """Return the shape that "num_layers=6 hidden_size=384 num_heads=12 intermediate_size=1536 ..." describes."""
    try:
        pairs = [word.partition("=") for word in text.split()]
        values: dict[str, Any] = {name: _SHAPE[name](value) for name, _, value in pairs}
        return ModelConfig(**values)
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(
            "option-value",
            f"{text!r} does not describe a model shape: give words such as {shape_in_words(PRESETS['base'])!r}",
        ) from error


def model_config(spec: TrainSpec) -> ModelConfig:
    """Return the model of a training; sequences longer than it has positions for get them. Raises UsageError."""
    shape = shape_from_words(spec.shape) if spec.shape else preset(spec.preset)
    return shape.replace(
        vocab_size=spec.vocab_size,
        hidden_dropout=spec.dropout,
        attention_dropout=spec.dropout,
        max_positions=max(shape.max_positions, spec.seq_len),
    )


def preset_of(config: ModelConfig) -> str | None:
    """Return the name of the preset that has this shape, vocabulary and dropout aside; None if there is none."""
    words = shape_in_words(config)
    return next((name for name, shape in PRESETS.items() if shape_in_words(shape) == words), None)
