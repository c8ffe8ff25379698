"""Callbacks that `bertbench measure` gives to the Trainers of Hugging Face and Lightning, and Accelerate's loaders.

The optimizer's hook times their steps as it does those of a plain loop. The callbacks write down which framework it is
and its settings, and count the steps of an engine whose optimizer is not torch's, such as DeepSpeed's.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any


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
                recorder.release(held)
                yield batch
            recorder.release(held)  # that the loader is exhausted

    module.DataLoaderShard.__iter__ = iterate


def hugging_face(recorder: Any, module: Any) -> None:
    """Add a callback to every transformers.Trainer."""
    callback = _callback(_HuggingFace, module.TrainerCallback, recorder, "transformers.Trainer")
    module.DEFAULT_CALLBACKS = [*module.DEFAULT_CALLBACKS, callback]


def lightning(recorder: Any, module: Any) -> None:
    """Add a callback to every Trainer of Lightning."""
    original = module.Trainer.__init__
    name = f"{module.__name__.rpartition('.trainer.trainer')[0]}.Trainer"
    callback = _callback(_Lightning, module.Callback, recorder, name)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recorder.guarded(lambda: self.callbacks.insert(0, callback()))

    module.Trainer.__init__ = init


def _callback(steps: type, base: type, recorder: Any, trainer: str) -> Any:
    """Return a class of the framework's callbacks; its objects are pickled as callbacks that do nothing.

    The process that unpickles one, such as a spawned rank, may lack the hook and its modules.
    """
    attributes = {"recorder": recorder, "trainer_name": trainer, "__reduce__": lambda self: (base, ())}
    return type("BertbenchMeasure", (steps, base), attributes)


class _HuggingFace:
    """Sees every step of a transformers.Trainer."""

    recorder: Any
    trainer_name: str

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        precision = "bf16" if getattr(args, "bf16", False) else "fp16" if getattr(args, "fp16", False) else None
        self.recorder.framework(
            name=self.trainer_name,
            grad_accum_steps=getattr(args, "gradient_accumulation_steps", None),
            micro_batch_size=getattr(args, "per_device_train_batch_size", None),
            mixed_precision=precision,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.recorder.engine_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.recorder.engine_ends(kwargs.get("optimizer"))


class _Lightning:
    """Sees every batch of a Trainer of Lightning."""

    recorder: Any
    trainer_name: str
    _global_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.recorder.framework(
            name=self.trainer_name,
            grad_accum_steps=getattr(trainer, "accumulate_grad_batches", None),
            mixed_precision=str(getattr(trainer, "precision", "")) or None,
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._global_step = trainer.global_step
        self.recorder.engine_begins()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self._global_step:
            self.recorder.engine_ends(next(iter(trainer.optimizers), None))
