"""The largest micro batch that fits: doubling, then bisection, then proof of both sides."""

import dataclasses
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from records.trial import Trial

# Steps that show a batch size fits: the first allocates the optimizer state, the second runs with it.
PROBE_STEPS = 3
PROOF_STEPS = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """Outcome of the search."""

    micro_batch_size: int
    """The largest size that ran; 0 where not even 1 fits."""
    proved: bool
    """Whether it ran PROOF_STEPS steps, and the next one (a step of the search larger) was shown to fail for memory or
    the limit was reached."""
    fails_at: int | None
    """The smallest size that was shown to fail; None where the limit ended the search."""
    failure: str
    """Status and reason of that failure, or what ended the search."""
    tried: tuple[tuple[int, str], ...]
    """Every (size, status) in the order of trying."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)


Probes = Generator[Trial, Mapping[str, Any], T]
"""Yields trials and is sent their results, as bench.plan.variants.explore runs it."""


class _Search:
    """Asks for probes and remembers how they ended."""

    def __init__(self, trial: Trial, step: int) -> None:
        self._trial = dataclasses.replace(trial, kind="probe")
        self._step = step
        self.tried: list[tuple[int, str]] = []
        self.results: dict[int, Mapping[str, Any]] = {}

    def ends(self, size: int, steps: int) -> Probes[str]:
        """Return the status of `steps` steps at micro batch `size`."""
        result = yield dataclasses.replace(
            self._trial, micro_batch_size=size, start_iteration=1, stop_iteration=steps
        )  # fmt: skip
        self.results[size] = result
        self.tried.append((size, str(result["status"])))
        return str(result["status"])

    def failed_for_memory(self, size: int) -> bool:
        """Return whether the last trial of that size ended as oom."""
        return bool(self.results[size]["status"] == "oom")

    def bounds(self, start: int, limit: int) -> Probes[tuple[int, int | None]]:
        """Return the largest size that ran and the smallest that did not (None: the limit was reached)."""
        fits, fails, size = 0, None, min(start, limit)
        while fails is None and fits < limit:
            end = yield from self.ends(size, PROBE_STEPS)
            if end == "ok":
                fits, size = size, min(2 * size, limit)
            else:
                fails = size
        # Below the step too as long as nothing fits: "0" says that not even 1 does.
        while fails is not None and fails - fits > (self._step if fits else 1) and self.failed_for_memory(fails):
            half = (fails - fits) // 2
            middle = fits + (half - half % self._step if half > self._step else half)
            end = yield from self.ends(middle, PROBE_STEPS)
            fits, fails = (middle, fails) if end == "ok" else (fits, middle)
        return fits, fails


def largest_batch(trial: Trial, limit: int, step: int = 1) -> Probes[MaxBatch]:
    """Search upwards from `trial.micro_batch_size`; each trial is to be run in a process of its own.

    A size fits when its trial ends with status ok and is too large when it ends as oom. Any other end stops the search:
    it says nothing about memory, so what was found is then not proved to be the largest. With a `step` the search ends
    when what fits and what fails are so far apart: a search by 32 has five trials fewer than one by 1.
    """
    search = _Search(trial, step)
    fits, fails = yield from search.bounds(trial.micro_batch_size, limit)
    # Memory can still grow after the first steps (fragmentation, longer batches): prove the size, step down if need be.
    while fits > 0 and (yield from search.ends(fits, PROOF_STEPS)) != "ok":
        fails = fits
        smaller = fits - step if fits > step else fits // 2
        fits = smaller if search.failed_for_memory(fits) else 0
    tried = tuple(search.tried)
    if fails is None:
        return MaxBatch(fits, True, None, f"the limit of {limit} was reached without running out of memory", tried)
    failure = search.results[fails]
    proved = fits > 0 and failure["status"] == "oom"
    return MaxBatch(fits, proved, fails, f"{failure['status']}: {failure.get('reason', '')}", tried)
