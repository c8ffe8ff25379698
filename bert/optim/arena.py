"""One piece of memory for the gradients of a model, the same in every step.

Gradients lie in the order in which a backward pass is done with them: heads, the last layer to the first, embeddings.
They are cut into segments of whole layers; when one is complete it can be reduced, while the pass goes on.

Linear layers with a copy of their weight (bert.speed.copies) write its gradient where it belongs; autograd gets none,
but calls the weight's hooks. Others come from autograd, in memory of their own, and are moved when their segment is
complete, at once.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from bert.speed.copies import LOW, has_low_gradients

SEGMENTS = 4
_ALIGNMENT = 256  # bytes


def segments_of(model: nn.Module, bucket_mib: int | None = None) -> list[list[nn.Parameter]]:
    """Return the trained parameters of a model, the last registered first, as segments of one type each.

    They end between layers, which are those of the longest list of modules; with `bucket_mib` after so many MiB. A
    gradient is never divided.
    """
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    layers = list(reversed(max(lists, key=len, default=nn.ModuleList())))
    count = min(SEGMENTS, len(layers))
    of_layer = {each: n * count // len(layers) for n, layer in enumerate(layers) for each in layer.parameters()}
    found, segment, filled = list[list[nn.Parameter]](), 0, 0
    for parameter in reversed([each for each in model.parameters() if each.requires_grad]):
        before, segment = segment, of_layer.get(parameter, segment)
        full = segment != before if bucket_mib is None else filled >= bucket_mib << 20
        if not found or full or found[-1][0].dtype != parameter.dtype:
            found.append([])
            filled = 0
        found[-1].append(parameter)
        filled += parameter.nbytes
    return found


class Arena:
    """The memory. Gradients are float32, or bf16 where copies leave them so, and one that is not used stays None.

    Args:
        model: its segments' parameters are on their device.
        segments: what lies in the arena.
        reduce: called with the gradients of each segment in one tensor when they are complete, in the order of the
            segments; those that are not used are then 0.
        moves: whether gradients of autograd are moved here.
    """

    def __init__(
        self, model: nn.Module, segments: Sequence[Sequence[nn.Parameter]],
        reduce: Callable[[Tensor], None] | None = None, moves: bool = True,
    ) -> None:  # fmt: skip
        self._segments, self._reduce = segments, reduce
        every = list(itertools.chain(*segments))
        kinds = {each: LOW if has_low_gradients(each) else each.dtype for each in every}
        sizes = [-(-each.numel() * kinds[each].itemsize // _ALIGNMENT) * _ALIGNMENT for each in every]
        self.memory = torch.zeros(sum(sizes), dtype=torch.uint8, device=every[0].device)
        pieces = zip(every, self.memory.split(sizes), strict=True)
        self._views = {
            each: piece[: each.numel() * kinds[each].itemsize].view(kinds[each]).view(each.shape)
            for each, piece in pieces
        }
        ends = [0, *itertools.accumulate(len(segment) for segment in segments)]
        spans = [(sum(sizes[:begin]), sum(sizes[:end])) for begin, end in itertools.pairwise(ends)]
        self._slices = [self.memory[begin:end] for begin, end in spans]
        self._place = {each: number for number, segment in enumerate(segments) for each in segment}
        self._waiting: list[set[Tensor]] = []
        # A word's gradient comes from two sides: only one of bf16 is added up in place.
        shared = {part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
        for parameter, view in self._views.items():
            if parameter not in shared or view.dtype == LOW:
                parameter.gradient_writer = partial(_write, view)  # type: ignore[attr-defined]
            if moves:
                parameter.register_post_accumulate_grad_hook(self._ready)

    def begin(self, last: bool) -> None:
        """Note that a micro-step begins, the last one of an update or not."""
        self._waiting = [set(segment) for segment in self._segments] if last else []

    def _ready(self, parameter: nn.Parameter) -> None:
        if self._waiting:
            self._waiting[self._place[parameter] - len(self._segments)].discard(parameter)
            self._complete(lambda waiting: not waiting)

    def finish(self) -> None:
        """Complete the segments of gradients that are not used, after the backward pass."""
        self._complete(lambda waiting: True)

    @torch.no_grad()
    def _complete(self, is_due: Callable[[set[Tensor]], bool]) -> None:
        """Move the gradients of the next segments that are due, in their order, and hand them on."""
        while self._waiting and is_due(self._waiting[0]):
            number = len(self._segments) - len(self._waiting)
            del self._waiting[0]
            views, grads = list[Tensor](), list[Tensor]()
            for parameter in self._segments[number]:
                view, grad = self._views[parameter], parameter.grad
                if grad is None and self._reduce is not None:
                    view.zero_()
                elif grad is not None and grad is not view:
                    views.append(view)
                    grads.append(grad)
                parameter.grad = None if grad is None and self._reduce is None else view
            if views:
                torch._foreach_copy_(views, grads)
            if self._reduce is not None:
                self._reduce(self._slices[number].view(self._segments[number][0].dtype))


def _write(view: Tensor, parameter: Tensor, product: Callable[..., Tensor]) -> None:
    """Add what `product` returns, or writes to `out`, a bf16 matrix, to a parameter's gradient."""
    if parameter.grad is not None:
        parameter.grad.add_(product())
    else:
        parameter.grad = product(out=view) if view.dtype == LOW else view.copy_(product())
