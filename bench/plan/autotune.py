"""The fastest way to train a model on given devices: micro batch, strategy, recomputation and buckets, by measuring.

The grid of all combinations is not run. Of each strategy the micro batch doubles until samples/s fall, until a trial
runs out of memory, or until the next one is expected to; then the best is refined between its neighbours. Recomputing
activations adds work and saves memory: it is tried only where memory ended the growth, from the size that did not fit.
Buckets change the communication of the best configuration alone and are tried there, in the direction that helps. The
fastest two are measured again, so that a lucky trial does not win; whatever was faster than they then are is measured
again too, in turns with the best, until analysis.metrics.comparison.winner tells them apart or the trials for
that are spent.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.metrics.comparison.winner import Candidate, choose, decided
from analysis.strategy_labels import strategy_label
from bert.parallel.options import OPTIONS, options_text, read_options

# Less than this is no gain: the spread of short trials is as large.
_GAIN = 0.01
# A fall that ends the growth at once; otherwise two sizes in a row without gain do.
_FALL = 0.03
_MOST_WITHOUT_GAIN = 2
_BUCKETS = "bucket_mib"
# What PyTorch takes for itself.
_USUAL_BUCKET_MIB = 25
_FINALISTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One configuration."""

    strategy: str
    """A name in bert.parallel."""
    options: str = ""
    """Of the strategy, as bert.parallel.options.options_text makes them."""
    micro_batch_size: int
    """Sequences per device and micro-step."""
    grad_accum_steps: int = 1
    """Micro-steps per update."""
    recompute: bool = False
    """Whether activations are made again in the backward pass."""
    round: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """How a trial ended."""

    point: Point
    status: str
    """As records.trial has it."""
    samples_per_second: float | None
    """Over all devices; None where nothing was measured."""
    peak_memory_bytes: int | None
    predicted_bytes: int
    """What bert.model.memory said before."""
    expected_bytes: int
    """What was expected, with what had been measured before."""
    reason: str = ""
    trial_id: str = ""
    interval: tuple[float, float] | None = None
    """95 % interval of samples_per_second within its process; None where its steps show none."""

    @property
    def rate(self) -> float:
        """Samples per second, 0 where none were measured."""
        return (self.samples_per_second or 0.0) if self.status == "ok" else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """What may be tried."""

    strategies: tuple[tuple[str, str], ...]
    """(name, options) in the order of trying."""
    first_batch: int = 1
    last_batch: int = 4096
    recompute: tuple[bool, ...] = (False, True)
    """Whether activations may be kept, and recomputed."""
    buckets_mib: tuple[int, ...] = (5, 10, 50, 100)
    """Sizes tried besides the strategy's own, where there is one; empty tries none."""
    limit_bytes: int | None = None
    """Memory of a rank; None knows none."""
    accumulation: Callable[[int], int | None] = lambda size: 1
    """Micro-steps per update for a micro batch; None where it cannot be had."""
    rounds: int = 2
    """How often the fastest two are measured again; 0 never, nor anything else."""
    decide_trials: int = 12
    """Trials at most, after those rounds, to tell the fastest from what may be as fast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search found."""

    best: Measured | None
    """The fastest; None where nothing ran."""
    rate: float
    """Its samples per second, of the median time over its rounds."""
    close: tuple[tuple[Point, Candidate], ...]
    """Others that may be as fast, without their round, the fastest first."""
    undecided: str
    """Why it is not decided that the best is the fastest; "" where it is."""
    rounds: tuple[Measured, ...]
    measured: tuple[Measured, ...]
    """Every trial in the order of running, then those that earlier calls have left besides."""
    left_out: tuple[tuple[str, str], ...]
    """(what, why) was not tried."""


Measure = Callable[[Point, int, int], Measured]
"""(point, predicted bytes, expected bytes) -> how its trial ended."""


def search(
    space: Space, measure: Measure, predict: Callable[[Point], int], earlier: Callable[[], Sequence[Measured]] = tuple
) -> Outcome:
    """Find the configuration with the most samples per second; see above for how.

    Args:
        space: what may be tried.
        measure: runs a trial; called once per point, so that a search over finished trials repeats itself.
        predict: peak memory of a point in bytes, before anything is measured.
        earlier: what calls before have left of this search, read when nothing is left to measure: it changes no path,
            but the best is chosen among all.
    """
    return _Search(space, measure, predict).go(earlier)


