"""Search by measuring for the fastest micro batch, strategy, activation checkpointing and buckets on given devices.

The grid of all combinations is not run. Of each strategy the micro batch doubles until samples/s fall, until a trial
runs out of memory, or until the next one is expected to; then the best is refined between its neighbors. Activation
checkpointing adds work and saves memory: it is tried only if memory ended the growth, from the size that did not fit.
Buckets change the communication of the best configuration alone and are tried there, in the direction that helps. The
fastest two are measured again, so that a lucky trial does not win; whatever was faster than they then are is measured
again too, in turns with the best, until analysis.metrics.comparison.ratio tells them apart or the trials for
that are spent.
"""

import dataclasses
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analysis import wording
from analysis.metrics.comparison.ratio import Candidate, choose, decided
from bert.model.memory import Memory, predict_memory
from bert.parallel import devices_per_rank
from bert.parallel.options import OPTIONS, options_text, read_options
from records.trial import Trial

# A smaller gain is within the spread of short trials.
_GAIN = 0.01
# A drop that ends the growth at once; otherwise two consecutive sizes without gain do.
_FALL = 0.03
_MOST_WITHOUT_GAIN = 2
_BUCKETS = "bucket_mib"
# Memory that PyTorch needs for itself.
_USUAL_BUCKET_MIB = 25
_FINALISTS = 2
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A trial that the search requests."""

    trial: Trial
    predicted_bytes: int | None
    """Peak memory of a rank predicted by bert.model.memory; None for a given model."""
    expected_bytes: int | None
    """Expected peak memory, corrected by earlier measurements; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured(Asked):
    """The result of a trial."""

    status: str
    """Status as in records.trial."""
    samples_per_second: float | None
    """Over all devices; None if not measured."""
    peak_memory_bytes: int | None
    reason: str = ""
    trial_id: str = ""
    interval: tuple[float, float] | None = None
    """95 % interval of samples_per_second within its process; None if its steps give none."""

    @property
    def rate(self) -> float:
        """Samples per second; 0 if not measured."""
        return (self.samples_per_second or 0.0) if self.status == "ok" else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """The search space."""

    strategies: tuple[tuple[str, str], ...]
    """(name, options) in the order tried."""
    first_batch: int = 1
    last_batch: int = 4096
    recompute: tuple[bool, ...] = (False, True)
    """The values of activation checkpointing to try."""
    buckets_mib: tuple[int, ...] = (5, 10, 50, 100)
    """Bucket sizes to try besides the strategy's own, if it has one; empty for none."""
    limit_bytes: int | None = None
    """Memory of a rank; None if unknown."""
    accumulation: Callable[[int], int | None] = lambda size: 1
    """Micro-steps per update for a micro batch; None if the micro batch is not possible."""
    rounds: int = 2
    """Times to measure the fastest two again; 0 repeats no trial."""
    decide_trials: int = 12
    """Maximum trials after those rounds to distinguish the fastest from similar ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a search."""

    best: Measured | None
    """The fastest; None if nothing ran."""
    rate: float
    """Its samples per second, from the median time over its rounds."""
    close: tuple[tuple[Trial, Candidate], ...]
    """Others that may be as fast, by their first round, fastest first."""
    undecided: str
    """Why the fastest is not conclusive; "" if it is."""
    rounds: tuple[Measured, ...]
    measured: tuple[Measured, ...]
    """Every trial in the order run, then other trials from earlier calls."""
    left_out: tuple[tuple[str, str], ...]
    """(configuration, reason) of those not tried."""


Steps = Generator[Asked, Measured, T]
"""Yields trials and receives their results from bench.plan.variants.explore."""


def search(space: Space, base: Trial, earlier: Callable[[], Sequence[Measured]] = tuple) -> Steps[Outcome]:
    """Find the configuration with the most samples per second, as the module describes.

    Args:
        space: the search space.
        base: fields that all trials share.
        earlier: returns the results of earlier calls. It is called at the end: the results do not change the search,
            but the best is chosen among all.
    """
    return _Search(space, base).go(earlier)


