"""The answer of a run: how fast, how good, what to do first. The terminal, the page and --json begin with it."""

import dataclasses
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from analysis import wording
from analysis.diagnose.advice import Advice, Context, another, of_machine, ranked, throughput_command
from analysis.load import Key, LoadedTrial, measurement
from analysis.metrics.cautions import FASTER_LOADER, disturbance
from analysis.metrics.comparison.ratio import Candidate, Ratio, apart, choose, measured_rate, typical_rate, typical_time
from analysis.metrics.comparison.runs import by_key
from analysis.metrics.speed_of_light import LOSS, NOT_EXPLAINED
from records.run import RunDirectory

Row = Mapping[str, Any]
Profiled = Mapping[str, Sequence[Advice]]
"""Advice from profiles, by trial id."""

_MOST_CARDS, _MOST_CLOSE = 6, 3
_MODEL = ("task", "task_options", "preset", "precision", "seq_len", "device")
_SAME_TRAINING = ("task", "task_options", "preset", "seq_len", "world_size", "device", "implementation", "levers")
_SAME_STEP = (*_SAME_TRAINING, "precision", "micro_batch_size")
# Relative difference of the step of a breakdown from the trial's step up to which both measured the same.
_SAME_SPEED = 0.25
# Bars of a waterfall that other advice covers, or that have no known cause.
_OTHER_CAUSE = ("waiting for data", "communication", "GEMMs on padding", NOT_EXPLAINED)


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration, its rounds together."""

    row: Row
    """Row of the round whose step time is the median one."""
    step_ms: Ratio
    rate: Ratio
    trials: tuple[LoadedTrial, ...]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.trials)

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
        rates = tuple(float(trial.row["samples_per_second"]) for trial in self.trials)
        return Candidate(rates, self.rate.low, self.rate.high)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result for one model (preset, precision, sequence length, device)."""

    headline: str
    cards: tuple[Card, ...] = ()
    sentences: tuple[str, ...] = ()
    badge: str = ""
    """What disturbed the machine during the measurement; "" if nothing was detected."""
    good: tuple[str, ...] = ()
    """How good it is: share of the speed of light, MFU; one sentence each."""
    advice: tuple[Advice, ...] = ()
    """What to do: first the largest gain, then at most three more."""
    numbers: Row = field(default_factory=dict)
    """Values for programs: samples_per_second with its interval and rounds, of_floor, mfu."""
    rivals: tuple[str, ...] = ()
    """Other implementations that may be as fast."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: headline, badge, too_close_to_call, `numbers`, sentences, do_first, then."""
        advice = [one.to_json() for one in self.advice]
        about: dict[str, Any] = {
            "headline": self.headline,
            "badge": self.badge or None,
            "too_close_to_call": list(self.rivals),
        }
        about |= {**self.numbers, "sentences": [*self.sentences, *self.good]}
        return {**about, "do_first": advice[0] if advice else None, "then": advice[1:]}


