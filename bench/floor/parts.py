"""The parts of a step of this suite's BERT, each callable alone at its true shape.

bert.model.step describes the parts. They call the same code as the model (attention, dropout, embeddings, the losses of
the heads, the optimizer), on tensors with the types that autocast produces. Parts other than GEMMs run forward and
backward in one call.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bert.data.batch import Batch, Unpadded
from bert.model.encoder import EncoderOutput
from bert.model.heads import label_loss, span_losses
from bert.model.step import FLOAT_BYTES, Extent, Gemm, Pass, Step
from bert.optim.fused import FusedAdamW
from bert.speed.copies import LOW, copy_of, has_low_gradients
from bert.speed.elementwise import Product, gelu, residual_norm
from bert.speed.kernels import usable
from bert.speed.layers import FastEncoder
from bert.speed.native import loops
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.train.loop import Training
from records.components import Component


class Part(NamedTuple):
    """One part of a step."""

    component: Component
    run: Callable[[], object]


def make_part(run: Callable[[], object], name: str, group: str, shape: str, calls: int, **numbers: float) -> Part:
    """Return a part; `numbers` are FLOPs and bytes of a call, as Component names them."""
    return Part(Component(name=name, group=group, shape=shape, calls_per_step=calls, **numbers), run)


class Subject:
    """The step of this suite's BERT, and how its layers compute it."""

    def __init__(self, task: Task, step: Step, model: Any, training: Training, batch: Batch) -> None:
        """Take the description of a step, its model, not wrapped by a strategy, and a typical batch, on the device."""
        self.task, self.step, self.model, self.training, self.batch = task, step, model, training, batch
        self.device, self.dtype = training.strategy.device, training.precision.matmul_dtype
        # Positions of the tokens that the layers compute; None if they compute the padded batch.
        fast = isinstance(model.encoder, FastEncoder)
        self.placed: Unpadded | None = model.encoder.placed(batch.mask, batch.layout) if fast else None
        self.padded = Extent.padded(batch.counts)
        self.extent = self.padded if self.placed is None else Extent.unpadded(batch.counts)
        # Whether GPU kernels compute the elementwise parts: they add biases and return no float32 hidden states.
        self.by_kernels = fast and usable(self.tensor(1))
        # Whether the layers also return hidden states in the type of the GEMMs (bert.speed.elementwise).
        self.fused = self.by_kernels or (fast and self.device.type == "cpu" and loops() is not None)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False) -> Tensor:
        """Return normally distributed numbers, by default in the type of a GEMM."""
        values = torch.randn(shape, device=self.device).to(dtype or self.dtype)
        return values.requires_grad_(grad)


_DIRECTIONS = ("forward", "input gradient", "weight gradient")
Forward = Callable[[], Tensor | tuple[Tensor, ...]]


def make_parts(subject: Subject) -> list[Part]:
    """Return all parts of a step, most frequent first."""
    layers, heads, padded = subject.step.layers, subject.step.head, subject.padded
    return [
        *(part for gemm in layers for part in _gemm_parts(subject, gemm, subject.extent, "layers")),
        *(part for gemm in heads if gemm.rows(padded) for part in _gemm_parts(subject, gemm, padded, "head")),
        *(_attention(subject), *_elementwise(subject), _embeddings(subject), *_head_passes(subject)),
        *(*_copies(subject), _optimizer(subject)),
    ]


def _gemm_parts(subject: Subject, gemm: Gemm, extent: Extent, group: str) -> Iterator[Part]:
    m, k, n = gemm.rows(extent), gemm.inner, gemm.columns
    x, weight, bias, grad = (subject.tensor(*shape) for shape in ((m, k), (n, k), (n,), (m, n)))
    products = (lambda: F.linear(x, weight, bias), lambda: grad.mm(weight), lambda: grad.t().mm(x))
    sizes = ((m, k, n), (m, n, k), (n, m, k))
    for direction, (rows, inner, columns), run in zip(_DIRECTIONS, sizes, products, strict=True):
        yield make_part(
            torch.no_grad()(run),
            f"{gemm.name}, {direction}",
            group,
            f"[{rows} x {inner}] [{inner} x {columns}]",
            gemm.times,
            model_flops=float(gemm.model_flops(subject.batch.counts)),
            computed_flops=2.0 * m * k * n,
            bytes=float(subject.dtype.itemsize * (rows * inner + inner * columns + rows * columns)),
        )


def _both_ways(subject: Subject, forward: Forward, inputs: Sequence[Tensor]) -> Callable[[], object]:
    """Return what runs a forward pass under autocast and computes the gradients of `inputs`."""
    autocast = subject.training.precision.autocast
    with autocast(), torch.no_grad():
        result = forward()
    grad = torch.randn_like(result) if isinstance(result, Tensor) else tuple(map(torch.randn_like, result))

    def run() -> object:
        with autocast():
            result = forward()
        return torch.autograd.grad(result, inputs, grad)

    return run