class _Search:
    """Requests trials, each once, and stores their results."""

    def __init__(self, space: Space, base: Trial) -> None:
        self._space = space
        self._base = base
        self._found: dict[Trial, Measured] = {}
        self._too_large: dict[tuple[str, str, bool], int] = {}
        self._left_out: list[tuple[str, str]] = []

    def go(self, earlier: Callable[[], Sequence[Measured]]) -> Steps[Outcome]:
        """Search."""
        for strategy, options in self._space.strategies:
            yield from self._strategy(strategy, options)
        best = self._best()
        if best is not None:
            yield from self._refine(best)
            yield from self._try_buckets()
            yield from self._repeat()
            yield from self._decide()
        for found in earlier():
            self._found.setdefault(found.trial, found)
        best = self._best()
        ranked, undecided = self._choice() if best is not None else ([], "")
        return Outcome(
            best=best,
            rate=ranked[0][1].rate if ranked else 0.0,
            close=tuple(ranked[1:]),
            undecided=undecided,
            rounds=tuple(self._by_trial()[ranked[0][0]]) if ranked else (),
            measured=tuple(self._found.values()),
            left_out=tuple(self._left_out),
        )

    def _strategy(self, strategy: str, options: str) -> Steps[None]:
        name = wording.strategy({"strategy": strategy, "strategy_options": options})
        start: int | None = self._start()
        for recompute in self._space.recompute:
            if start is None:
                why = "memory did not limit the batch size without it, and it adds work"
                self._left_out.append((f"{name} checkpointing", why))
                return
            lane = dataclasses.replace(
                self._base,
                strategy=strategy,
                strategy_options=options,
                devices_per_rank=devices_per_rank(strategy, self._base.world_size),
                micro_batch_size=start,
                activation_checkpointing=recompute,
            )
            start = yield from self._grow(lane)
            if start is not None and start > self._space.first_batch and not self._of_lane(lane):
                start = yield from self._grow(dataclasses.replace(lane, micro_batch_size=self._space.first_batch))

    def _start(self) -> int:
        """Return the first size: the smallest for the first strategy, for others one near the best so far."""
        best = self._best()
        return (
            self._space.first_batch if best is None else max(self._space.first_batch, best.trial.micro_batch_size // 4)
        )

    def _grow(self, lane: Trial) -> Steps[int | None]:
        """Double the micro batch while it gets faster; return the size that ran out of memory, if any."""
        best, without_gain, size = 0.0, 0, lane.micro_batch_size
        while size <= self._space.last_batch:
            trial = self._sized(lane, size)
            if trial is not None:
                if not self._fits(trial):
                    return size
                found = yield from self._run(trial)
                if found.status == "oom":
                    return size
                if found.status != "ok":
                    self._left_out.append((label(trial), f"{found.status}: {found.reason}"))
                    return None
                without_gain = 0 if found.rate > best * (1 + _GAIN) else without_gain + 1
                if found.rate < best * (1 - _FALL) or without_gain >= _MOST_WITHOUT_GAIN:
                    return None
                best = max(best, found.rate)
            size *= 2
        return None

    def _sized(self, lane: Trial, size: int) -> Trial | None:
        steps = self._space.accumulation(size)
        return None if steps is None else dataclasses.replace(lane, micro_batch_size=size, grad_accum_steps=steps)

    def _fits(self, trial: Trial) -> bool:
        limit, lane = self._space.limit_bytes, _lane(trial)
        if trial in self._found:
            return True
        if trial.micro_batch_size >= self._too_large.get(lane, trial.micro_batch_size + 1):
            return False
        expected = self._expected(trial)
        if limit is None or expected is None or expected <= limit:
            return True
        self._left_out.append((label(trial), f"expected memory {_gib(expected)}, available {_gib(limit)}"))
        self._too_large[lane] = trial.micro_batch_size
        return False

    def _expected(self, trial: Trial) -> int | None:
        """Estimate peak memory: a line through similar trials, otherwise the prediction corrected by those measured."""
        known = sorted(
            (found.trial.micro_batch_size, found.peak_memory_bytes)
            for found in self._of_lane(trial)
            if found.peak_memory_bytes is not None
        )
        predicted = predicted_bytes(trial)
        if not known:
            return predicted
        (low, low_bytes), (high, high_bytes) = known[0], known[-1]
        if high == low:
            there = predicted_bytes(dataclasses.replace(trial, micro_batch_size=low))
            return None if predicted is None or there is None else high_bytes + predicted - there
        slope = max(0.0, (high_bytes - low_bytes) / (high - low))
        return int(high_bytes + slope * (trial.micro_batch_size - high))

    def _of_lane(self, trial: Trial) -> list[Measured]:
        return [found for found in self._found.values() if _lane(found.trial) == _lane(trial) and found.status == "ok"]

    def _run(self, trial: Trial) -> Steps[Measured]:
        if trial not in self._found:
            self._found[trial] = yield Asked(
                trial=trial, predicted_bytes=predicted_bytes(trial), expected_bytes=self._expected(trial)
            )
        found = self._found[trial]
        if found.status == "oom":
            lane = _lane(trial)
            self._too_large[lane] = min(trial.micro_batch_size, self._too_large.get(lane, trial.micro_batch_size))
        return found

    def _refine(self, best: Measured) -> Steps[None]:
        step = best.trial.micro_batch_size // 2
        nearest = max(1, best.trial.micro_batch_size // 8)
        first, last = self._space.first_batch, self._space.last_batch
        while step >= nearest:
            for size in (best.trial.micro_batch_size + step, best.trial.micro_batch_size - step):
                trial = self._sized(best.trial, size) if first <= size <= last else None
                if trial is None or trial in self._found or not self._fits(trial):
                    continue
                found = yield from self._run(trial)
                if found.rate > best.rate:
                    best = found
                    break
            step //= 2

    def _try_buckets(self) -> Steps[None]:
        best = self._best()
        assert best is not None
        if _BUCKETS not in OPTIONS.get(best.trial.strategy, ()):
            return
        sizes = sorted(self._space.buckets_mib)
        larger = [size for size in sizes if size > _USUAL_BUCKET_MIB]
        smaller = [size for size in reversed(sizes) if size < _USUAL_BUCKET_MIB]
        for direction in (larger, smaller):
            for size in direction:
                given = {**read_options(best.trial.strategy_options), _BUCKETS: size}
                options = options_text(best.trial.strategy, given)
                found = yield from self._run(dataclasses.replace(best.trial, strategy_options=options))
                if found.rate <= best.rate:
                    break
                best = found

    def _repeat(self) -> Steps[None]:
        ranked = sorted(self._found.values(), key=lambda found: -found.rate)
        finalists = [found.trial for found in ranked if found.rate > 0][:_FINALISTS]
        for number in range(1, self._space.rounds + 1) if len(finalists) > 1 else ():
            for trial in finalists[:: 1 if number % 2 else -1]:
                yield from self._run(dataclasses.replace(trial, round=number))

    def _decide(self) -> Steps[None]:
        """Measure the best and possibly faster ones in turn, until they differ or are shown to be equally fast."""
        failed: set[Trial] = set()
        for turn in range(self._space.decide_trials // 2 if self._space.rounds else 0):
            (best, fastest), *others = self._choice()[0]
            # One slower round is enough to exclude it.
            open_ = [
                trial
                for trial, found in others
                if trial not in failed
                and (found.rate > fastest.rate or (len(found.rates) > 1 and not decided(found, fastest)))
            ]
            if not open_ or best in failed:
                return
            for trial in (open_[0], best)[:: 1 if turn % 2 else -1]:
                found = yield from self._run(dataclasses.replace(trial, round=self._rounds(trial)))
                if found.rate <= 0:
                    failed.add(trial)

    def _rounds(self, trial: Trial) -> int:
        return sum(dataclasses.replace(found, round=0) == trial for found in self._found)

    def _best(self) -> Measured | None:
        if not any(found.rate > 0 for found in self._found.values()):
            return None
        return self._by_trial()[self._choice()[0][0][0]][0]

    def _by_trial(self) -> dict[Trial, list[Measured]]:
        rounds: dict[Trial, list[Measured]] = {}
        for found in self._found.values():
            if found.rate > 0:
                rounds.setdefault(dataclasses.replace(found.trial, round=0), []).append(found)
        return {trial: sorted(found, key=lambda one: one.trial.round) for trial, found in rounds.items()}

    def _choice(self) -> tuple[list[tuple[Trial, Candidate]], str]:
        """The fastest configuration, then those that may be as fast, and why that is not conclusive."""
        rounds = self._by_trial()
        trials = list(rounds)
        candidates = [_candidate(rounds[trial]) for trial in trials]
        choice = choose(candidates)
        return [(trials[place], candidates[place]) for place in (choice.best, *choice.close)], choice.undecided


def _candidate(rounds: Sequence[Measured]) -> Candidate:
    rates = tuple(found.rate for found in rounds)
    low, high = rounds[0].interval or (rates[0], rates[0])
    return Candidate(rates, low, high)


def label(trial: Trial) -> str:
    """Return a configuration in a few words: "ddp bucket_mib=5 checkpointing, micro batch 8 x 4"."""
    steps = f" x {trial.grad_accum_steps}" if trial.grad_accum_steps > 1 else ""
    name = wording.strategy(trial.row())
    return f"{name}, micro batch {trial.micro_batch_size}{steps}"


def grid_size(space: Space) -> int:
    """Number of combinations, with sizes that double."""
    sizes = 0
    size = space.first_batch
    while size <= space.last_batch:
        sizes += space.accumulation(size) is not None
        size *= 2
    total = 0
    for strategy, _ in space.strategies:
        buckets = len(space.buckets_mib) + 1 if _BUCKETS in OPTIONS.get(strategy, ()) else 1
        total += sizes * len(space.recompute) * buckets
    return total


def divisions(global_batch_size: int | None, devices: int) -> Callable[[int], int | None]:
    """Return a function from micro batch to micro-steps per update of `global_batch_size` samples."""

    def steps(size: int) -> int | None:
        if global_batch_size is None:
            return 1
        whole, rest = divmod(global_batch_size, size * devices)
        return whole if whole and not rest else None

    return steps


def _lane(trial: Trial) -> tuple[str, str, bool]:
    """What determines memory besides the micro batch: strategy, options except bucket size, checkpointing."""
    options = {name: value for name, value in read_options(trial.strategy_options).items() if name != _BUCKETS}
    return trial.strategy, options_text(trial.strategy, options), trial.activation_checkpointing


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def predicted_bytes(trial: Trial) -> int | None:
    """Return the peak memory of a rank of a trial, before anything is measured; None for a given model."""
    memory = predicted_memory(trial)
    return None if memory is None else memory.total


def predicted_memory(trial: Trial) -> Memory | None:
    """Return that memory by purpose, from the shapes of a preset; None for a given model."""
    return None if trial.model else predict_memory(trial, trial.device)
