"""The matrix products of a training step, at the shapes they have. Imports no torch.

Every weight matrix is multiplied three times: y = x W^T, the gradient of its input dx = dy W, and its own gradient
dW = dy^T x; each takes 2 x rows x inner x columns FLOPs, which is where the 6 of bert.model.flops comes from.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert.model.config import ModelConfig
from bert.tasks import known_tasks, task_data
from common.errors import UsageError
from records.components import Component

if TYPE_CHECKING:
    from bert.data.batch import BatchCounts

DIRECTIONS = ("forward", "input gradient", "weight gradient")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What of a batch is really computed."""

    tokens: int
    """Rows of the products of the layers."""
    squared_lengths: int
    """Sum over sequences, or packed rows, of the square of the length that attention is computed on."""
    name: str
    """padded, unpadded or packed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One weight matrix of [columns, inner], multiplied with [rows, inner]."""

    name: str
    group: str
    """Of records.components.GROUPS."""
    rows: int
    inner: int
    columns: int
    times: int = 1
    """How often there is such a matrix in a step."""
    model_rows: int
    model_columns: int

    def components(self, element_bytes: int) -> Iterator[Component]:
        """Yield its three products, each of factors and results of so many bytes an element."""
        sizes = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        for direction in DIRECTIONS:
            yield Component(
                name=f"{self.name}, {direction}",
                group=self.group,
                shape=_shape(direction, self.rows, self.inner, self.columns),
                calls_per_step=self.times,
                model_flops=2.0 * self.model_rows * self.inner * self.model_columns,
                computed_flops=2.0 * self.rows * self.inner * self.columns,
                bytes=float(element_bytes * sizes),
            )


def _shape(direction: str, rows: int, inner: int, columns: int) -> str:
    left, right = {
        "forward": (f"{rows} x {inner}", f"{inner} x {columns}"),
        "input gradient": (f"{rows} x {columns}", f"{columns} x {inner}"),
        "weight gradient": (f"{columns} x {rows}", f"{rows} x {inner}"),
    }[direction]
    return f"[{left}] [{right}]"


def padded_layout(counts: "BatchCounts") -> Layout:
    """Every sequence as long as the batch is wide."""
    width = counts.padded_tokens // max(1, counts.samples)
    return Layout(tokens=counts.padded_tokens, squared_lengths=counts.samples * width * width, name="padded")


def unpadded_layout(counts: "BatchCounts") -> Layout:
    """Every sequence as long as it is."""
    return Layout(tokens=counts.real_tokens, squared_lengths=counts.squared_lengths, name="unpadded")


def packed_layout(rows: int, columns: int) -> Layout:
    """Rows that sequences share, each as long as the batch is wide."""
    return Layout(tokens=rows * columns, squared_lengths=rows * columns * columns, name="packed")


def layer_products(config: ModelConfig, counts: "BatchCounts", layout: Layout) -> list[Product]:
    """Return the weight matrices of all layers."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "query, key, value": (hidden, 3 * hidden),
        "attention output": (hidden, hidden),
        "feed-forward in": (hidden, inner),
        "feed-forward out": (inner, hidden),
    }
    return [
        Product(
            name=name, group="layers", rows=layout.tokens, inner=width, columns=columns, times=config.num_layers,
            model_rows=counts.real_tokens, model_columns=columns,
        )
        for name, (width, columns) in shapes.items()
    ]  # fmt: skip


def attention_component(config: ModelConfig, counts: "BatchCounts", layout: Layout, element_bytes: int) -> Component:
    """Return scores, softmax, dropout and weighted values of one layer, forward and backward.

    Q K^T and the weighted values take 2 n^2 H FLOPs each for a sequence of n tokens, three times that with backward. At
    least queries, keys, values and the result have to be read and written, and so for their gradients.
    """
    return Component(
        name="attention",
        group="attention",
        shape=f"{counts.samples} sequences, {config.num_heads} heads, {layout.tokens} tokens",
        calls_per_step=config.num_layers,
        model_flops=12.0 * config.hidden_size * counts.squared_lengths,
        computed_flops=12.0 * config.hidden_size * layout.squared_lengths,
        bytes=12.0 * layout.tokens * config.hidden_size * element_bytes,
    )


def check_heads(task: str) -> None:
    """Refuse a task with heads of its own. Raises UsageError."""
    if not task_data(task).heads:
        known = [name for name in known_tasks() if task_data(name).heads]
        raise UsageError(
            "option-choice", f"speed-of-light knows the parts of the tasks {', '.join(known)}, not of {task!r}"
        )


def head_products(
    task: str, config: ModelConfig, counts: "BatchCounts", layout: Layout, labels: int = 0
) -> list[Product]:
    """Return the weight matrices of a task's heads.

    Args:
        task: a name in bert.tasks.
        config: shape of the model.
        counts: of the batch.
        layout: what of it is computed.
        labels: classes of a classification.

    Raises:
        UsageError: a task whose heads are not known here.
    """
    check_heads(task)
    return HEADS[task_data(task).heads](config, counts, layout, labels)


def _head(name: str, rows: int, inner: int, columns: int, **model: int) -> Product:
    usual = {"model_rows": rows, "model_columns": columns}
    return Product(name=name, group="head", rows=rows, inner=inner, columns=columns, **{**usual, **model})


def _pretraining(config: ModelConfig, counts: "BatchCounts", layout: Layout, labels: int) -> list[Product]:
    hidden, predicted = config.hidden_size, counts.predicted_positions
    return [
        _head("head transform", predicted, hidden, hidden),
        _head("head decoder", predicted, hidden, config.padded_vocab_size, model_columns=config.vocab_size),
        _head("pooler", counts.samples, hidden, hidden),
        _head("next sentence", counts.samples, hidden, 2),
    ]


def _questions(config: ModelConfig, counts: "BatchCounts", layout: Layout, labels: int) -> list[Product]:
    return [_head("answer span", layout.tokens, config.hidden_size, 2, model_rows=counts.real_tokens)]


def _classification(config: ModelConfig, counts: "BatchCounts", layout: Layout, labels: int) -> list[Product]:
    hidden = config.hidden_size
    return [_head("pooler", counts.samples, hidden, hidden), _head("classifier", counts.samples, hidden, labels)]


HEADS: Mapping[str, Callable[[ModelConfig, "BatchCounts", Layout, int], list[Product]]] = {
    "masked words": _pretraining,
    "answer spans": _questions,
    "classes": _classification,
}
"""By bert.tasks.data.Heads."""
