"""Which batches fed a step of a script: what the iterators of its DataLoaders returned since the step before.

The iterator that fed the step before feeds this one too if it is still open and returned a batch. Otherwise the open
one that was read last does, or the last of all. If the one before was exhausted and is of the same DataLoader, both
feed the step: gradients were accumulated over the end of an epoch. Batches of other iterators, such as an evaluation's,
are not counted, but the time to wait for them is.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

_DEEPEST = 3

Counts = tuple[Any, Any, Any]  # samples, real tokens, padded tokens; None where a batch does not show them


def count_batch(batch: Any) -> Counts:
    """Return samples (first dimension), tokens that attention_mask keeps, and all tokens; None where not visible."""
    if type(batch) in (list, tuple) and batch and all(map(_is_array, batch)):  # the usual one, quickly
        return int(batch[0].shape[0]), None, None
    named = _first(batch, lambda value: isinstance(value, Mapping))
    ids: Any = None if named is None else named.get("input_ids")
    mask: Any = None if named is None else named.get("attention_mask")
    tensor = ids if _is_array(ids) else _first(batch, _is_array)
    samples = None if tensor is None else int(tensor.shape[0])
    if getattr(mask, "is_cpu", False) and len(mask.shape) == 2:  # the sum of a mask on a GPU would wait for it
        return samples, int((mask != 0).sum()), int(mask.numel())
    if _is_array(ids) and len(ids.shape) == 2:
        return samples, None, int(ids.shape[0]) * int(ids.shape[1])
    return samples, None, None


def _is_array(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0


def _first(value: Any, wanted: Callable[[Any], bool], depth: int = 0) -> Any:
    if wanted(value):
        return value
    if depth < _DEEPEST and isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            found = _first(part, wanted, depth + 1)
            if found is not None:
                return found
    return None


def _add(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


class _Iterator:
    """What an iterator returned since the last step."""

    def __init__(self, loader: Any, iterator: Any) -> None:
        self.loader = None if loader is None else weakref.ref(loader)
        self.itself = weakref.ref(iterator)
        self.exhausted = False
        self.clear()

    def clear(self) -> None:
        self.batches = 0
        self.counts: list[Any] = [0, 0, 0]


class Loads:
    """The batches of a process since its last step."""

    def __init__(self) -> None:
        self.waited_ns = 0
        """How long the script has waited for its loaders, from its beginning."""
        self.held: deque[Any] | None = None
        """Where batches go that are read ahead; None where the script gets them at once."""
        self._iterators: weakref.WeakKeyDictionary[Any, _Iterator] = weakref.WeakKeyDictionary()
        self._read: list[_Iterator] = []  # since the last step; the last one read at the end
        self._feeding: _Iterator | None = None
        self._waited_before = 0
        self._seen = False

    def opened(self, loader: Any, iterator: Any) -> None:
        """Take in that a loader returned an iterator; it may be one that it returned before, begun anew."""
        self._iterators[iterator] = _Iterator(loader, iterator)

    def returned(self, iterator: Any, batch: Any) -> None:
        """Take in a batch."""
        counts = count_batch(batch)
        found = self._iterators.get(iterator)
        if found is None:
            found = self._iterators[iterator] = _Iterator(None, iterator)
        self._take(found, counts)

    def exhausted(self, iterator: Any) -> None:
        """Take in that an iterator has no further batch."""
        found = self._iterators.get(iterator)
        if found is not None:
            self._take(found, None)

    def release(self, held: deque[Any]) -> None:
        """Take in the first of what was read ahead: the script gets it now."""
        if held:
            self._take(*held.popleft())

    def _take(self, iterator: _Iterator, counts: Counts | None) -> None:
        if self.held is not None:
            self.held.append((iterator, counts))
            return
        if counts is None:
            iterator.exhausted = True
            return
        self._seen = True
        if iterator in self._read:
            self._read.remove(iterator)
        self._read.append(iterator)
        iterator.batches += 1
        iterator.counts[:] = map(_add, iterator.counts, counts)

    def end_step(self) -> tuple[Any, ...]:
        """Return what fed the step that ends: wait in ns, samples, real tokens, padded tokens; None where unknown."""
        if not self._seen:
            return None, None, None, None
        feeding = self._feeding_now()
        counts: list[Any] = [0, 0, 0]
        for iterator in feeding:
            counts[:] = map(_add, counts, iterator.counts)
        for iterator in self._read:
            iterator.clear()
        self._read.clear()
        if feeding:
            self._feeding = feeding[-1]
        wait, self._waited_before = self.waited_ns - self._waited_before, self.waited_ns
        return wait, *counts

    def _feeding_now(self) -> list[_Iterator]:
        if not self._read:
            return []
        before = self._feeding
        if before is not None and before.batches and self._is_open(before):
            return [before]
        last = next(filter(self._is_open, reversed(self._read)), self._read[-1])
        if before is None or before is last or not before.exhausted:
            return [last]
        return [before, last] if before.loader is not None and before.loader == last.loader else [last]

    def _is_open(self, iterator: _Iterator) -> bool:
        """Whether the script can read on; an iterator begun anew has another `_Iterator`."""
        itself = iterator.itself()
        return not iterator.exhausted and itself is not None and self._iterators.get(itself) is iterator
