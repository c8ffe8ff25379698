"""The search for the fastest micro batch, strategy, activation checkpointing and gradient buckets of a machine.

    grow     of each strategy, double the micro batch until samples/s fall or memory ends, then with checkpointing
    refine   the sizes between the fastest and its neighbors, and the sizes of its gradient buckets
    halve    measure the fastest again, in rounds: each round keeps half of them, until one is shown to be the fastest

A trial that runs out of memory or time is a row with its reason. Finished trials are read from the run directory, so
the same command resumes.
"""

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis import wording
from analysis.metrics.comparison.ratio import Candidate, choose, decided
from bench.implementations import OURS, TRAININGS
from bench.machine.devices import Devices
from bench.search.score import option_words
from bench.sweep.options import AUTO
from bench.sweep.sweep import Measure
from bench.sweep.trials import Sweep, expand
from bert.memory import predict_memory
from bert.parallel import OPTIONS, ZERO_STAGES, options_text, read_options
from bert.tasks import task_data
from bert.tasks.base import read_options as read_task_options
from common.memory import available_bytes
from common.reading import read_notes
from records.run import RunDirectory
from records.trial import Trial

BUCKETS_MIB = (5, 10, 50, 100)
"""Sizes of gradient buckets to try besides the strategy's own."""
_FINALISTS = 4
# A smaller gain is within the spread of short trials.
_GAIN = 0.01
_RESULTS = ("status", "reason", "samples_per_second", "peak_memory_bytes")


def lanes(sweep: Sweep, devices: Devices) -> list[Trial]:
    """Return a trial of each strategy and its options; with strategy `auto` on several devices, of all installed."""
    names = sweep.strategies
    if names == (AUTO,) and sweep.devices[0] > 1:
        names = ("ddp", "fsdp", *(["deepspeed"] if importlib.util.find_spec("deepspeed") else []))
    stages = ZERO_STAGES if "deepspeed" in names else ()
    return expand(dataclasses.replace(sweep, strategies=names, zero_stages=stages), devices)