def points(trials: Sequence[LoadedTrial]) -> list[Point]:
    """Return every measured throughput configuration, its rounds combined, in the order of wording.order.

    Synthetic twins of trials on real data are left out; they have a table of their own.
    """
    result = []
    measured = [trial for trial in trials if trial.row.get("samples_per_second")]
    real = [trial for trial in measured if not trial.made_up_like_folder]
    for rounds in by_key(real or measured).values():
        rounds.sort(key=lambda trial: float(trial.row["step_time_ms"]))
        times = typical_time([trial.window_times() for trial in rounds])
        rate = measured_rate([trial.window_work() for trial in rounds])
        result.append(Point(rounds[len(rounds) // 2].row, times, rate, tuple(rounds)))
    return sorted(result, key=lambda point: wording.order(point.row))


def winners(measured: Sequence[Point]) -> list[Winner]:
    """Return the fastest configuration of each model, of the model measured most first."""
    groups: dict[Key, list[Point]] = defaultdict(list)
    for point in measured:
        groups[tuple(point.row[name] for name in _MODEL)].append(point)
    result = []
    for group in sorted(groups.values(), key=len, reverse=True):
        choice = choose([point.candidate for point in group])
        close = tuple(group[place] for place in choice.close)
        result.append(Winner(group[choice.best], close, tuple(group), choice.undecided))
    return result


def complete_answers(
    trials: Sequence[LoadedTrial],
    measured: Sequence[Point],
    ratios: Sequence[Row],
    out: str,
    profiled: Profiled | None = None,
) -> list[Answer]:
    """Return one answer per model, the one measured most first; then one of all scripts that were measured.

    Args:
        trials: of the whole run.
        measured: `points` of those that are asked about.
        ratios: of runs.ratios_of.
        out: the run directory as commands name it.
        profiled: advice from profiles.
    """
    best = winners(measured)
    result = []
    for winner in best:
        point = winner.best
        badge = disturbance(caution for trial in point.trials for caution in trial.row.get("cautions") or [])
        floor, doubt = _floor(trials, point)
        advice = [
            *of_machine(badge, throughput_command(point.row, another(out))),
            *_of_steps(winner, best, trials, out),
            *(_of_floor(floor, point, trials, out) if floor and not badge else ()),
            *_of_profiles(point, trials, profiled or {}, out),
        ]
        answer = _of_model(winner, ratios, floor, doubt)
        result.append(dataclasses.replace(answer, badge=badge, advice=tuple(ranked(advice))))
    scripts = [trial for trial in trials if trial.trial.kind == "measure"]
    return [*result, *([script_answer(scripts, profiled, out)] if scripts else [])]


def _of_model(winner: Winner, ratios: Sequence[Row], floor: Row | None, doubt: str) -> Answer:
    best, row = winner.best, winner.best.row
    name, rate = wording.implementation(row), best.samples_per_second
    rivals = tuple(dict.fromkeys(other for one in winner.close if (other := wording.implementation(one.row)) != name))
    model = str(row["preset"]) if row.get("model") else f"BERT-{row['preset']}"
    trains = f"trains {model}" if row["task"] == "pretrain" else f"fine-tunes {model} for {wording.task(row)}"
    several = len({wording.implementation(one.row) for one in winner.group}) > 1
    first = f"{name} {trains}{' fastest' if several else ''}"
    if rivals:
        first = f"{', '.join([name, *rivals[:-1]])} and {rivals[-1]} are too close to call; {name} {trains}"
    where = wording.counted(int(row["world_size"]), "CPU rank" if row["device"] == "cpu" else "GPU")
    where += f" of {row['threads_per_rank']} threads" if row.get("threads_per_rank") else ""
    headline = (
        f"{first}: {wording.number(rate)} samples/s with micro batch {wording.batch(row)} on {where}"
        f"{wording.by(row)} ({row['precision']}, sequences of {wording.lengths(row)})."
    )
    ratio = next((item for item in ratios if measurement(item) == measurement(row)), None)
    one_round = best.rounds == 1 and best.step_ms.low == best.step_ms.high
    low, high = (None, None) if one_round else (best.rate.low, best.rate.high)
    numbers = {"samples_per_second": rate, "samples_per_second_low": low, "samples_per_second_high": high}
    numbers |= {"rounds": best.rounds, "of_floor": None if floor is None else floor["of_floor"], "mfu": best.mfu}
    good = [doubt] if doubt else []
    if floor is not None:
        step, least = wording.number(floor["step_time_ms"]), wording.number(floor["floor_ms"])
        share = wording.percent(floor["of_floor"])
        good = [f"It reaches {share} of the speed of light measured here: {least} of {step} ms a step."]
    if best.mfu is not None:
        peak = wording.flops(row.get("measured_peak_flops"))
        good.append(f"MFU is {wording.percent(best.mfu)} (measured peak {peak}).")
    sentences = (*_costs(best), *_versus(winner, ratio))
    return Answer(
        headline=headline, cards=_cards(best, ratio), sentences=sentences, good=tuple(good), numbers=numbers,
        rivals=rivals,
    )  # fmt: skip


def _cards(best: Point, ratio: Row | None) -> tuple[Card, ...]:
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
    return tuple(cards)


def _costs(best: Point) -> Iterator[str]:
    row, samples = best.row, best.row["samples_per_step"]
    amount = wording.count(samples) if float(samples).is_integer() else wording.number(samples)
    yield f"An optimizer step of {amount} samples takes {wording.number(best.step_ms.value)} ms{_span(best.step_ms)}."
    if (memory := row.get("peak_memory_bytes")) is not None:
        yield f"A rank needs {wording.size(memory)} of memory ({row.get('peak_memory_kind') or 'peak'})."
    if (cost := row.get("cost_per_million_samples")) is not None:
        yield f"A million samples cost {wording.number(cost)} at the given price."


def _span(time: Ratio) -> str:
    return "" if time.low == time.high else f" (95 % interval {wording.interval(time.low, time.high)} ms)"


def _versus(winner: Winner, ratio: Row | None) -> Iterator[str]:
    """Yield the comparison with the reference, and the configurations that may be as fast as the best one."""
    if ratio is not None and ratio["throughput_ratio"] is None:
        yield f"There is no comparison with {wording.reference(ratio)}: {ratio['reason']}."
    elif ratio is not None:
        value, reference = ratio["throughput_ratio"], wording.reference(ratio)
        yield f"At the same configuration its throughput is {value:.2f} times that of {reference}."
        yield {
            "yes": "This is conclusive.",
            "no": "This is conclusive: they are within 5 % of each other.",
            "cannot decide": f"This is not conclusive yet: {ratio['reason']}.",
        }[ratio["decided"]]
    if winner.close:
        names = [f"{wording.implementation(one.row)} {wording.place(one.row)}" for one in winner.close]
        more = f" and {len(names) - _MOST_CLOSE} more" if len(names) > _MOST_CLOSE else ""
        yield f"Too close to call: {', '.join(names[:_MOST_CLOSE])}{more}."
    if winner.undecided and (ratio is None or ratio["decided"] != "cannot decide"):
        yield f"The fastest is not conclusive yet: {winner.undecided}."


def _floor(trials: Sequence[LoadedTrial], best: Point) -> tuple[Row | None, str]:
    """The broken-down step of the same shape that was not disturbed and is as fast; else why there is none."""
    parts = [one.row for one in trials if one.trial.kind == "components" and one.row.get("of_floor") is not None]
    same = [row for row in parts if _equal(row, best.row, _SAME_STEP)]
    for row in same:
        cautions, time, step = row.get("cautions") or [], float(row["step_time_ms"]), best.step_ms.value
        doubtful = disturbance(cautions) or any(one["code"] == "not_explained" for one in cautions)
        as_fast = abs(time / step - 1) <= _SAME_SPEED and min(time, step) >= float(row["floor_ms"])
        if as_fast and not doubtful:
            return row, ""
    doubt = "The share of the speed of light is unknown: the machine was disturbed or changed speed; measure it again."
    return None, doubt if same else ""


def _of_steps(winner: Winner, every: Sequence[Winner], trials: Sequence[LoadedTrial], out: str) -> Iterator[Advice]:
    """Advice from the measured parts of a step, and from the precisions and batch sizes that the run has or lacks."""
    best, row = winner.best, winner.best.row
    step, sizes = float(row["step_time_ms"]), {int(point.row["micro_batch_size"]) for point in winner.group}

    def advice(cause: str, seen: str, remedy: str, saves: float | None, unknown: str = "", **changes: object) -> Advice:
        command = throughput_command(row, out, **changes)
        return Advice(cause=cause, seen=seen, remedy=remedy, saves=saves, unknown=unknown, command=command)

    if (wait := row.get("data_wait_ms")) and row.get("data") != "synthetic":
        remedy = "prepare the data in advance or use a faster disk (synthetic data show the limit)"
        seen = f"each step waits {wording.number(wait)} ms for data"
        yield advice("data", seen, remedy, wait / step, data="synthetic")
    if (exposed := row.get("communication_ms")) and int(row["world_size"]) > 1:
        more = 4 * int(row.get("grad_accum_steps") or 1)
        seen = f"{wording.number(exposed)} ms of communication are exposed in each step"
        remedy = f"communicate less often, with {more} micro-steps per step"
        yield advice("communication", seen, remedy, exposed / step, grad_accum=more)
    padding, shape = row.get("padding_efficiency"), ("micro_batch_size", "world_size", "grad_accum_steps")
    ours = [one for one in winner.group if one.row["implementation"] == "bertbench" and _equal(one.row, row, shape)]
    # What does not say so had a default, which computes real tokens alone.
    levers = [point.row.get("levers") or point.trials[0].ranks.get(0, {}).get("levers") for point in ours]
    padded = all(names and "unpad" not in str(names).split("+") for names in levers)
    if padding is not None and row["implementation"] == "bertbench" and padded:
        seen = f"{wording.percent(1 - padding)} of all computed positions are padding"
        yield advice("padding", seen, "compute real tokens alone", 1 - padding, levers="auto")
    precisions = {str(trial.row.get("precision")) for trial in trials}
    native = best.trials[0].environment.get("native_bf16")
    if row["precision"] in ("fp32", "tf32") and "bf16" not in precisions and native:
        seen = f"GEMMs run in {row['precision']}, and this device has bf16 instructions"
        yield advice("precision", seen, "try bf16", None, "bf16 was not measured in this run", precisions="bf16")
    if len(sizes) > 1 and int(row["micro_batch_size"]) == max(sizes):
        seen = f"the largest micro batch measured, {max(sizes)}, is the fastest"
        why, double = "larger batches were not measured", 2 * max(sizes)
        yield advice("batch", seen, "try a larger one", None, why, batch_sizes=double)
    # The gain of the fastest other precision measured for the same training; a gain of 0 if none is faster.
    groups = [other.group for other in every if other is not winner]
    others = [[one for one in group if _equal(one.row, row, (*_SAME_TRAINING, "data"))] for group in groups]
    if any(others):
        rate = best.samples_per_second
        ahead = [max(group, key=lambda point: point.samples_per_second) for group in others if group]
        ahead = [one for one in ahead if one.samples_per_second > rate and apart(one.candidate, best.candidate)]
        top = max(ahead, key=lambda point: point.samples_per_second, default=best)
        rates = f"{wording.number(top.samples_per_second)} and {wording.number(rate)} samples/s"
        seen, new = f"faster than {row['precision']} in this run ({rates})", top.row["precision"]
        saves, command = 1 - rate / top.samples_per_second, throughput_command(top.row, out)
        yield Advice(
            cause="precision", seen=f"{new} is {seen}", remedy=f"train in {new}", command=command, saves=saves,
            of="time per sample", firm=True,
        )  # fmt: skip


def _equal(one: Row, other: Row, names: Sequence[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


def _of_floor(floor: Row, best: Point, trials: Sequence[LoadedTrial], out: str) -> Iterator[Advice]:
    """The loss of a broken-down step that is largest: what a step could save if that part ran at its ceiling."""
    losses = [bar for bar in floor["waterfall"] if bar["kind"] == LOSS and bar["name"] not in _OTHER_CAUSE]
    if not losses:
        return
    most = max(losses, key=lambda bar: float(bar["ms"]))
    seen = f'the part "{most["name"]}" takes {wording.number(most["ms"])} ms of each step more than its floor'
    profile = next((one.trial.trial_id for one in _profiles(best, trials) if one.row.get("status") == "ok"), None)
    # A profile needs a folder of its own beside the sweep; it takes its configuration from it.
    words = ["profile", best.row["task"], "--winner-of", out, "--out", f"{out}-profile"]
    remedy = "find its operators in a profile"
    if profile is not None:
        remedy, words = "see its operators in the profile of this run", ["analyze", f"{out}/trials/{profile}"]
    command = shlex.join(["bertbench", *words])
    yield Advice(cause="speed", seen=seen, remedy=remedy, command=command, saves=float(most["share"]))


def _profiles(best: Point, trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    return [one for one in trials if one.trial.kind == "profile" and _equal(one.row, best.row, _SAME_STEP)]


def _of_profiles(best: Point, trials: Sequence[LoadedTrial], profiled: Profiled, out: str) -> list[Advice]:
    """What profiles advise, tested on the configuration as it was measured, without what disturbed a recording."""
    context = Context(row=best.row, run=out)
    advice = [advice for one in _profiles(best, trials) for advice in profiled.get(one.trial.trial_id, ())]
    advice = [one for one in advice if one.cause != "machine"]
    return [dataclasses.replace(one, command=context.command(one.cause) or one.command) for one in advice]


def advice_of_profiles(trials: Sequence[LoadedTrial], measured: Sequence[Point]) -> Profiled:
    """Return the advice from the profiles of the fastest configurations, by trial id, as complete_answers takes it."""
    from analysis.diagnose.profiles import open_profile

    profiles = [one for winner in winners(measured) for one in _profiles(winner.best, trials)]
    opened = {one.trial.trial_id: open_profile(one.directory) for one in profiles if one.directory.profile.is_dir()}
    return {name: profile.advice for name, profile in opened.items()}


def without_measurement(run: RunDirectory, trials: Sequence[LoadedTrial]) -> Answer:
    """Return the answer of a run without measured throughput: utilization by batch size where it has profiles."""
    from analysis.diagnose.profiles import summary_rows, utilization_by_batch

    utilization = utilization_by_batch(summary_rows(run))
    return profile_answer(utilization) if utilization else nothing_measured(trials)


def nothing_measured(trials: Sequence[LoadedTrial]) -> Answer:
    """Return the answer of a run without any measurement."""
    good = [trial for trial in trials if trial.row["status"] == "ok"]
    done = {trial.trial.kind: trial.row for trial in reversed(good)}
    kinds = {trial.trial.kind for trial in trials}
    rates = [rate for one in good if one.trial.kind == "input" and (rate := one.row.get("samples_per_second"))]
    sentences: list[str] = []
    if kinds == {"probe"}:
        headline = "This run only searched for the largest batch. Throughput was not measured."
    elif rates:
        headline = f"This run measured the input pipeline alone: up to {wording.number(max(rates))} samples/s."
    elif kinds == {"comm"}:
        headline = f"This run measured collectives alone ({len(good)} of {len(trials)} trials)."
    elif "components" in done:
        headline = f"This run breaks down a step: {wording.floor_sentence(done['components'])}"
    elif "profile" in done:
        headline = "This run contains only profiles. Throughput was not measured."
    else:
        tally = Counter(str(trial.row["status"]) for trial in trials)
        ended = ", ".join(f"{count} {status}" for status, count in tally.items())
        headline = f"No trial succeeded. Of {len(trials)} trials: {ended}."
        sentences = [f"First reason: {trial.row['reason']}" for trial in trials if trial.row.get("reason")][:1]
    return Answer(headline=headline, sentences=tuple(sentences))


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
    return Answer(headline=headline, cards=tuple(cards[:_MOST_CARDS]), sentences=tuple(sentences))


def script_answer(trials: Sequence[LoadedTrial], profiled: Profiled | None = None, out: str = "") -> Answer:
    """Return the answer of measured scripts: of each the speed over all rounds that have one, the latest first.

    Its advice is for the first script, by its last round; the other arguments are those of complete_answers.
    """
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: (trial.ok, trial.trial.round)):  # failed rounds first
        groups[measurement(trial.row)].append(trial)
    rounds, *others = [*groups.values()][::-1]
    answer = Answer(headline=_script_sentence(rounds), sentences=tuple(map(_script_sentence, others)))
    row, settings = rounds[-1].row, rounds[-1].trial
    if not rounds[-1].ok:
        return answer
    badge = disturbance(row.get("cautions") or [])
    context = Context(row={**row, "kind": settings.kind, "command": settings.command}, run=out)
    advice = [one for each in rounds for one in (profiled or {}).get(each.trial.trial_id, ())]
    if wait := row.get("data_wait_ms"):
        seen = f"each step waits {wording.number(wait)} ms for data"
        advice.append(Advice(cause="data", seen=seen, remedy=FASTER_LOADER, saves=wait / row["step_time_ms"]))
    advice += of_machine(badge, context.command("machine"))
    return dataclasses.replace(answer, badge=badge, advice=tuple(ranked(advice)))


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
    return f"{name}: {', '.join(rates)}; {wording.number(time.value)} ms per step{_span(time)}, median of {over}."
