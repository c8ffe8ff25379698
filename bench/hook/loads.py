"""Which batches fed a step of a script: what the iterators of its DataLoaders returned since the step before.

The iterator that fed the step before feeds this one too if it is still open and returned a batch. Otherwise the open
one that was read last does, or the last of all. If the one before was exhausted and is of the same DataLoader, both
feed the step: gradients were accumulated over the end of an epoch. Batches of other iterators, such as an evaluation's,
are not counted, but the time to wait for them is.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 3


def count_batch(batch: Any) -> tuple[Any, Any, Any]:
    """Return samples (first dimension), tokens that attention_mask keeps, and all tokens; None where not visible."""
    if type(batch) in (list, tuple) and batch and all(map(_is_array, batch)):  # the usual one, quickly
        return int(batch[0].shape[0]), None, None
    named = [part for part in map(_named, _parts(batch)) if part]
    graphs = next((part["num_graphs"] for part in named if isinstance(part.get("num_graphs"), int)), None)
    counted = next((pair for pair in map(_ids, named) if pair), [])
    tensor = counted[0][0] if counted else next(filter(_is_array, _parts(batch)), None)
    samples = graphs if tensor is None or graphs is not None else int(tensor.shape[0])
    if not counted:
        return samples, None, None
    # The sum of a mask on a GPU would wait for it.
    masks = [mask for _, mask in counted if getattr(mask, "is_cpu", False) and len(mask.shape) == 2]
    real = sum(int((mask != 0).sum()) for mask in masks) if len(masks) == len(counted) else None
    return samples, real, sum(int(ids.shape[0]) * int(ids.shape[1]) for ids, _ in counted)


def _ids(named: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the word pieces [B, S] of a batch, of several texts a sample each, with their masks."""
    names = [name for name in named if str(name).endswith("input_ids") and not str(name).startswith("decoder")]
    found = [(named[name], named.get(f"{str(name)[:-9]}attention_mask")) for name in names]
    return [(ids, mask) for ids, mask in found if _is_array(ids) and len(ids.shape) == 2]


def _named(value: Any) -> Mapping[str, Any]:
    """Return the fields of a mapping, a data class, a named tuple, or an object such as PyTorch Geometric's batches."""
    if isinstance(value, Mapping):
        return value
    if hasattr(value, "num_graphs"):
        return {**value.to_dict(), "num_graphs": int(value.num_graphs)}
    fields: Any = getattr(value, "__dataclass_fields__", None) or getattr(value, "_fields", ())
    return {} if isinstance(value, type) else {name: getattr(value, name, None) for name in fields}


def _is_array(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0


def _parts(value: Any, depth: int = 0) -> Iterator[Any]:
    """A value and everything inside it, in order, no further than it is asked for."""
    yield value
    inner: Any = value if isinstance(value, (list, tuple)) else _named(value).values()
    for one in inner if depth < _DEEPEST else ():
        yield from _parts(one, depth + 1)


def _add(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


class _Reading:
    """One pass of an iterator: what it returned since the last step."""

    def __init__(self, iterator: Any, loader: Any) -> None:
        self.iterator = weakref.ref(iterator)
        self.loader = None if loader is None else weakref.ref(loader)
        self.exhausted = self.begun_anew = False
        self.clear()

    def clear(self) -> None:
        self.batches = 0
        self.counts: list[Any] = [0, 0, 0]

    def is_open(self) -> bool:
        return not self.exhausted and not self.begun_anew and self.iterator() is not None


class Loads:
    """The batches of a process since its last step."""

    def __init__(self) -> None:
        self.waited_ns = 0
        """How long the script has waited for its loaders, from its beginning."""
        self.held: deque[Any] | None = None
        """Where batches go that are read ahead; None where the script gets them at once."""
        self._readings: weakref.WeakKeyDictionary[Any, _Reading] = weakref.WeakKeyDictionary()
        self._read: list[_Reading] = []  # since the last step; the last one read at the end
        self._feeding: _Reading | None = None
        self._waited_before = 0

    def opened(self, iterator: Any, loader: Any = None) -> _Reading:
        """Take in an iterator; it may be one that the loader returned before, begun anew."""
        if iterator in self._readings:
            self._readings[iterator].begun_anew = True
        self._readings[iterator] = _Reading(iterator, loader)
        return self._readings[iterator]

    def returned(self, iterator: Any, *batch: Any) -> None:
        """Take in a batch, or without one that the iterator is exhausted."""
        reading = self._readings.get(iterator) or self.opened(iterator)
        self._take(reading, count_batch(*batch) if batch else None)

    def release(self, held: deque[Any]) -> None:
        """Take in the first of what was read ahead: the script gets it now."""
        if held:
            self._take(*held.popleft())

    def _take(self, reading: _Reading, counts: tuple[Any, Any, Any] | None) -> None:
        if self.held is not None:
            self.held.append((reading, counts))
        elif counts is None:
            reading.exhausted = True
        else:
            self._read = [one for one in self._read if one is not reading] + [reading]
            reading.batches += 1
            reading.counts[:] = map(_add, reading.counts, counts)

    def end_step(self) -> tuple[Any, ...]:
        """Return what fed the step that ends: wait in ns, samples, real tokens, padded tokens; None where unknown."""
        if not self._read and self._feeding is None:
            return None, None, None, None
        feeding = self._feeding_now()
        counts: list[Any] = [0, 0, 0]
        for reading in feeding:
            counts[:] = map(_add, counts, reading.counts)
        for reading in self._read:
            reading.clear()
        self._read = []
        self._feeding = feeding[-1] if feeding else self._feeding
        wait, self._waited_before = self.waited_ns - self._waited_before, self.waited_ns
        return wait, *counts

    def _feeding_now(self) -> list[_Reading]:
        if not self._read:
            return []
        before = self._feeding
        if before is not None and before.batches and before.is_open():
            return [before]
        last = next((one for one in reversed(self._read) if one.is_open()), self._read[-1])
        if before is None or before is last or not before.exhausted:
            return [last]
        return [before, last] if before.loader is not None and before.loader == last.loader else [last]
