"""Everything a step of this suite's BERT is made of, each part ready to be called alone at its true shape.

What the model calls is called here too (attention, dropout, embeddings, the heads' losses, the optimizer), on tensors
of the types that autocast gives them. Forward and backward of a part that is no product are one call.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.steplight.products import (
    Layout,
    Product,
    attention_component,
    head_products,
    layer_products,
    packed_layout,
    padded_layout,
    unpadded_layout,
)
from bert.data.batch import Batch
from bert.model.attention import Where
from bert.model.config import ModelConfig
from bert.model.heads import gather_positions, label_loss, mean_cross_entropy, span_losses
from bert.model.packing import Packed
from bert.model.sequences import Unpadded
from bert.optim.precision import Precision
from bert.speed.copies import LOW, copy_of, has_low_gradients
from bert.speed.elementwise import gelu, residual_norm
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.train.loop import Training
from records.components import Component

_CLIPPING_NORM = 1.0
# A forward pass, of one result or several, and their gradients.
Forward = Callable[[], Tensor | tuple[Tensor, ...]]
Grad = Tensor | tuple[Tensor, ...]
# Bytes of an element in float32, what is kept of a parameter and its optimizer.
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step."""

    component: Component
    """What it is, and what it has to do."""
    run: Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The step whose parts are wanted."""

    task: Task
    config: ModelConfig
    model: Any
    """The model, on its device, not wrapped by a strategy."""
    training: Training
    batch: Batch
    """A typical batch, on the device."""

    @property
    def precision(self) -> Precision:
        """Of the products."""
        return self.training.precision

    @property
    def device(self) -> torch.device:
        """Where."""
        return self.training.strategy.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the factors of a product."""
        return self.precision.matmul_dtype

    @property
    def layout(self) -> Layout:
        """What of the batch the layers compute."""
        placed = self.placed
        if isinstance(placed, Packed):
            return packed_layout(len(placed.mask), placed.columns)
        return padded_layout(self.batch.counts) if placed is None else unpadded_layout(self.batch.counts)

    @property
    def mask(self) -> Tensor | None:
        """Mask [B, S] of the batch; None where all tokens are real."""
        full = self.batch.counts.real_tokens == self.batch.counts.padded_tokens
        return None if full else self.batch.tensors["attention_mask"]

    @property
    def placed(self) -> Unpadded | Packed | None:
        """Where the tokens lie that the layers compute; None where they compute the padded batch."""
        found: Unpadded | Packed | None = self.model.encoder.placed(self.mask)
        return found

    @property
    def fused(self) -> bool:
        """Whether the layers give their hidden states in the type of the products too (bert.speed.elementwise)."""
        return bool(self.model.encoder.layers[0].fused)

    def norm_dtype(self) -> torch.dtype:
        """Of what LayerNorm gives, which the residual connections carry on."""
        with self.precision.autocast():
            return F.layer_norm(torch.zeros(1, 8, device=self.device), (8,)).dtype

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False) -> Tensor:
        """Return normal numbers of the type of a product, or another."""
        values = torch.randn(*shape, device=self.device).to(dtype or self.dtype)
        return values.requires_grad_(grad)


def make_parts(subject: Subject) -> list[Part]:
    """Return all parts of a step, those that are done most first.

    Raises:
        UsageError: a task whose heads are not known.
    """
    config, counts, layout = subject.config, subject.batch.counts, subject.layout
    labels = int(getattr(subject.task, "labels", 0))
    heads = head_products(subject.task.name, config, counts, padded_layout(counts), labels)
    layers = layer_products(config, counts, layout)
    found = [part for product in (*layers, *heads) if product.rows for part in _product_parts(subject, product)]
    found += [_attention(subject), *_elementwise(subject), *_head_losses(subject)]
    found += [*_copies(subject, layers, heads), *_optimizer(subject)]
    return found


def _product_parts(subject: Subject, product: Product) -> Iterator[Part]:
    x, weight = subject.tensor(product.rows, product.inner), subject.tensor(product.columns, product.inner)
    bias, grad = subject.tensor(product.columns), subject.tensor(product.rows, product.columns)
    runs = (lambda: F.linear(x, weight, bias), lambda: grad.mm(weight), lambda: grad.t().mm(x))
    for component, run in zip(product.components(subject.dtype.itemsize), runs, strict=True):
        yield Part(component, _without_gradients(run))


