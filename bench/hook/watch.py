"""Patches of torch for `bertbench measure`: each function takes the recorder and a module that was just imported."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any


def optimizers(recorder: Any, module: Any) -> None:
    """Have torch.optim.optimizer call the recorder before and after every step of every optimizer."""
    recorder.note("torch")
    module.register_optimizer_step_pre_hook(recorder.before_step)
    module.register_optimizer_step_post_hook(recorder.after_step)


def loaders(recorder: Any, module: Any) -> None:
    """Time the beginning of every DataLoader's iterator, which starts its workers, and each batch up to their end."""
    beginning, following = module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__
    loads = recorder.loads

    @functools.wraps(beginning)
    def begin(self: Any) -> Any:
        began, waited = time.perf_counter_ns(), loads.waited_ns
        iterator = beginning(self)
        recorder.waited(began, waited, lambda: loads.opened(self, iterator))
        return iterator

    @functools.wraps(following)
    def timed(self: Any) -> Any:
        began, waited = time.perf_counter_ns(), loads.waited_ns
        try:
            batch = following(self)
        except StopIteration:
            recorder.waited(began, waited, lambda: loads.exhausted(self))
            raise
        recorder.waited(began, waited, lambda: loads.returned(self, batch))
        return batch

    module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__ = begin, timed


def scaler(recorder: Any, module: Any) -> None:
    """Tell the recorder of a step that a GradScaler leaves out."""
    original = module.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        ended = recorder.ended_count
        result = original(self, optimizer, *args, **kwargs)
        if recorder.ended_count == ended:
            recorder.skipped_step(optimizer)
        return result

    module.GradScaler.step = step


def compiler(recorder: Any, module: Any) -> None:
    """Let the recorder know while torch.compile traces: what a hook does then would go into the script's graphs."""
    recorder.compiling = module.is_compiling


def compiled_functions(recorder: Any, module: Any) -> None:
    """Look after every call of a function of torch.compile whether it made an optimizer step.

    While it is traced, the hook of the optimizer only stores that optimizer in the recorder; Dynamo repeats that after
    every call, without a break of the graph.
    """
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
                recorder.compiled_step()
            return result

        return watched

    module._TorchDynamoContext.__call__ = compiled


def profilers(recorder: Any, module: Any) -> None:
    """Tell the profile when a profiler of the script's own is prepared or started, and when it ends."""
    profile = recorder.profile
    if profile is None:
        return

    def told(work: Callable[..., Any], before: Callable[[], None], after: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(work)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before()
            try:
                return work(*args, **kwargs)
            finally:
                after()

        return watched

    for name in ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy"):
        if hasattr(module, name):
            setattr(module, name, told(getattr(module, name), profile.script_begins, _nothing))
    for name in ("_disable_profiler", "_disable_profiler_legacy"):
        if hasattr(module, name):
            setattr(module, name, told(getattr(module, name), _nothing, profile.script_ends))


def _nothing() -> None:
    pass
