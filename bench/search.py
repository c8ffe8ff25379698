"""The largest micro batch that fits: doubling, then bisection, then proof of both sides."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analysis.records import Trial

# Steps that show a batch size fits: the first allocates the optimizer state, the second runs with it.
PROBE_STEPS = 3
PROOF_STEPS = 20


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """Outcome of the search."""

    micro_batch_size: int
    """The largest size that ran PROOF_STEPS steps; 0 where not even 1 fits."""
    fails_at: int | None
    """The next larger size, which was shown to fail; None where `limit` ended the search."""
    failure: str
    """Status and reason of that failure, or what ended the search."""
    tried: tuple[tuple[int, str], ...]
    """Every (size, status) in the order of trying."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)


def find_max_batch(trial: Trial, run: Callable[[Trial], dict[str, Any]], limit: int) -> MaxBatch:
    """Search upwards from `trial.micro_batch_size`; `run` runs a trial in a process of its own and returns its result.

    A size fits when its trial ends with status ok and is too large when it ends as oom; any other end stops the search
    and is given back as its outcome.
    """
    tried: list[tuple[int, str]] = []
    results: dict[int, dict[str, Any]] = {}

    def status(size: int, steps: int) -> str:
        result = run(dataclasses.replace(trial, micro_batch_size=size, start_iteration=1, stop_iteration=steps))
        results[size] = result
        tried.append((size, str(result["status"])))
        return str(result["status"])

    def outcome(best: int, fails_at: int | None, failure: str) -> MaxBatch:
        return MaxBatch(best, fails_at, failure, tuple(tried))

    def describe(size: int) -> str:
        return f"{results[size]['status']}: {results[size].get('reason', '')}"

    fits, too_large = 0, None
    size = min(trial.micro_batch_size, limit)
    while too_large is None and fits < limit:
        end = status(size, PROBE_STEPS)
        if end == "ok":
            fits, size = size, min(2 * size, limit)
        elif end == "oom":
            too_large = size
        else:
            return outcome(fits, size, describe(size))
    while too_large is not None and too_large - fits > 1:
        middle = (fits + too_large) // 2
        end = status(middle, PROBE_STEPS)
        if end == "ok":
            fits = middle
        elif end == "oom":
            too_large = middle
        else:
            return outcome(fits, middle, describe(middle))
    # Memory can still grow after the first steps (fragmentation, longer batches): prove the size, step down if need be.
    while fits > 0:
        end = status(fits, PROOF_STEPS)
        if end == "ok":
            break
        if end != "oom":
            return outcome(0, fits, describe(fits))
        too_large, fits = fits, fits - 1
    if too_large is None:
        return outcome(fits, None, f"the limit of {limit} was reached without running out of memory")
    return outcome(fits, too_large, describe(too_large))
