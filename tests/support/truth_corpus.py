"""Recordings with known answers in the formats of profilers, and how far an answer may be from the truth."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support import recordings
from support.recording_formats import WRITERS
from support.recordings import Answers

RECORDINGS: dict[str, tuple[str, Callable[[int], tuple[Sequence[Any], Answers]]]] = {
    "kineto": ("kineto", recordings.one_gpu),
    "kineto-short": ("kineto", lambda seed: recordings.one_gpu(seed + 1, unit=37)),
    "kineto-queue": ("kineto", lambda seed: recordings.deep_queue(seed + 2)),
    "kineto-ranks": ("kineto", lambda seed: recordings.ranks(seed + 3)),
    "kineto-clocks": ("kineto", lambda seed: recordings.ranks(seed + 4, clocks=True)),
    "nsys": ("nsys", lambda seed: recordings.one_gpu(seed + 5)),
    "nsys-short": ("nsys", lambda seed: recordings.one_gpu(seed + 6, unit=37)),
    "nsys-queue": ("nsys", lambda seed: recordings.deep_queue(seed + 7)),
    "ncu": ("ncu", lambda seed: recordings.counters(seed + 8)),
}
"""Format, and what makes the parts to write and the answers from a seed, by name.

In the short ones kernels last 0.04 to 15 us, and times are no whole number of microseconds.
"""
_COUNTS = ("steps", "kernel_calls", "last_rank")
_SHARES = ("kernel_utilization", "sm_weighted_utilization", "overlap_share", "pipe_utilization")


class Fact(NamedTuple):
    """A number of a recording that is known because of how the recording is made."""

    name: str
    """recording:quantity, with what it is of in brackets."""
    truth: float
    allowed: float
    """The largest error of a right answer."""


def write_corpus(folder: Path, seed: int) -> list[Fact]:
    """Write recordings into folders of their names and return what is known of them."""
    facts = []
    for name, (form, make) in RECORDINGS.items():
        (folder / name).mkdir(parents=True)
        parts, answers = make(seed)
        for part in parts:
            WRITERS[form](part, folder / name)
        facts += [
            Fact(f"{name}:{quantity}" + f"[{of}]" * bool(of), value, _allowed(quantity, value))
            for (quantity, of), value in answers.items()
        ]
    return facts


def _allowed(quantity: str, truth: float) -> float:
    if quantity in _COUNTS:
        return 0.0
    return 5e-4 if quantity in _SHARES else 1e-3 * abs(truth)