def _without_gradients(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def without() -> Tensor:
        with torch.no_grad():
            return run()

    return without


def _both_ways(
    subject: Subject, forward: Forward, inputs: Sequence[Tensor], grad: Grad | None = None
) -> Callable[[], object]:
    """Return a call that makes a forward pass under autocast, and the gradients of `inputs` from `grad`."""

    def run() -> object:
        with subject.precision.autocast():
            result = forward()
        return torch.autograd.grad(result, inputs, grad)

    return run


def _grad_of(subject: Subject, forward: Forward) -> Grad:
    with subject.precision.autocast(), torch.no_grad():
        result = forward()
    return torch.randn_like(result) if isinstance(result, Tensor) else tuple(map(torch.randn_like, result))


def _attention(subject: Subject) -> Part:
    config, batch, mask = subject.config, subject.batch, subject.mask
    placed, layer = subject.placed, subject.model.encoder.layers[0].attention
    where: Where = placed.mask if isinstance(placed, Packed) else placed
    ids = batch.tensors["input_ids"]
    if placed is None:
        where = None if mask is None else mask.bool()[:, None, None, :]
    else:
        ids = placed.take(ids)
    qkv = subject.tensor(*ids.shape, 3 * config.hidden_size, grad=True)

    def forward() -> Tensor:
        found: Tensor = layer.context(qkv, where)
        return found

    component = attention_component(config, batch.counts, subject.layout, subject.dtype.itemsize)
    return Part(component, _both_ways(subject, forward, [qkv], _grad_of(subject, forward)))


def _elementwise(subject: Subject) -> Iterator[Part]:
    config, rows, kept = subject.config, subject.layout.tokens, subject.norm_dtype()
    hidden, inner = config.hidden_size, config.intermediate_size
    x = subject.tensor(rows, inner, grad=True)
    yield _part(
        subject, "GELU", "elementwise", lambda: gelu(x, subject.fused), [x],
        f"{rows} x {inner}", config.num_layers, 5 * x.nbytes,
    )  # fmt: skip
    y, residual = subject.tensor(rows, hidden, grad=True), subject.tensor(rows, hidden, dtype=kept, grad=True)
    norm = torch.nn.LayerNorm(hidden, eps=config.layer_norm_eps).to(subject.device)

    twice = subject.fused and y.dtype != residual.dtype

    def dropout_residual_norm() -> Tensor | tuple[Tensor, ...]:
        result = residual_norm(y, residual, norm, config.hidden_dropout, subject.fused)
        return result if twice else result.wide

    yield _part(
        subject, "dropout, residual, norm", "elementwise", dropout_residual_norm, [y, residual, *norm.parameters()],
        f"{rows} x {hidden}", 2 * config.num_layers, (2 + 2 * twice) * y.nbytes + 5 * residual.nbytes,
    )  # fmt: skip
    embeddings, placed = subject.model.encoder.embeddings, subject.placed
    ids, types = (subject.batch.tensors[name] for name in ("input_ids", "token_type_ids"))
    columns = None
    if placed is not None:
        ids, types, columns = placed.take(ids), placed.take(types), placed.position_ids()

    def embed() -> Tensor:
        result: Tensor = embeddings(ids, types, None, columns)
        return result

    words = embeddings.word.weight
    used = [p for p in embeddings.parameters() if p.requires_grad and not (p is words and has_low_gradients(words))]
    part = _part(
        subject, "embeddings", "elementwise", embed, used,
        f"{rows} x {hidden} of {config.padded_vocab_size} words", 1, 5 * rows * hidden * _FLOAT,
    )  # fmt: skip
    yield _adding_to(words, part) if has_low_gradients(words) else part


def _adding_to(weight: Tensor, part: Part) -> Part:
    """Make a part that adds to the gradient of `weight`, as where the predictions have left one."""
    gradient = torch.zeros_like(weight, dtype=LOW)

    def run() -> None:
        weight.grad = gradient
        part.run()
        weight.grad = None

    return Part(part.component, run)


def _part(
    subject: Subject,
    name: str,
    group: str,
    forward: Forward,
    inputs: Sequence[Tensor],
    shape: str,
    calls: int,
    traffic: float,
) -> Part:
    """Make a part that memory bounds, forward and backward."""
    component = Component(name=name, group=group, shape=shape, calls_per_step=calls, bytes=float(traffic))
    return Part(component, _both_ways(subject, forward, inputs, _grad_of(subject, forward)))


def _head_losses(subject: Subject) -> Iterator[Part]:
    """What of the heads is no product; of a pooler and of single labels that is too little to time."""
    heads, tensors, counts = task_data(subject.task.name).heads, subject.batch.tensors, subject.batch.counts
    config, predicted = subject.config, counts.predicted_positions
    size, length = tensors["input_ids"].shape
    if heads == "masked words" and predicted:
        hidden = subject.tensor(size, length, config.hidden_size, dtype=subject.norm_dtype(), grad=True)
        yield _part(
            subject, "gather", "head", lambda: gather_positions(hidden, tensors["masked_positions"]), [hidden],
            f"{predicted} of {size * length}", 1, hidden.nbytes + 3 * hidden.nbytes * predicted / (size * length),
        )  # fmt: skip
        x = subject.tensor(predicted, config.hidden_size, grad=True)
        norm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps).to(subject.device)
        yield _part(
            subject, "head GELU, norm", "head", lambda: norm(F.gelu(x)), [x, *norm.parameters()],
            f"{predicted} x {config.hidden_size}", 1, 5 * x.nbytes,
        )  # fmt: skip
        logits = subject.tensor(predicted, config.padded_vocab_size, grad=True)
        yield _part(
            subject, "cross-entropy", "head", lambda: mean_cross_entropy(logits, tensors["masked_labels"]), [logits],
            f"{predicted} x {config.padded_vocab_size}", 1, 3 * logits.nbytes,
        )  # fmt: skip
    elif heads == "answer spans":
        spans = subject.tensor(size, 2, length, dtype=torch.float32, grad=True)
        targets = torch.stack([tensors["start_positions"], tensors["end_positions"]], dim=1)
        yield _part(
            subject, "cross-entropy", "head", lambda: span_losses(spans, targets).sum(), [spans],
            f"{size} x 2 x {length}", 1, 3 * spans.nbytes,
        )  # fmt: skip
    elif heads == "classes":
        labels = int(getattr(subject.task, "labels", 1))
        scores = subject.tensor(size, labels, dtype=torch.float32, grad=True)
        regression = bool(getattr(subject.task, "regression", False))
        yield _part(
            subject, "cross-entropy", "head", lambda: label_loss(scores, tensors["labels"], regression), [scores],
            f"{size} x {labels}", 1, 3 * scores.nbytes,
        )  # fmt: skip


