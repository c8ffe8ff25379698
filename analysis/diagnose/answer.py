"""The answer a report begins with: per model, the best configuration in sentences, and what it is compared with."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from analysis import wording
from analysis.diagnose.advice import Advice
from analysis.load import CONFIGURATION, Key, LoadedTrial, circumstances, measurement
from analysis.metrics.comparison.ratio import Ratio, by_key, measured_rate, typical_time
from analysis.metrics.comparison.winner import Candidate, choose, typical_rate

Row = Mapping[str, Any]

# A smaller batch within this of the best throughput is worth naming.
_NEARLY = 0.95


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration, its rounds together."""

    row: Row
    """Row of the round whose step time is the median one."""
    step_ms: Ratio
    """Typical step time in ms with its interval, over all rounds."""
    rate: Ratio
    """Typical samples per second with its interval, over all rounds."""
    rounds: int
    trials: tuple[LoadedTrial, ...]

    @property
    def samples_per_second(self) -> float:
        """Typical samples per second."""
        return self.rate.value

    @property
    def rate_interval(self) -> tuple[float, float]:
        """Interval of samples_per_second."""
        return self.rate.low, self.rate.high

    @property
    def mfu(self) -> float | None:
        """MFU at samples_per_second; None where no peak was measured."""
        mfu = self.row.get("mfu")
        return None if mfu is None else float(mfu) * self.samples_per_second / float(self.row["samples_per_second"])

    @property
    def candidate(self) -> Candidate:
        """The rates that the choice of the fastest compares."""
        return Candidate(tuple(float(trial.row["samples_per_second"]) for trial in self.trials), *self.rate_interval)


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest configuration of one model (task, preset, precision, sequence length, device)."""

    best: Point
    """The fastest configuration, chosen by metrics.comparison.winner.choose."""
    close: tuple[Point, ...]
    """Others that may be as fast, the fastest first."""
    group: tuple[Point, ...]
    undecided: str
    """Why the choice is not conclusive; "" where it is."""


_MOST_CARDS = 6


class Card(NamedTuple):
    """One big number."""

    label: str
    value: str
    note: str
    """Interval or meaning."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one model (preset, precision, sequence length, device)."""

    headline: str
    cards: tuple[Card, ...]
    sentences: tuple[str, ...]
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
    """Other implementations that may be as fast: which one is fastest is too close to call."""
    best: Point | None = None
    """The configuration that the advice starts from; None without a measured one."""

    @property
    def how_good(self) -> tuple[str, ...]:
        """How good it is, MFU included."""
        return (*self.good, self.mfu) if self.mfu else self.good

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: headline, badge, too_close_to_call, `numbers`, sentences, do_first, then."""
        done = [one.to_json() for one in self.advice]
        return {
            "headline": self.headline,
            "badge": self.badge or None,
            "too_close_to_call": list(self.rivals),
            **self.numbers,
            "sentences": [*self.sentences, *self.how_good],
            "do_first": done[0] if done else None,
            "then": done[1:],
        }


def points(trials: Sequence[LoadedTrial]) -> list[Point]:
    """Return every measured throughput configuration, its rounds combined, in the order of wording.order.

    Synthetic twins of trials on real data are left out; they have a table of their own.
    """
    found = []
    measured = [trial for trial in trials if trial.row.get("samples_per_second")]
    real = [trial for trial in measured if not trial.made_up_like_folder]
    for rounds in by_key(real or measured).values():
        rounds.sort(key=lambda trial: float(trial.row["step_time_ms"]))
        middle = rounds[len(rounds) // 2]
        times = typical_time([trial.window_times() for trial in rounds])
        found.append(Point(middle.row, times, measured_rate(rounds), len(rounds), tuple(rounds)))
    return sorted(found, key=lambda point: wording.order(point.row))


def winners(found: Sequence[Point]) -> list[Winner]:
    """Return the fastest configuration of each model, of the model measured most first."""
    groups: dict[Any, list[Point]] = defaultdict(list)
    for point in found:
        groups[tuple(point.row[name] for name in ("task", "preset", "precision", "seq_len", "device"))].append(point)
    result = []
    for group in sorted(groups.values(), key=len, reverse=True):
        choice = choose([point.candidate for point in group])
        result.append(
            Winner(group[choice.best], tuple(group[place] for place in choice.close), tuple(group), choice.undecided)
        )
    return result


def answers(found: Sequence[Point], ratios: Sequence[Row]) -> list[Answer]:
    """Return one answer per model, the one measured most first."""
    return [_answer(winner, ratios) for winner in winners(found)]


def nothing_measured(trials: Sequence[LoadedTrial]) -> Answer:
    """Return the answer of a run without any measurement."""
    statuses = [str(trial.row["status"]) for trial in trials]
    tally = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    reasons = [str(trial.row["reason"]) for trial in trials if trial.row.get("reason")]
    sentences = (f"First reason: {reasons[0]}",) if reasons else ()
    if trials and all(trial.trial.kind == "probe" for trial in trials):
        return Answer("This run only searched for the largest batch. Throughput was not measured.", (), ())
    fed = [trial for trial in trials if trial.trial.kind == "input" and trial.row.get("samples_per_second")]
    if fed:
        most = max(float(trial.row["samples_per_second"]) for trial in fed)
        return Answer(f"This run measured the input pipeline alone: up to {wording.number(most)} samples/s.", (), ())
    if trials and all(trial.trial.kind == "comm" for trial in trials):
        measured = [trial for trial in trials if trial.row["status"] == "ok"]
        return Answer(f"This run measured collectives alone ({len(measured)} of {len(trials)} trials).", (), ())
    parts = [trial for trial in trials if trial.trial.kind == "components" and trial.row["status"] == "ok"]
    if parts:
        return Answer(f"This run breaks down a step: {wording.floor_sentence(parts[0].row)}", (), ())
    profiled = [trial for trial in trials if trial.trial.kind == "profile" and trial.row["status"] == "ok"]
    if profiled:
        return Answer("This run contains only profiles. Throughput was not measured.", (), ())
    return Answer(f"No trial succeeded. Of {len(trials)} trials: {tally}.", (), sentences)


def profile_answer(utilization: Mapping[str, Mapping[int, float]]) -> Answer:
    """Return the answer of a run of profiles alone: utilization by batch size.

    Args:
        utilization: what profiles.utilization_by_batch returned; at least one kind.
    """
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
    """Return the answer of measured scripts: of each the speed over all rounds that have one, the latest first.

    Args:
        trials: at least one, all of kind measure.
    """
    first, *others = map(_script_sentence, script_rounds(trials))
    return Answer(first, (), tuple(others))


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
    span = "" if time.low == time.high else f" (95 % interval {wording.interval(time.low, time.high)} ms)"
    over = f"{row['steps_measured']} steps after {row['steps_warmup']} of warm-up"
    return (
        f"{name}: {', '.join(rates)}; {wording.number(time.value)} ms per step{span}, "
        f"median of {over if len(rounds) == 1 else f'{len(rounds)} rounds'}."
    )


def _answer(winner: Winner, ratios: Sequence[Row]) -> Answer:
    best, group = winner.best, winner.group
    row = best.row
    close = dict.fromkeys(str(one.row["implementation"]) for one in winner.close)
    rivals = tuple(name for name in close if name != row["implementation"])
    headline = (
        f"{_first(winner, rivals)}: {wording.number(best.samples_per_second)} samples/s with micro batch "
        f"{wording.batch(row)} on {_where(row)}{wording.by(row)} "
        f"({row['precision']}, sequences of {wording.lengths(row)})."
    )
    versus = _versus(best, ratios)
    sentences = [*_step_sentence(best), *versus, *_smaller(best, group), *_close(winner, " ".join(versus))]
    return Answer(headline, tuple(_cards(best, ratios)), tuple(sentences), rivals=rivals)


def _first(winner: Winner, rivals: Sequence[str]) -> str:
    row, best = winner.best.row, winner.best
    trains = f"{row['implementation']} {_trains(row)}"
    if not rivals:
        return f"{trains} fastest" if len({one.row["implementation"] for one in winner.group}) > 1 else trains
    names = [str(row["implementation"]), *rivals]
    ahead = max(one.samples_per_second for one in winner.close) > best.samples_per_second
    measured = f"measured in {best.rounds} rounds" if ahead else "measured fastest"
    return (
        f"{', '.join(names[:-1])} and {names[-1]} are too close to call ({_model(row)}); {row['implementation']} "
        f"{measured}"
    )


def _name(row: Row) -> str:
    """BERT-base; of a given model its own name, which need not be a BERT."""
    return str(row["preset"]) if row.get("model") else f"BERT-{row['preset']}"


def _model(row: Row) -> str:
    return _name(row) if row["task"] == "pretrain" else f"{_name(row)}, {row['task']}"


def _trains(row: Row) -> str:
    task, model = str(row["task"]), _name(row)
    return f"trains {model}" if task == "pretrain" else f"fine-tunes {model} for {task}"


def _where(row: Row) -> str:
    count, device = int(row["world_size"]), str(row["device"])
    if device == "cpu":
        threads = row.get("threads_per_rank")
        if threads is None:
            return "the CPU, one rank on all cores" if count == 1 else f"the CPU, {count} ranks sharing its cores"
        each = f"{threads} thread{'s'[: threads != 1]}"
        return f"the CPU, one rank of {each}" if count == 1 else f"the CPU, {count} ranks of {each}"
    return f"{count} GPU{'s' if count > 1 else ''}"


def _cards(best: Point, ratios: Sequence[Row]) -> list[Card]:
    row = best.row
    per_sample = best.samples_per_second / row["samples_per_second"]
    tokens = row["tokens_per_second"] * per_sample if row.get("tokens_per_second") is not None else None
    cards = [
        Card("samples per second", wording.number(best.samples_per_second), _rate_note(best)),
        Card("real tokens per second", wording.number(tokens), _padding(row)),
    ]
    if best.mfu is not None:
        in_fp8 = str((row.get("measured_peak") or {}).get("dtype")).startswith("float8")
        peak = f"of {wording.flops(row['measured_peak_flops'])} measured{' in FP8' if in_fp8 else ''}"
        cards.append(Card("MFU", wording.percent(best.mfu), peak))
    found = _ratio(best, ratios)
    if found is not None and found["throughput_ratio"] is not None:
        span = wording.interval(found["throughput_ratio_low"], found["throughput_ratio_high"], lambda x: f"{x:.2f}")
        label = f"throughput relative to {found['reference']}"
        decided = "" if found["decided"] != "cannot decide" else ", not conclusive"
        cards.append(Card(label, wording.ratio(found["throughput_ratio"]), f"{span}{decided}"))
    return cards


def _rate_note(best: Point) -> str:
    low, high = best.rate_interval
    return "one round, no interval" if low == high else wording.interval(low, high)


def _padding(row: Row) -> str:
    padded, efficiency = row.get("padded_tokens_per_second"), row.get("padding_efficiency")
    if padded is None or efficiency is None:
        return "no padding is computed"
    return f"{wording.percent(efficiency)} of all positions"


def _step_sentence(best: Point) -> list[str]:
    row, time = best.row, best.step_ms
    span = "" if time.low == time.high else f" (95 % interval {wording.interval(time.low, time.high)} ms)"
    samples = row["samples_per_step"]
    amount = wording.count(samples) if float(samples).is_integer() else wording.number(samples)
    memory = row.get("peak_memory_bytes")
    parts = [f"One optimizer step of {amount} samples takes {wording.number(time.value)} ms{span}"]
    if memory is not None:
        parts.append(f"a rank needs {wording.size(memory)} of memory ({row.get('peak_memory_kind') or 'peak'})")
    if row.get("cost_per_million_samples") is not None:
        parts.append(f"a million samples cost {wording.number(row['cost_per_million_samples'])} at the given price")
    return ["; ".join(parts) + "."]


def _ratio(point: Point, ratios: Sequence[Row]) -> Row | None:
    key = measurement(point.row)
    return next((item for item in ratios if measurement(item) == key), None)


def _versus(best: Point, ratios: Sequence[Row]) -> list[str]:
    found = _ratio(best, ratios)
    if found is None:
        return []
    if found["throughput_ratio"] is None:
        return [f"There is no comparison with {found['reference']}: {found['reason']}."]
    value = found["throughput_ratio"]
    saved = found["time_saved"]
    change = f"{wording.percent(saved)} less" if saved >= 0 else f"{wording.percent(-saved)} more"
    text = f"At the same configuration its throughput is {value:.2f} times that of {found['reference']} ({change} time)"
    verdict = {
        "yes": ", which is conclusive.",
        "no": ". This is conclusive: they are within 5 % of each other.",
        "cannot decide": f". This is not conclusive yet: {found['reason']}.",
    }[found["decided"]]
    return [text + verdict]


def _smaller(best: Point, group: Sequence[Point]) -> list[str]:
    def kind(point: Point) -> Key:
        names = [name for name in CONFIGURATION if "batch" not in name]
        return (*circumstances(point.row), *(point.row[name] for name in names))

    same = [p for p in group if kind(p) == kind(best)]
    near = [p for p in same if p.samples_per_second >= _NEARLY * best.samples_per_second and p is not best]
    near = [p for p in near if p.row["micro_batch_size"] < best.row["micro_batch_size"]]
    if near:
        small = min(near, key=lambda p: int(p.row["micro_batch_size"]))
        share = small.samples_per_second / best.samples_per_second
        return [
            f"Micro batch {wording.batch(small.row)} reaches {wording.percent(share)} of that throughput, in steps of "
            f"{wording.number(small.step_ms.value)} ms."
        ]
    largest = max(int(p.row["micro_batch_size"]) for p in same)
    if len(same) > 1 and largest == best.row["micro_batch_size"]:
        return ["This is the largest batch measured; a larger one may be faster (--max-batch-search finds the limit)."]
    return []


def _close(winner: Winner, said: str) -> list[str]:
    """Name the configurations that the measurements do not distinguish from the best one.

    The reason is left out if `said`, the sentences before, contain it.
    """
    if not winner.close:
        why = winner.undecided
        return [f"Which configuration is fastest is not conclusive yet: {why} (--rounds)."] if why else []
    names = [f"{p.row['implementation']} {wording.place(p.row)}{_faster(p, winner.best)}" for p in winner.close[:3]]
    more = f" and {len(winner.close) - 3} more" if len(winner.close) > 3 else ""
    why = "" if winner.undecided in said else f" {winner.undecided[:1].upper()}{winner.undecided[1:]} (--rounds)."
    return [f"Too close to call: {', '.join(names)}{more}.{why}"]


def _faster(point: Point, best: Point) -> str:
    """Return the rate of a faster configuration that has too few rounds to be called the best; else ""."""
    if point.samples_per_second <= best.samples_per_second:
        return ""
    rounds = f"{point.rounds} round{'s'[: point.rounds != 1]}"
    return f" ({wording.number(point.samples_per_second)} samples/s, but in {rounds}, the best in {best.rounds})"
