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
from bench.sweep.options import AUTO, task_words
from bench.sweep.sweep import Measure
from bench.sweep.trials import Sweep, expand
from bert.model.memory import predict_memory
from bert.parallel.options import OPTIONS, ZERO_STAGES, options_text, read_options
from common.flags import flag
from records.run import RunDirectory
from records.trial import Trial

BUCKETS_MIB = (5, 10, 50, 100)
"""Sizes of gradient buckets to try besides the strategy's own."""
_FINALISTS = 4
# A smaller gain is within the spread of short trials; a larger drop ends the growth at once.
_GAIN, _FALL = 0.01, 0.03


def lanes(sweep: Sweep, devices: Devices) -> list[Trial]:
    """Return a trial of each strategy and its options; with strategy `auto` on several devices, of all installed."""
    names = sweep.strategies
    if names == (AUTO,) and sweep.devices[0] > 1:
        names = ("ddp", "fsdp", *(["deepspeed"] if importlib.util.find_spec("deepspeed") else []))
    stages = ZERO_STAGES if "deepspeed" in names else ()
    return expand(dataclasses.replace(sweep, strategies=names, zero_stages=stages), devices)


@dataclass(kw_only=True, slots=True)
class Search:
    """A search, and the results so far."""

    lanes: Sequence[Trial]
    """One trial of each strategy and its options, with the smallest micro batch."""
    last_batch: int
    global_batch_size: int | None
    """Samples per update; None for no accumulation."""
    rounds: int
    """Most rounds of a configuration."""
    measure: Measure
    results: dict[Trial, Mapping[str, Any]] = field(default_factory=dict)
    """Of each trial in the order run."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Configurations that were not tried, with the reason."""

    def run(self) -> None:
        """Search; the results are in the attributes."""
        for lane in self.lanes:
            fastest = self.choice()[0][:1]
            start = max([lane.micro_batch_size, *(trial.micro_batch_size // 4 for trial in fastest)])
            too_large = self.grow(lane, start)
            checkpointed = dataclasses.replace(lane, activation_checkpointing=True)
            if too_large is None:
                self.skipped[label(checkpointed).partition(",")[0]] = "memory did not limit the micro batch without it"
            else:
                self.grow(checkpointed, too_large)
        if self.candidates():
            self.refine()
            self.halve()

    def rate(self, trial: Trial) -> float:
        """Return the samples/s of a trial, run if needed; 0 if it failed."""
        if trial not in self.results:
            self.results[trial] = self.measure(trial)
        return _rate(self.results[trial])

    def sized(self, trial: Trial, size: int) -> Trial | None:
        """Return a trial with another micro batch; None if it is out of range or does not divide the global batch."""
        each = size * trial.world_size
        steps, rest = divmod(self.global_batch_size or each, each)
        if rest or not steps or not self.lanes[0].micro_batch_size <= size <= self.last_batch:
            return None
        return dataclasses.replace(trial, micro_batch_size=size, grad_accum_steps=steps)

    def grow(self, lane: Trial, size: int) -> int | None:
        """Double the micro batch while it gets faster; return the size that ran out of memory, if any."""
        best, without_gain = 0.0, 0
        while size <= self.last_batch and without_gain < 2:
            if (trial := self.sized(lane, size)) is not None:
                rate = self.rate(trial)
                if self.results[trial]["status"] == "oom":
                    first = lane.micro_batch_size
                    return size if best or size == first else self.grow(lane, first)
                if not rate or rate < best * (1 - _FALL):
                    return None
                without_gain = 0 if rate > best * (1 + _GAIN) else without_gain + 1
                best = max(best, rate)
            size *= 2
        return None

    def refine(self) -> None:
        """Try the sizes between the fastest and its neighbors, then the sizes of its buckets."""
        best = self.choice()[0][0]
        for step in (best.micro_batch_size // 2, best.micro_batch_size // 4):
            for size in (best.micro_batch_size + step, best.micro_batch_size - step):
                trial = self.sized(best, size)
                if trial is not None and self.rate(trial) > self.rate(best):
                    best = trial
        if "bucket_mib" in OPTIONS.get(best.strategy, ()):
            for mib in BUCKETS_MIB:
                options = options_text(best.strategy, {**read_options(best.strategy_options), "bucket_mib": mib})
                self.rate(dataclasses.replace(best, strategy_options=options))

    def halve(self) -> None:
        """Measure the fastest again in turns; each round keeps half of them, until the fastest is decided."""
        finalists = sorted(self.candidates(), key=lambda trial: -self.rate(trial))[:_FINALISTS]
        for number in range(1, self.rounds):
            for trial in finalists[:: -1 if number % 2 else 1]:
                self.rate(dataclasses.replace(trial, round=len(self.candidates()[trial].rates)))
            candidates, (chosen, _) = self.candidates(), self.choice()
            if number > 1 and all(decided(candidates[trial], candidates[chosen[0]]) for trial in chosen[1:]):
                return
            others = sorted(candidates.keys() - set(chosen), key=lambda trial: -candidates[trial].rate)
            finalists = [*chosen, *others][: max(2, len(finalists) // 2)]

    def candidates(self) -> dict[Trial, Candidate]:
        """Return the rounds of each configuration, without those that failed in a round."""
        rounds: dict[Trial, list[Mapping[str, Any]]] = {}
        for trial, result in self.results.items():
            rounds.setdefault(dataclasses.replace(trial, round=0), []).append(result)
        return {trial: _candidate(results) for trial, results in rounds.items() if all(map(_rate, results))}

    def choice(self) -> tuple[list[Trial], str]:
        """Return the fastest configuration with those that may be as fast, and why it is not conclusive, if so."""
        candidates = self.candidates()
        if not candidates:
            return [], ""
        choice, trials = choose(list(candidates.values())), list(candidates)
        return [trials[place] for place in (choice.best, *choice.close)], choice.undecided


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


def row_of(trial: Trial, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial with its result as plain values."""
    fields = ("strategy", "strategy_options", "micro_batch_size", "grad_accum_steps", "activation_checkpointing",
              "round", "trial_id")  # fmt: skip
    shown = ("status", "reason", "samples_per_second", "peak_memory_bytes")
    return {
        "configuration": label(trial),
        **{name: getattr(trial, name) for name in fields},
        **{name: result.get(name) for name in shown},
        "predicted_bytes": None if trial.model else predict_memory(trial, trial.device).total,
    }


def best_of(search: Search, run: RunDirectory) -> dict[str, Any] | None:
    """Return the fastest configuration over its rounds with its interval, those close to it, and its command."""
    from analysis.load import load_run
    from analysis.run_views import rate_interval

    chosen, undecided = search.choice()
    if not chosen:
        return None
    best, *close = chosen
    candidate = search.candidates()[best]
    ids = {trial.trial_id for trial in search.results if dataclasses.replace(trial, round=0) == best}
    return {
        **row_of(best, search.results[best]),
        "samples_per_second": candidate.rate,
        "interval": rate_interval([loaded for loaded in load_run(run) if loaded.trial.trial_id in ids]),
        "rounds": list(candidate.rates),
        "close": [label(trial) for trial in close],
        "undecided": undecided,
        "command": command(best),
    }


def command(trial: Trial) -> list[str]:
    """Return the command that trains with a configuration, or measures it if its implementation does not train."""
    trains = trial.implementation in TRAININGS
    batch, steps = ("--micro-batch-size", "--grad-accum-steps") if trains else ("--batch-sizes", "--grad-accum")
    options = read_options(trial.strategy_options)
    words = ["bertbench", "train" if trains else "throughput", trial.task]
    words += ["--model", trial.model] if trial.model else ["--preset", trial.preset, "--dropout", f"{trial.dropout:g}"]
    words += ["--trust-remote-code"] * trial.trust_remote_code
    words += ["--implementation", trial.implementation] if trial.implementation != OURS else []
    words += ["--data", trial.data, "--seq-len", str(trial.seq_len), "--precision", trial.precision]
    words += ["--padding", trial.padding] if trial.padding else []
    words += [*task_words(trial.task, trial.task_options), "--device", trial.device, "--devices", str(trial.world_size)]
    words += ["--strategy", trial.strategy, batch, str(trial.micro_batch_size), steps, str(trial.grad_accum_steps)]
    words += [word for name in sorted(options) for word in (flag(name), str(options[name]))]
    return [*words, *["--activation-checkpointing"] * trial.activation_checkpointing]