def _attention(subject: Subject) -> Part:
    step, batch, extent = subject.step, subject.batch, subject.extent
    placed, layer = subject.placed, subject.model.encoder.layers[0].attention
    where: Unpadded | Tensor | None = placed
    ids = batch.tensors["input_ids"]
    if placed is not None:
        ids = placed.take(ids)
    elif batch.mask is not None:
        where = batch.mask.bool()[:, None, None, :]
    qkv = subject.tensor(*ids.shape, 3 * step.config.hidden_size, grad=True)
    return make_part(
        _both_ways(subject, lambda: layer.context(qkv, where), [qkv]),
        "attention",
        "attention",
        f"{extent.sequences} sequences, {step.config.num_heads} heads, {extent.tokens} tokens",
        step.config.num_layers,
        model_flops=float(step.attention_flops(batch.counts.squared_lengths)),
        computed_flops=float(step.attention_flops(extent.squared_lengths)),
        bytes=float(step.attention_traffic(extent.tokens, subject.dtype.itemsize)),
    )


def _elementwise(subject: Subject) -> Iterator[Part]:
    """Yield GELU, and what closes either half of a layer."""
    rows, (activation, closing) = subject.extent.tokens, subject.step.layer_passes
    fused, kernels, dropout = subject.fused, subject.by_kernels, subject.step.config.hidden_dropout
    x, y = (subject.tensor(rows, each.width, grad=True) for each in (activation, closing))
    biases = [subject.tensor(each.width, dtype=torch.float32, grad=True) for each in (activation, closing) if kernels]
    product = Product(x, biases[0] if kernels else None)
    activate = (lambda: gelu(product)[0]) if fused else (lambda: F.gelu(x))
    yield _pass(subject, activation, "elementwise", activate, [x, *biases[:1]])
    residual = subject.tensor(rows, closing.width, dtype=None if kernels else torch.float32, grad=True)
    norm = torch.nn.LayerNorm(closing.width, eps=subject.step.config.layer_norm_eps).to(subject.device)
    twice = kernels or (fused and y.dtype != residual.dtype)
    if kernels:  # forward: two inputs, one result; backward: both inputs, two gradients in, two out
        closing = replace(closing, narrow=9, wide=0)
    elif twice:  # also the result in the type of the GEMMs, and its gradient
        closing = replace(closing, narrow=closing.narrow + 2)

    def dropout_residual_norm() -> Tensor | tuple[Tensor, ...]:
        if not fused:
            plain: Tensor = norm(F.dropout(y, dropout) + residual)
            return plain
        result = residual_norm(Product(y, biases[1] if kernels else None), residual, norm, dropout)
        return result[:2] if twice else result.wide

    inputs = [y, residual, *norm.parameters(), *biases[1:]]
    yield _pass(subject, closing, "elementwise", dropout_residual_norm, inputs)


def _embeddings(subject: Subject) -> Part:
    embeddings, placed, config = subject.model.encoder.embeddings, subject.placed, subject.step.config
    ids, types = (subject.batch.tensors[name] for name in ("input_ids", "token_type_ids"))
    columns = None
    if placed is not None:
        ids, types, columns = placed.take(ids), placed.take(types), placed.position_ids
    words = embeddings.word.weight
    low = has_low_gradients(words)
    used = [p for p in embeddings.parameters() if p.requires_grad and not (low and p is words)]
    shape = f"{subject.extent.tokens} x {config.hidden_size} of {config.padded_vocab_size} words"
    part = _pass(
        subject, subject.step.embeddings, "elementwise", lambda: embeddings(ids, types, None, columns), used, shape
    )
    gradient = torch.zeros_like(words, dtype=LOW) if low else None

    def adding() -> None:  # to the gradient that the masked-word head leaves in a step
        words.grad = gradient
        part.run()
        words.grad = None

    return part._replace(run=adding) if low else part


def _pass(
    subject: Subject, described: Pass, group: str, forward: Forward, inputs: Sequence[Tensor], shape: str = "",
    further_bytes: int = 0,
) -> Part:  # fmt: skip
    rows = (subject.padded if group == "head" else subject.extent).rows(described.over)
    moved = float(described.traffic(rows, subject.dtype.itemsize) + further_bytes)
    run = _both_ways(subject, forward, inputs)
    return make_part(run, described.name, group, shape or f"{rows} x {described.width}", described.times, bytes=moved)