@dataclass(kw_only=True, slots=True)
class Search:
    """A search: from `lanes`, one trial of each strategy with the smallest micro batch, to `results` in their order."""

    lanes: Sequence[Trial]
    last_batch: int
    global_batch_size: int | None
    """Samples per update; None for no accumulation."""
    rounds: int
    """Most rounds of a configuration."""
    measure: Measure
    results: dict[Trial, Mapping[str, Any]] = field(default_factory=dict)

    def run(self) -> None:
        """Search; the results are in the attributes."""
        for lane in self.lanes:
            fastest = self.choice()[0][:1]
            too_large = self._grow(lane, max([lane.micro_batch_size, *(one.micro_batch_size // 4 for one in fastest)]))
            if too_large is not None:  # checkpointing saves memory and adds work
                self._grow(dataclasses.replace(lane, activation_checkpointing=True), too_large)
        if self.candidates():
            self._refine()
            self._halve()

    def _rate(self, trial: Trial) -> float:
        """Return the samples/s of a trial, run if needed; 0 if it failed."""
        if trial not in self.results:
            self.results[trial] = self.measure(trial)
        return _rate(self.results[trial])

    def _sized(self, trial: Trial, size: int) -> Trial | None:
        """Return a trial with another micro batch; None if it is out of range or does not divide the global batch."""
        each = size * trial.world_size
        steps, rest = divmod(self.global_batch_size or each, each)
        if rest or not steps or not self.lanes[0].micro_batch_size <= size <= self.last_batch:
            return None
        return dataclasses.replace(trial, micro_batch_size=size, grad_accum_steps=steps)

    def _grow(self, lane: Trial, size: int) -> int | None:
        """Double the micro batch while it gets faster; return the size that ran out of memory, if any."""
        best = 0.0
        while size <= self.last_batch:
            if (trial := self._sized(lane, size)) is not None:
                rate = self._rate(trial)
                if self.results[trial]["status"] == "oom":
                    return size
                if rate <= best * (1 + _GAIN):
                    return None
                best = rate
            size *= 2
        return None

    def _refine(self) -> None:
        """Try the sizes between the fastest and its neighbors, then the sizes of its buckets."""
        best = self.choice()[0][0]
        for step in (best.micro_batch_size // 2, best.micro_batch_size // 4):
            for size in (best.micro_batch_size + step, best.micro_batch_size - step):
                trial = self._sized(best, size)
                if trial is not None and self._rate(trial) > self._rate(best):
                    best = trial
        for mib in BUCKETS_MIB if "bucket_mib" in OPTIONS.get(best.strategy, ()) else ():
            options = options_text(best.strategy, {**read_options(best.strategy_options), "bucket_mib": mib})
            self._rate(dataclasses.replace(best, strategy_options=options))

    def _halve(self) -> None:
        """Measure the fastest again in turns; each round keeps half of them, until the fastest is decided."""
        finalists = sorted(self.candidates(), key=lambda trial: -self._rate(trial))[:_FINALISTS]
        for number in range(1, self.rounds):
            for trial in finalists[:: -1 if number % 2 else 1]:
                self._rate(dataclasses.replace(trial, round=len(self.candidates()[trial].rates)))
            candidates, (chosen, _) = self.candidates(), self.choice()
            if number > 1 and all(decided(candidates[trial], candidates[chosen[0]]) for trial in chosen[1:]):
                return
            others = sorted(candidates.keys() - set(chosen), key=lambda trial: -candidates[trial].rate)
            finalists = [*chosen, *others][: max(2, len(finalists) // 2)]

    def candidates(self) -> dict[Trial, Candidate]:
        """Return the rounds of each configuration, without those that failed in a round."""
        rounds: dict[Trial, list[Mapping[str, Any]]] = {}
        for trial, result in self.results.items():
            rounds.setdefault(_configuration(trial), []).append(result)
        return {trial: _candidate(results) for trial, results in rounds.items() if all(map(_rate, results))}

    def choice(self) -> tuple[list[Trial], str]:
        """Return the fastest configuration with those that may be as fast, and why it is not conclusive, if so."""
        candidates = self.candidates()
        if not candidates:
            return [], ""
        choice, trials = choose(list(candidates.values())), list(candidates)
        return [trials[place] for place in (choice.best, *choice.close)], choice.undecided

    def rows(self) -> list[dict[str, Any]]:
        """Return the trials with their results as plain values."""
        return [
            {
                "configuration": label(trial),
                "trial_id": trial.trial_id,
                **trial.row(),
                **{name: result.get(name) for name in _RESULTS},
                "predicted_bytes": None if trial.model else predict_memory(trial, trial.device).total,
            }
            for trial, result in self.results.items()
        ]

    def best(self, run: RunDirectory) -> dict[str, Any] | None:
        """Return the fastest configuration over its rounds with its interval, those close to it, and its command."""
        from analysis.load import load_run
        from analysis.run_views import rate_interval

        chosen, undecided = self.choice()
        if not chosen:
            return None
        best, *close = chosen
        first = next(row for trial, row in zip(self.results, self.rows(), strict=True) if _configuration(trial) == best)
        measured = [one for one in load_run(run) if _configuration(one.trial) == best]
        candidate = self.candidates()[best]
        return {
            **first,
            "samples_per_second": candidate.rate,
            "interval": rate_interval(measured),
            "rounds": list(candidate.rates),
            "close": [label(trial) for trial in close],
            "undecided": undecided,
            "command": command(best),
        }


def _configuration(trial: Trial) -> Trial:
    return dataclasses.replace(trial, round=0)


def _rate(result: Mapping[str, Any]) -> float:
    return float(result.get("samples_per_second") or 0.0) if result["status"] == "ok" else 0.0


def _candidate(rounds: Sequence[Mapping[str, Any]]) -> Candidate:
    rates = tuple(map(_rate, rounds))
    low, high = (rounds[0].get(f"samples_per_second_{end}") or rates[0] for end in ("low", "high"))
    return Candidate(rates, low, high)


def label(trial: Trial) -> str:
    """Return a configuration in a few words: "ddp bucket_mib=5 checkpointing, micro batch 8 x 4"."""
    steps = f" x {trial.grad_accum_steps}" if trial.grad_accum_steps > 1 else ""
    return f"{wording.strategy(trial.row())}, micro batch {trial.micro_batch_size}{steps}"


def command(trial: Trial) -> list[str]:
    """Return the command that trains with a configuration, or measures it if its implementation does not train."""
    trains, given = trial.implementation in TRAININGS, read_task_options(trial.task_options)
    values = {
        **{one.name: given.get(one.name) for one in task_data(trial.task).options if not one.from_data},
        "implementation": "" if trial.implementation == OURS else trial.implementation,
        **({"model": trial.model} if trial.model else {"preset": trial.preset, "dropout": f"{trial.dropout:g}"}),
        **{name: getattr(trial, name) for name in ("data", "seq_len", "precision", "padding", "device", "strategy")},
        "devices": trial.world_size,
        "micro_batch_size" if trains else "batch_sizes": trial.micro_batch_size,
        "grad_accum_steps" if trains else "grad_accum": trial.grad_accum_steps,
        **read_options(trial.strategy_options),
        **{name: getattr(trial, name) for name in ("trust_remote_code", "activation_checkpointing")},
    }
    words = option_words(
        {name: value for name, value in values.items() if value is not False and value not in (None, "")}
    )
    return ["bertbench", "train" if trains else "throughput", trial.task, *words]


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
