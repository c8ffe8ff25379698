"""The answer a report begins with: per model, the best configuration in sentences, and what it is compared with."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from analysis import wording
from analysis.diagnose.advice import Advice
from analysis.load import Key, LoadedTrial, measurement
from analysis.metrics.comparison.ratio import Ratio, by_key, measured_rate, typical_time
from analysis.metrics.comparison.winner import Candidate, choose, typical_rate

Row = Mapping[str, Any]

_MODEL = ("task", "task_options", "preset", "precision", "seq_len", "device")
_MOST_CARDS = 6
_MOST_CLOSE = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration, its rounds together."""

    row: Row
    """Row of the round whose step time is the median one."""
    step_ms: Ratio
    rate: Ratio
    rounds: int
    trials: tuple[LoadedTrial, ...]

    @property
    def samples_per_second(self) -> float:
        """Typical samples per second."""
        return self.rate.value

    @property
    def mfu(self) -> float | None:
        """MFU at samples_per_second; None where no peak was measured."""
        mfu = self.row.get("mfu")
        return None if mfu is None else float(mfu) * self.samples_per_second / float(self.row["samples_per_second"])

    @property
    def candidate(self) -> Candidate:
        """The rates that the choice of the fastest compares."""
        return Candidate(
            tuple(float(trial.row["samples_per_second"]) for trial in self.trials), self.rate.low, self.rate.high
        )


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest configuration of one model (task, preset, precision, sequence length, device)."""

    best: Point
    close: tuple[Point, ...]
    """Others that may be as fast, the fastest first."""
    group: tuple[Point, ...]
    undecided: str
    """Why the choice is not conclusive; "" where it is."""


class Card(NamedTuple):
    """One big number."""

    label: str
    value: str
    note: str
    """Interval or meaning."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for one model (preset, precision, sequence length, device)."""

    headline: str
    cards: tuple[Card, ...] = ()
    sentences: tuple[str, ...] = ()
    badge: str = ""
    """What disturbed the machine during the measurement; "" if nothing was detected."""
    good: tuple[str, ...] = ()
    """How good it is: share of the measured floor, the published record; one sentence each."""
    mfu: str = ""
    """MFU in a sentence, for where no cards are shown; "" where it is unknown."""
    advice: tuple[Advice, ...] = ()
    """What to do: first the largest gain, then at most three more."""
    numbers: Row = field(default_factory=dict)
    """Values for programs: samples_per_second with its interval and rounds, of_floor, mfu, record."""
    rivals: tuple[str, ...] = ()
    """Other implementations that may be as fast."""
    best: Point | None = None
    """The configuration that the advice starts from; None without a measured one."""

    @property
    def how_good(self) -> tuple[str, ...]:
        """How good it is, MFU included."""
        return (*self.good, self.mfu) if self.mfu else self.good

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: headline, badge, too_close_to_call, `numbers`, sentences, do_first, then."""
        advice = [one.to_json() for one in self.advice]
        return {
            "headline": self.headline,
            "badge": self.badge or None,
            "too_close_to_call": list(self.rivals),
            **self.numbers,
            "sentences": [*self.sentences, *self.how_good],
            "do_first": advice[0] if advice else None,
            "then": advice[1:],
        }


def points(trials: Sequence[LoadedTrial]) -> list[Point]:
    """Return every measured throughput configuration, its rounds combined, in the order of wording.order.

    Synthetic twins of trials on real data are left out; they have a table of their own.
    """
    result = []
    measured = [trial for trial in trials if trial.row.get("samples_per_second")]
    real = [trial for trial in measured if not trial.made_up_like_folder]
    for rounds in by_key(real or measured).values():
        rounds.sort(key=lambda trial: float(trial.row["step_time_ms"]))
        middle = rounds[len(rounds) // 2]
        times = typical_time([trial.window_times() for trial in rounds])
        result.append(Point(middle.row, times, measured_rate(rounds), len(rounds), tuple(rounds)))
    return sorted(result, key=lambda point: wording.order(point.row))


def winners(measured: Sequence[Point]) -> list[Winner]:
    """Return the fastest configuration of each model, of the model measured most first."""
    groups: dict[Any, list[Point]] = defaultdict(list)
    for point in measured:
        groups[tuple(point.row[name] for name in _MODEL)].append(point)
    result = []
    for group in sorted(groups.values(), key=len, reverse=True):
        choice = choose([point.candidate for point in group])
        close = tuple(group[place] for place in choice.close)
        result.append(Winner(group[choice.best], close, tuple(group), choice.undecided))
    return result


def answers(measured: Sequence[Point], ratios: Sequence[Row]) -> list[Answer]:
    """Return one answer per model, the one measured most first, with ratios of within_run.ratios_of."""
    return [_answer(winner, ratios) for winner in winners(measured)]


def _answer(winner: Winner, ratios: Sequence[Row]) -> Answer:
    best, row = winner.best, winner.best.row
    name = wording.implementation(row)
    names = dict.fromkeys(wording.implementation(one.row) for one in winner.close)
    rivals = tuple(other for other in names if other != name)
    model = str(row["preset"]) if row.get("model") else f"BERT-{row['preset']}"
    trains = f"trains {model}" if row["task"] == "pretrain" else f"fine-tunes {model} for {wording.task(row)}"
    several = len({wording.implementation(one.row) for one in winner.group}) > 1
    first = f"{name} {trains}{' fastest' if several else ''}"
    if rivals:
        first = f"{', '.join([name, *rivals[:-1]])} and {rivals[-1]} are too close to call; {name} {trains}"
    where = wording.counted(int(row["world_size"]), "CPU rank" if row["device"] == "cpu" else "GPU")
    threads = row.get("threads_per_rank")
    headline = (
        f"{first}: {wording.number(best.samples_per_second)} samples/s with micro batch "
        f"{wording.batch(row)} on {where}{f' of {threads} threads' if threads else ''}{wording.by(row)} "
        f"({row['precision']}, sequences of {wording.lengths(row)})."
    )
    key = measurement(row)
    ratio = next((item for item in ratios if measurement(item) == key), None)
    versus = [] if ratio is None else _versus(ratio)
    close = _close(winner, stated=ratio is not None and ratio["decided"] == "cannot decide")
    return Answer(headline, tuple(_cards(best, ratio)), (*_costs(best), *versus, *close), rivals=rivals)


def _cards(best: Point, ratio: Row | None) -> list[Card]:
    row, low, high = best.row, best.rate.low, best.rate.high
    per_sample = best.samples_per_second / row["samples_per_second"]
    tokens = row["tokens_per_second"] * per_sample if row.get("tokens_per_second") is not None else None
    padded = row.get("padded_tokens_per_second") is not None and row.get("padding_efficiency") is not None
    padding = f"{wording.percent(row['padding_efficiency'])} of all positions" if padded else "no padding is computed"
    note = "one round, no interval" if low == high else wording.interval(low, high)
    cards = [
        Card("samples per second", wording.number(best.samples_per_second), note),
        Card("real tokens per second", wording.number(tokens), padding),
    ]
    if best.mfu is not None:
        in_fp8 = str((row.get("measured_peak") or {}).get("dtype")).startswith("float8")
        peak = f"of {wording.flops(row['measured_peak_flops'])} measured{' in FP8' if in_fp8 else ''}"
        cards.append(Card("MFU", wording.percent(best.mfu), peak))
    if ratio is not None and ratio["throughput_ratio"] is not None:
        span = wording.interval(ratio["throughput_ratio_low"], ratio["throughput_ratio_high"], lambda x: f"{x:.2f}")
        label = f"throughput relative to {wording.reference(ratio)}"
        decided = "" if ratio["decided"] != "cannot decide" else ", not conclusive"
        cards.append(Card(label, wording.ratio(ratio["throughput_ratio"]), f"{span}{decided}"))
    return cards


def _costs(best: Point) -> list[str]:
    row, samples, time = best.row, best.row["samples_per_step"], best.step_ms
    amount = wording.count(samples) if float(samples).is_integer() else wording.number(samples)
    sentences = [f"An optimizer step of {amount} samples takes {wording.number(time.value)} ms{_interval(time)}."]
    if (memory := row.get("peak_memory_bytes")) is not None:
        sentences.append(f"A rank needs {wording.size(memory)} of memory ({row.get('peak_memory_kind') or 'peak'}).")
    if (cost := row.get("cost_per_million_samples")) is not None:
        sentences.append(f"A million samples cost {wording.number(cost)} at the given price.")
    return sentences


def _interval(time: Ratio) -> str:
    return "" if time.low == time.high else f" (95 % interval {wording.interval(time.low, time.high)} ms)"


def _versus(ratio: Row) -> list[str]:
    value, reference = ratio["throughput_ratio"], wording.reference(ratio)
    if value is None:
        return [f"There is no comparison with {reference}: {ratio['reason']}."]
    verdict = {
        "yes": "This is conclusive.",
        "no": "This is conclusive: they are within 5 % of each other.",
        "cannot decide": f"This is not conclusive yet: {ratio['reason']}.",
    }[ratio["decided"]]
    return [f"At the same configuration its throughput is {value:.2f} times that of {reference}.", verdict]


def _close(winner: Winner, *, stated: bool) -> list[str]:
    """The configurations that the measurements do not distinguish from the best one, and why, unless that is stated."""
    reason = [f"The fastest is not conclusive yet: {winner.undecided}."] if winner.undecided and not stated else []
    if not winner.close:
        return reason
    names = [f"{wording.implementation(one.row)} {wording.place(one.row)}" for one in winner.close[:_MOST_CLOSE]]
    left = len(winner.close) - _MOST_CLOSE
    return [f"Too close to call: {', '.join(names)}{f' and {left} more' if left > 0 else ''}.", *reason]


def nothing_measured(trials: Sequence[LoadedTrial]) -> Answer:
    """Return the answer of a run without any measurement."""
    kinds = {trial.trial.kind for trial in trials}
    good = [trial for trial in trials if trial.row["status"] == "ok"]
    rates = [float(trial.row.get("samples_per_second") or 0) for trial in good if trial.trial.kind == "input"]
    parts = [trial for trial in good if trial.trial.kind == "components"]
    if kinds == {"probe"}:
        return Answer("This run only searched for the largest batch. Throughput was not measured.")
    if any(rates):
        return Answer(f"This run measured the input pipeline alone: up to {wording.number(max(rates))} samples/s.")
    if kinds == {"comm"}:
        return Answer(f"This run measured collectives alone ({len(good)} of {len(trials)} trials).")
    if parts:
        return Answer(f"This run breaks down a step: {wording.floor_sentence(parts[0].row)}")
    if any(trial.trial.kind == "profile" for trial in good):
        return Answer("This run contains only profiles. Throughput was not measured.")
    statuses = [str(trial.row["status"]) for trial in trials]
    tally = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    reasons = [f"First reason: {trial.row['reason']}" for trial in trials if trial.row.get("reason")]
    return Answer(f"No trial succeeded. Of {len(trials)} trials: {tally}.", sentences=tuple(reasons[:1]))


def profile_answer(utilization: Mapping[str, Mapping[int, float]]) -> Answer:
    """Return the answer of a run of profiles alone: utilization by batch size, of profiles.utilization_by_batch."""
    (name, by_batch), *others = utilization.items()
    best = max(by_batch, key=lambda batch: by_batch[batch])
    cards = [Card(f"batch {batch}", wording.percent(value), name) for batch, value in by_batch.items()]
    sentences = (
        f"{other}: {', '.join(f'{wording.percent(value)} at batch {batch}' for batch, value in values.items())}."
        for other, values in others
    )
    headline = f"{name} is highest at batch {best}: {wording.percent(by_batch[best])}."
    return Answer(headline, tuple(cards[:_MOST_CARDS]), tuple(sentences))


def script_answer(trials: Sequence[LoadedTrial]) -> Answer:
    """Return the answer of measured scripts: of each the speed over all rounds that have one, the latest first."""
    first, *others = map(_script_sentence, script_rounds(trials))
    return Answer(first, sentences=tuple(others))


def script_rounds(trials: Sequence[LoadedTrial]) -> list[list[LoadedTrial]]:
    """Return the rounds of every measured script, failed ones first; the script of the headline is the first."""
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: (trial.ok, trial.trial.round)):
        groups[measurement(trial.row)].append(trial)
    return [*groups.values()][::-1]


def _script_sentence(trials: Sequence[LoadedTrial]) -> str:
    row, rounds = trials[-1].row, [trial for trial in trials if trial.ok]
    name = f"{row['implementation']} on {wording.devices(row)}"
    if not rounds:
        why = (row.get("unknown") or {}).get("step_time_ms") if row["status"] == "ok" else None
        return f"{name} was not measured: {why or wording.status(row)}."
    time = typical_time([trial.window_times() for trial in rounds])
    means = [float(trial.row["step_time_ms_mean"]) for trial in rounds]
    rates = [f"{wording.number(1000 / float(np.median(means)))} steps/s"]
    for column, what in (("samples_per_second", "samples/s"), ("tokens_per_second", "tokens/s")):
        known = [float(trial.row[column]) for trial in rounds if trial.row.get(column) is not None]
        rates += [f"{wording.number(typical_rate(known))} {what}"] if known else []
    steps = f"{row['steps_measured']} steps after {row['steps_warmup']} of warm-up"
    over = steps if len(rounds) == 1 else f"{len(rounds)} rounds"
    return f"{name}: {', '.join(rates)}; {wording.number(time.value)} ms per step{_interval(time)}, median of {over}."