class _Search:
    """Runs trials and remembers them."""

    def __init__(self, space: Space, measure: Measure, predict: Callable[[Point], int]) -> None:
        self._space = space
        self._measure = measure
        self._predict = predict
        self._found: dict[Point, Measured] = {}
        self._too_large: dict[tuple[str, str, bool], int] = {}
        self._left_out: list[tuple[str, str]] = []

    def go(self, earlier: Callable[[], Sequence[Measured]]) -> Outcome:
        """Search."""
        for strategy, options in self._space.strategies:
            self._strategy(strategy, options)
        best = self._best()
        if best is not None:
            self._refine(best)
            self._try_buckets()
            self._repeat()
            self._decide()
        for found in earlier():
            self._found.setdefault(found.point, found)
        best = self._best()
        ranked, undecided = self._choice() if best is not None else ([], "")
        return Outcome(
            best=best,
            rate=ranked[0][1].rate if ranked else 0.0,
            close=tuple(ranked[1:]),
            undecided=undecided,
            rounds=tuple(self._by_point()[ranked[0][0]]) if ranked else (),
            measured=tuple(self._found.values()),
            left_out=tuple(self._left_out),
        )

    def _strategy(self, strategy: str, options: str) -> None:
        """Grow the micro batch, with activations kept and, where memory ended that, recomputed."""
        name = label(Point(strategy=strategy, options=options, micro_batch_size=1), batch=False)
        start: int | None = self._start()
        for recompute in self._space.recompute:
            if start is None:
                why = "memory did not end the growth without it, and it adds work"
                self._left_out.append((f"{name} recomputing", why))
                return
            lane = Point(strategy=strategy, options=options, micro_batch_size=start, recompute=recompute)
            start = self._grow(lane)
            if start is not None and start > self._space.first_batch and not self._of_lane(lane):
                start = self._grow(dataclasses.replace(lane, micro_batch_size=self._space.first_batch))

    def _start(self) -> int:
        """The first strategy begins with the smallest size, others near the best so far."""
        best = self._best()
        return (
            self._space.first_batch if best is None else max(self._space.first_batch, best.point.micro_batch_size // 4)
        )

    def _grow(self, lane: Point) -> int | None:
        """Double the micro batch while it pays; return the size that memory refused, None where that was not why."""
        best, without_gain, size = 0.0, 0, lane.micro_batch_size
        while size <= self._space.last_batch:
            point = self._sized(lane, size)
            if point is not None:
                if not self._fits(point):
                    return size
                found = self._run(point)
                if found.status == "oom":
                    return size
                if found.status != "ok":
                    self._left_out.append((label(point), f"{found.status}: {found.reason}"))
                    return None
                without_gain = 0 if found.rate > best * (1 + _GAIN) else without_gain + 1
                if found.rate < best * (1 - _FALL) or without_gain >= _MOST_WITHOUT_GAIN:
                    return None
                best = max(best, found.rate)
            size *= 2
        return None

    def _sized(self, lane: Point, size: int) -> Point | None:
        steps = self._space.accumulation(size)
        return None if steps is None else dataclasses.replace(lane, micro_batch_size=size, grad_accum_steps=steps)

    def _fits(self, point: Point) -> bool:
        """Whether memory is expected to suffice."""
        limit, lane = self._space.limit_bytes, _lane(point)
        if point in self._found:
            return True
        if point.micro_batch_size >= self._too_large.get(lane, point.micro_batch_size + 1):
            return False
        expected = self._expected(point)
        if limit is None or expected <= limit:
            return True
        self._left_out.append((label(point), f"expected {_gib(expected)}, {_gib(limit)} are there"))
        self._too_large[lane] = point.micro_batch_size
        return False

    def _expected(self, point: Point) -> int:
        """Peak memory: on the line through what was measured alike, else the prediction, set right by what was."""
        known = sorted(
            (found.point.micro_batch_size, found.peak_memory_bytes)
            for found in self._of_lane(point)
            if found.peak_memory_bytes is not None
        )
        if not known:
            return self._predict(point)
        (low, low_bytes), (high, high_bytes) = known[0], known[-1]
        if high == low:
            there = dataclasses.replace(point, micro_batch_size=low)
            return high_bytes + self._predict(point) - self._predict(there)
        slope = max(0.0, (high_bytes - low_bytes) / (high - low))
        return int(high_bytes + slope * (point.micro_batch_size - high))

    def _of_lane(self, point: Point) -> list[Measured]:
        """What ran with the same strategy and recomputation."""
        return [found for found in self._found.values() if _lane(found.point) == _lane(point) and found.status == "ok"]

    def _run(self, point: Point) -> Measured:
        if point not in self._found:
            self._found[point] = self._measure(point, self._predict(point), self._expected(point))
        found = self._found[point]
        if found.status == "oom":
            lane = _lane(point)
            self._too_large[lane] = min(point.micro_batch_size, self._too_large.get(lane, point.micro_batch_size))
        return found

    def _refine(self, best: Measured) -> None:
        """Look between the best micro batch and its neighbours, nearer each time."""
        step = best.point.micro_batch_size // 2
        nearest = max(1, best.point.micro_batch_size // 8)
        first, last = self._space.first_batch, self._space.last_batch
        while step >= nearest:
            for size in (best.point.micro_batch_size + step, best.point.micro_batch_size - step):
                point = self._sized(best.point, size) if first <= size <= last else None
                if point is None or point in self._found or not self._fits(point):
                    continue
                if self._run(point).rate > best.rate:
                    best = self._found[point]
                    break
            step //= 2

    def _try_buckets(self) -> None:
        """Try smaller buckets, and larger ones, as long as they help."""
        best = self._best()
        assert best is not None
        if _BUCKETS not in OPTIONS.get(best.point.strategy, ()):
            return
        sizes = sorted(self._space.buckets_mib)
        larger = [size for size in sizes if size > _USUAL_BUCKET_MIB]
        smaller = [size for size in reversed(sizes) if size < _USUAL_BUCKET_MIB]
        for direction in (larger, smaller):
            for size in direction:
                options = options_text(best.point.strategy, {**read_options(best.point.options), _BUCKETS: size})
                found = self._run(dataclasses.replace(best.point, options=options))
                if found.rate <= best.rate:
                    break
                best = found

    def _repeat(self) -> None:
        """Measure the fastest two again, in turns."""
        ranked = sorted(self._found.values(), key=lambda found: -found.rate)
        finalists = [found.point for found in ranked if found.rate > 0][:_FINALISTS]
        for number in range(1, self._space.rounds + 1) if len(finalists) > 1 else ():
            for point in finalists[:: 1 if number % 2 else -1]:
                self._run(dataclasses.replace(point, round=number))

    def _decide(self) -> None:
        """Measure the best again in turns with what may be faster, until they differ or are equally fast."""
        failed: set[Point] = set()
        for turn in range(self._space.decide_trials // 2 if self._space.rounds else 0):
            (best, fastest), *others = self._choice()[0]
            # Measured once and slower says enough: it would not be the best.
            open_ = [
                point
                for point, found in others
                if point not in failed
                and (found.rate > fastest.rate or (len(found.rates) > 1 and not decided(found, fastest)))
            ]
            if not open_ or best in failed:
                return
            for point in (open_[0], best)[:: 1 if turn % 2 else -1]:
                again = dataclasses.replace(point, round=self._rounds(point))
                if self._run(again).rate <= 0:
                    failed.add(point)

    def _rounds(self, point: Point) -> int:
        """How often a configuration was measured, whatever came of it."""
        return sum(dataclasses.replace(found, round=0) == point for found in self._found)

    def _best(self) -> Measured | None:
        """The fastest by analysis.metrics.comparison.winner, its first round that ran."""
        if not any(found.rate > 0 for found in self._found.values()):
            return None
        return self._by_point()[self._choice()[0][0][0]][0]

    def _by_point(self) -> dict[Point, list[Measured]]:
        """Trials that ran by their point without its round, in the order of rounds."""
        rounds: dict[Point, list[Measured]] = {}
        for found in self._found.values():
            if found.rate > 0:
                rounds.setdefault(dataclasses.replace(found.point, round=0), []).append(found)
        return {point: sorted(found, key=lambda one: one.point.round) for point, found in rounds.items()}

    def _choice(self) -> tuple[list[tuple[Point, Candidate]], str]:
        """The fastest configuration, then those that may be as fast, and why that is not decided; one ran at least."""
        rounds = self._by_point()
        points = list(rounds)
        candidates = [_candidate(rounds[point]) for point in points]
        choice = choose(candidates)
        return [(points[place], candidates[place]) for place in (choice.best, *choice.close)], choice.undecided


def _candidate(rounds: Sequence[Measured]) -> Candidate:
    rates = tuple(found.rate for found in rounds)
    low, high = rounds[0].interval or (rates[0], rates[0])
    return Candidate(rates, low, high)


def label(point: Point, batch: bool = True) -> str:
    """Return a point in a few words: "ddp bucket_mib=5 recomputing, micro batch 8 x 4"."""
    text = strategy_label(point.strategy, point.options, point.recompute)
    if not batch:
        return text
    steps = f" x {point.grad_accum_steps}" if point.grad_accum_steps > 1 else ""
    return f"{text}, micro batch {point.micro_batch_size}{steps}"


def grid_size(space: Space) -> int:
    """Number of configurations that all combinations are, with sizes that double."""
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
    """Return the micro-steps per update for each micro batch, so that updates have `global_batch_size` samples."""

    def steps(size: int) -> int | None:
        if global_batch_size is None:
            return 1
        whole, rest = divmod(global_batch_size, size * devices)
        return whole if whole and not rest else None

    return steps


def _lane(point: Point) -> tuple[str, str, bool]:
    """What decides on the memory besides the micro batch: strategy, options but the size of buckets, recomputing."""
    options = {name: value for name, value in read_options(point.options).items() if name != _BUCKETS}
    return point.strategy, options_text(point.strategy, options), point.recompute


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
