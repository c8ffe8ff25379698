"""Patches of torch and Accelerate for `bertbench measure`: each takes the recorder and a module just imported."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections import deque
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any


def optimizers(recorder: Any, module: Any) -> None:
    """Have torch.optim.optimizer call the recorder before and after every step of every optimizer.

    While torch.compile traces a step, its optimizer is only stored in the recorder; Dynamo repeats that after every
    call, without a break of the graph.
    """
    recorder.note("torch")

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if recorder.compiling():
            recorder.compiled = optimizer
        elif not _is_inner(sys._getframe(1)):
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            recorder.begin_update(visible=closure is None)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not recorder.compiling() and not _is_inner(sys._getframe(1)):
            recorder.end_step(optimizer)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    make = module.Optimizer.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.has_optimizer = True
        make(self, *args, **kwargs)

    module.Optimizer.__init__ = made


def passes(recorder: Any, module: Any) -> None:
    """Let the recorder know of every backward pass: `Tensor.backward` calls that of torch.autograd."""
    original = module.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.compiling():
            return original(tensors, *args, **kwargs)
        first = next(iter(tensors), None) if isinstance(tensors, (list, tuple)) else tensors
        recorder.device = getattr(first, "device", None)
        recorder.backward(begins=True)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            recorder.backward(begins=False)

    module.backward = backward


def _is_inner(frame: FrameType) -> bool:
    """Whether the step whose hook `frame` has called is inside the step of an optimizer, perhaps the same one's."""
    outer = frame.f_back
    while outer is not None and outer.f_code is not frame.f_code:
        outer = outer.f_back
    return outer is not None


def compiler(recorder: Any, module: Any) -> None:
    """Let the recorder know while torch.compile traces: what a hook does then would go into the script's graphs."""
    recorder.compiling = module.is_compiling


def compiled_functions(recorder: Any, module: Any) -> None:
    """Look after every call of a function of torch.compile whether it made an optimizer step."""
    original = module._TorchDynamoContext.__call__

    @functools.wraps(original)
    def compiled(self: Any, function: Any) -> Any:
        made = original(self, function)
        if not isinstance(made, FunctionType):  # such as a module: its forward comes here again
            return made

        @functools.wraps(made)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = made(*args, **kwargs)
            if recorder.compiled is not None and not recorder.compiling():
                optimizer, recorder.compiled = recorder.compiled, None
                recorder.begin_update(visible=False)
                recorder.end_step(optimizer)
            return result

        return watched

    module._TorchDynamoContext.__call__ = compiled


def loaders(recorder: Any, module: Any) -> None:
    """Time the beginning of every DataLoader's iterator, which starts its workers, and each batch up to their end."""
    beginning, following = module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__
    loads = recorder.loads

    @functools.wraps(beginning)
    def begin(self: Any) -> Any:
        began, waited = time.perf_counter_ns(), loads.waited_ns
        iterator = beginning(self)
        recorder.waited(began, waited, loads.opened, iterator, self)
        return iterator

    @functools.wraps(following)
    def timed(self: Any) -> Any:
        began, waited = time.perf_counter_ns(), loads.waited_ns
        try:
            batch = following(self)
        except StopIteration:
            recorder.waited(began, waited, loads.returned, self)
            raise
        recorder.waited(began, waited, loads.returned, self, batch)
        return batch

    module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__ = begin, timed


def accelerate(recorder: Any, module: Any) -> None:
    """Count a batch in the step that it feeds: Accelerate's loader reads one batch ahead of the one it returns."""
    original = module.DataLoaderShard.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        held: deque[Any] = deque()
        skipped = int(getattr(self, "skip_batches", 0) or 0)
        with contextlib.closing(original(self)) as batches:
            while True:
                recorder.loads.held = held
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                finally:
                    recorder.loads.held = None
                while skipped and held:
                    held.popleft()
                    skipped -= 1
                recorder.loads.release(held)
                yield batch
            recorder.loads.release(held)  # that the loader is exhausted

    module.DataLoaderShard.__iter__ = iterate


_ASIDE = {
    "torch.serialization": [("", "save", "checkpoints")],
    "transformers.trainer": [
        ("Trainer", "evaluate", "evaluation"),
        ("Trainer", "_save_checkpoint", "checkpoints"),
        ("Trainer", "train", ""),
    ],
    "lightning.pytorch.loops.evaluation_loop": [("_EvaluationLoop", "run", "evaluation")],
    "pytorch_lightning.loops.evaluation_loop": [("_EvaluationLoop", "run", "evaluation")],
}


def aside(recorder: Any, module: Any) -> None:
    """Time what evaluates or saves, and keep the figures that Hugging Face's Trainer reports of itself."""

    def watched(original: Any, kind: str) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = recorder.aside(kind, original, *args, **kwargs) if kind else original(*args, **kwargs)
            figures = getattr(result, "metrics", result)
            if isinstance(figures, dict):
                recorder.framework.update((name, one) for name, one in figures.items() if isinstance(one, (int, float)))
            return result

        return call

    for owner, name, kind in _ASIDE[module.__name__]:
        place = getattr(module, owner) if owner else module
        setattr(place, name, watched(getattr(place, name), kind))


def scaler(recorder: Any, module: Any) -> None:
    """Count a step that a GradScaler leaves out."""
    original = module.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        ended = recorder.ended
        result = original(self, optimizer, *args, **kwargs)
        if recorder.ended == ended:
            recorder.skipped += 1
            recorder.begin_update()
            recorder.end_step(optimizer)
        return result

    module.GradScaler.step = step


def profilers(recorder: Any, module: Any) -> None:
    """End the profile when one of the script's own is prepared or started."""

    def begin(original: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.profile is not None:
            recorder.profile.give_up("the script has a profiler of its own: PyTorch runs one per process")
        return original(*args, **kwargs)

    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(module, name, functools.partial(begin, getattr(module, name)))