def _head_passes(subject: Subject) -> Iterator[Part]:
    """Yield the parts of the heads other than GEMMs; those of a pooler and of single labels are too small to time."""
    heads, passes = task_data(subject.task.name).heads, subject.step.head_passes
    tensors, predicted = subject.batch.tensors, subject.batch.counts.predicted_positions
    size, length = tensors["input_ids"].shape
    if heads == "masked words" and predicted:
        gather, transform, loss = passes
        rows = (size, length) if subject.placed is None else (subject.placed.tokens,)
        hidden = subject.tensor(*rows, gather.width, dtype=torch.float32, grad=True)
        encoded, positions = EncoderOutput(hidden, None, subject.placed), tensors["masked_positions"]
        yield _pass(
            subject, gather, "head", lambda: encoded.predicted(positions), [hidden],
            f"{predicted} of {math.prod(rows)}", hidden.nbytes,  # the whole gradient is written
        )  # fmt: skip
        x = subject.tensor(predicted, transform.width, grad=True)
        norm = torch.nn.LayerNorm(transform.width, eps=subject.step.config.layer_norm_eps).to(subject.device)
        yield _pass(subject, transform, "head", lambda: norm(F.gelu(x)), [x, *norm.parameters()])
        logits = subject.tensor(predicted, loss.width, grad=True)
        words, labels = subject.model.masked_words, tensors["masked_labels"]
        yield _pass(subject, loss, "head", lambda: words.loss(logits, labels), [logits])
    elif heads == "answer spans":
        spans = subject.tensor(size, 2, length, dtype=torch.float32, grad=True)
        targets = torch.stack([tensors["start_positions"], tensors["end_positions"]], dim=1)
        shape = f"{size} x 2 x {length}"
        yield _pass(subject, passes[0], "head", lambda: span_losses(spans, targets).sum(), [spans], shape)
    elif heads == "classes":
        scores = subject.tensor(size, passes[0].width, dtype=torch.float32, grad=True)
        regression = bool(getattr(subject.task, "regression", False))
        yield _pass(subject, passes[0], "head", lambda: label_loss(scores, tensors["labels"], regression), [scores])


def _copies(subject: Subject) -> Iterator[Part]:
    """Yield work that better kernels would avoid: gradient sums and casts between precisions. Its floor is 0."""
    config, dtype, layers = subject.step.config, subject.dtype, subject.step.layers
    rows, hidden, depth = subject.extent.tokens, config.hidden_size, config.num_layers
    summed = layers
    if subject.by_kernels:  # these compute the other gradients of biases
        summed = layers[: 0 if subject.placed is not None and dtype.itemsize == 2 else 1]
    grads = [subject.tensor(rows, gemm.columns) for gemm in summed]
    if grads:
        shape = f"{rows} x {', '.join(str(gemm.columns) for gemm in summed)}"
        yield make_part(lambda: [grad.sum(0) for grad in grads], "bias gradients", "copies", shape, depth)
    one, other = (subject.tensor(rows, hidden, dtype=torch.float32) for _ in range(2))
    # Kernels with two results do this too, except after the embeddings.
    sums = 1 if subject.fused and dtype != torch.float32 else 2 * depth
    if not subject.by_kernels:
        yield make_part(lambda: one + other, "residual gradients", "copies", f"{rows} x {hidden}", sums)
    low = has_low_gradients(subject.model.encoder.layers[0].intermediate.weight)
    if task_data(subject.task.name).heads == "masked words" and not low:  # as an input, and as the decoder
        words = [subject.tensor(config.padded_vocab_size, hidden, dtype=torch.float32) for _ in range(2)]
        shape = f"{config.padded_vocab_size} x {hidden}"
        yield make_part(lambda: words[0] + words[1], "word embedding's gradients", "copies", shape, 1)
    if dtype == torch.float32:
        return
    narrow = subject.tensor(rows, hidden)
    if not subject.by_kernels:
        shape = f"{rows} x {hidden}, there and back"
        yield make_part(lambda: (one.to(dtype), narrow.float()), "casts of activations", "copies", shape, sums)
    if low:
        return
    copied = copy_of(subject.model.encoder.layers[0].intermediate.weight) is not None
    heads = [gemm for gemm in subject.step.head if gemm.rows(subject.padded)]
    yield _weight_casts(subject, "layer", layers, depth, copied)
    yield _weight_casts(subject, "heads", heads, 1, copied)


def _weight_casts(subject: Subject, name: str, gemms: Sequence[Gemm], calls: int, copied: bool) -> Part:
    """Return the casts of weights, unless they have copies, and of gradients, which are as large, back."""
    wide = [subject.tensor(gemm.columns, gemm.inner, dtype=torch.float32) for gemm in gemms]
    half = [weight.to(subject.dtype) for weight in wide]
    shape = f"{sum(weight.numel() for weight in wide):,} weights{'' if copied else ' there'}, gradients back"

    def cast() -> None:
        for weight in [] if copied else wide:
            weight.to(subject.dtype)
        for grad in half:
            grad.float()

    return make_part(cast, f"casts of weights, {name}", "copies", shape, calls)


def _optimizer(subject: Subject) -> Part:
    """Return the optimizer update on constant gradients; the steps here do not clip."""
    training, optimizer = subject.training, subject.training.optimizer
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [torch.full_like(p, 1e-6, dtype=LOW if has_low_gradients(p) else p.dtype) for p in parameters]
    count = sum(parameter.numel() for parameter in parameters)

    def update() -> None:
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # keeps the weights unchanged
        training.strategy.step(optimizer, training.precision, False)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    # AdamW reads parameter, gradient and two moments, and writes all except the gradient.
    moved = 6 * FLOAT_BYTES * count + sum(grad.nbytes for grad in grads)
    for parameter, grad in zip(parameters, grads, strict=True):
        copy = copy_of(parameter)
        if copy is not None and (isinstance(optimizer, FusedAdamW) or grad.dtype == LOW):
            moved += copy.values.nbytes
    return make_part(update, "optimizer", "optimizer", f"{count:,} parameters", 1, bytes=float(moved))
