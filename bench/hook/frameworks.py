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
                recorder.loads.release(held)
                yield batch
            recorder.loads.release(held)  # that the loader is exhausted

    module.DataLoaderShard.__iter__ = iterate


def hugging_face(recorder: Any, module: Any) -> None:
    """Add a callback to every transformers.Trainer."""

    class BertbenchMeasure(module.TrainerCallback):  # type: ignore[misc]
        __reduce__ = _plain(module.TrainerCallback)

        def on_train_begin(self, args: Any, *rest: Any, **kwargs: Any) -> None:
            recorder.framework = _known(
                name="transformers.Trainer",
                grad_accum_steps=getattr(args, "gradient_accumulation_steps", None),
                micro_batch_size=getattr(args, "per_device_train_batch_size", None),
                mixed_precision=next((name for name in ("bf16", "fp16") if getattr(args, name, False)), None),
            )

        def on_step_begin(self, *rest: Any, **kwargs: Any) -> None:
            self.ended = recorder.ended

        def on_step_end(self, *rest: Any, optimizer: Any = None, **kwargs: Any) -> None:
            _end_step(recorder, optimizer, self.ended)

    module.DEFAULT_CALLBACKS = [*module.DEFAULT_CALLBACKS, BertbenchMeasure]


def lightning(recorder: Any, module: Any) -> None:
    """Add a callback to every Trainer of Lightning."""

    class BertbenchMeasure(module.Callback):  # type: ignore[misc]
        __reduce__ = _plain(module.Callback)

        def on_train_start(self, trainer: Any, *rest: Any) -> None:
            recorder.framework = _known(
                name=f"{module.__name__.rpartition('.trainer.trainer')[0]}.Trainer",
                grad_accum_steps=getattr(trainer, "accumulate_grad_batches", None),
                mixed_precision=str(getattr(trainer, "precision", "")) or None,
            )

        def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
            self.made, self.ended = trainer.global_step, recorder.ended

        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if trainer.global_step > self.made:
                _end_step(recorder, next(iter(trainer.optimizers), None), self.ended)

    original = module.Trainer.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.callbacks.insert(0, BertbenchMeasure())

    module.Trainer.__init__ = init


def _plain(base: type) -> Any:
    """Have a callback pickled as one that does nothing: a spawned rank may lack the hook and its modules."""
    return lambda self: (base, ())


def _known(**facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if isinstance(value, (str, int))}


def _end_step(recorder: Any, optimizer: Any, ended: int) -> None:
    """Count a step of a Trainer, unless an optimizer of torch has made it."""
    if optimizer is not None and recorder.ended == ended:
        recorder.begin_update(visible=False)
        recorder.end_step(optimizer)