def _copies(subject: Subject, layers: Sequence[Product], heads: Sequence[Product]) -> Iterator[Part]:
    """Work that better kernels would not have: sums of gradients, and casts between precisions. Its floor is 0."""
    config, kept, dtype = subject.config, subject.norm_dtype(), subject.dtype
    rows, hidden, depth = subject.layout.tokens, config.hidden_size, config.num_layers
    grads = [subject.tensor(product.rows, product.columns) for product in layers]

    def copies(name: str, shape: str, calls: int, run: Callable[[], object]) -> Part:
        return Part(Component(name=name, group="copies", shape=shape, calls_per_step=calls), run)

    shape = f"{rows} x {', '.join(str(product.columns) for product in layers)}"
    yield copies("bias gradients", shape, depth, lambda: [grad.sum(0) for grad in grads])
    one, other = (subject.tensor(rows, hidden, dtype=kept) for _ in range(2))
    # Kernels that give their result twice do this too, but not behind the embeddings.
    sums = 1 if subject.fused and kept != dtype else 2 * depth
    yield copies("residual gradients", f"{rows} x {hidden}", sums, lambda: one + other)
    low = has_low_gradients(subject.model.encoder.layers[0].intermediate.weight)
    if task_data(subject.task.name).heads == "masked words" and not low:  # as an input, and as the decoder
        words = [subject.tensor(config.padded_vocab_size, hidden, dtype=torch.float32) for _ in range(2)]
        shape = f"{config.padded_vocab_size} x {hidden}"
        yield copies("word embedding's gradients", shape, 1, lambda: words[0] + words[1])
    if kept != dtype:
        narrow = subject.tensor(rows, hidden)
        yield copies(
            "casts of activations", f"{rows} x {hidden}, there and back", sums,
            lambda: (one.to(dtype), narrow.to(kept)),
        )  # fmt: skip
    if dtype != torch.float32 and not low:
        copied = copy_of(subject.model.encoder.layers[0].intermediate.weight) is not None
        for name, products, calls in (("layer", layers, depth), ("heads", [p for p in heads if p.rows], 1)):
            wide = [subject.tensor(p.columns, p.inner, dtype=torch.float32) for p in products]
            half = [weight.to(dtype) for weight in wide]
            count = sum(weight.numel() for weight in wide)
            yield copies(
                f"casts of weights, {name}", f"{count:,} weights{'' if copied else ' there'}, gradients back", calls,
                _cast_both([] if copied else wide, half, dtype),
            )  # fmt: skip


def _cast_both(wide: Sequence[Tensor], half: Sequence[Tensor], dtype: torch.dtype) -> Callable[[], object]:
    def run() -> None:
        for weight in wide:
            weight.to(dtype)
        for grad in half:
            grad.float()

    return run


def _optimizer(subject: Subject) -> Iterator[Part]:
    """The update that steps make, on gradients that stay as they are; and clipping, which steps here do not do."""
    training = subject.training
    parameters = [p for group in training.optimizer.param_groups for p in group["params"]]
    grads = [torch.full_like(p, 1e-6, dtype=LOW if has_low_gradients(p) else p.dtype) for p in parameters]
    count = sum(parameter.numel() for parameter in parameters)

    def lend() -> None:
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad

    def update() -> None:
        lend()
        rates = [group["lr"] for group in training.optimizer.param_groups]
        for group in training.optimizer.param_groups:
            group["lr"] = 0.0  # the weights stay what they are
        training.strategy.step(training.optimizer, training.precision, False)
        for group, rate in zip(training.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def clip() -> None:
        lend()
        torch.nn.utils.clip_grad_norm_(parameters, _CLIPPING_NORM)
        training.optimizer.zero_grad(set_to_none=True)

    # AdamW reads parameter, gradient and two moments, and writes all but the gradient.
    parts = (("optimizer", 1, 7, update), ("clipping", int(training.max_grad_norm is not None), 3, clip))
    for name, calls, passes, run in parts:
        component = Component(
            name=name, group="optimizer", shape=f"{count:,} parameters", calls_per_step=calls,
            bytes=float(passes * _FLOAT * count),
        )  # fmt: skip
        yield Part(component, run)
