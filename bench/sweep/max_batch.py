"""The largest micro batch that fits into memory: a search by short trials, each in processes of its own."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.sweep.sweep import Measure
from common.memory import available_bytes
from common.reading import read_notes
from records.run import RunDirectory
from records.trial import Trial

# Steps that show a batch size fits: the first allocates the optimizer state, the second runs with it.
PROBE_STEPS = 3
PROOF_STEPS = 20


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """Outcome of the search."""

    micro_batch_size: int
    """The largest size that ran; 0 if not even 1 fits."""
    proved: bool
    """Whether it ran PROOF_STEPS steps and the next size ran out of memory or is above the limit."""
    fails_at: int | None
    """The smallest size that failed; None if the limit ended the search."""
    failure: str
    """Status and reason of that failure, or the reason that the search ended."""
    tried: tuple[tuple[int, str], ...]
    """Every (size, status) in the order tried."""


def free_memory_gib(run: RunDirectory) -> float:
    """Return what all ranks of a search on a CPU may take: 80 % of what its first call, by its request, found free."""
    notes = read_notes(run.sweep_json)
    before = [one.get("free_memory_gib") for one in (*notes.get("earlier", []), notes.get("request", {}))]
    return next(filter(None, before), None) or round(0.8 * available_bytes() / 2**30, 1)


def largest_batch(trial: Trial, limit: int, measure: Measure) -> MaxBatch:
    """Search upwards from `trial.micro_batch_size`; `measure` runs each trial in its own process.

    A size fits if its trial ends as ok, and is too large if it ends as oom. Any other status ends the search.
    """
    results: dict[int, Mapping[str, Any]] = {}
    tried: list[tuple[int, str]] = []

    def runs(size: int, steps: int) -> bool:
        probe = dataclasses.replace(trial, kind="probe", micro_batch_size=size, start_iteration=1, stop_iteration=steps)
        results[size] = measure(probe)
        tried.append((size, str(results[size]["status"])))
        return tried[-1][1] == "ok"

    def out_of_memory(size: int) -> bool:
        return bool(results[size]["status"] == "oom")

    fits, fails, size = 0, None, min(trial.micro_batch_size, limit)
    while fails is None and fits < limit:
        if runs(size, PROBE_STEPS):
            fits, size = size, min(2 * size, limit)
        else:
            fails = size
    while fails is not None and fails - fits > 1 and out_of_memory(fails):
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if runs(middle, PROBE_STEPS) else (fits, middle)
    # Memory can still grow after the first steps (fragmentation, longer batches): prove the size, step down if need be.
    while fits > 0 and not runs(fits, PROOF_STEPS):
        fails, fits = fits, fits - 1 if out_of_memory(fits) else 0
    if fails is None:
        reason = f"the limit of {limit} was reached without running out of memory"
        return MaxBatch(fits, True, None, reason, tuple(tried))
    reason = f"{results[fails]['status']}: {results[fails].get('reason', '')}"
    return MaxBatch(fits, fits > 0 and out_of_memory(fails), fails, reason, tuple(tried))
