"""The answer of a run: how fast, how good, what to do first. The terminal, the page and --json begin with it."""

import dataclasses
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
from records.run import RunDirectory

Row = Mapping[str, Any]
Profiled = Mapping[str, Sequence[Advice]]
"""Advice from profiles, by trial id."""

_MOST_CARDS, _MOST_CLOSE = 6, 3
_MODEL = ("task", "task_options", "preset", "precision", "seq_len", "device")
_SAME_TRAINING = ("task", "task_options", "preset", "seq_len", "world_size", "device", "implementation", "step")
_SAME_STEP = (*_SAME_TRAINING, "precision", "micro_batch_size")
# Relative difference of the step of a breakdown from the trial's step up to which both measured the same.
_SAME_SPEED = 0.25
_OF_TRAINER = ("train_samples_per_second", "train_runtime", "train_loss", "eval_runtime", "eval_loss")
_CONTENTS = {"probe": "a search for the largest batch", "comm": "collectives", "profile": "profiles"}


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration, its rounds together."""

    row: Row
    """Row of the round whose step time is the median one."""
    step_ms: Ratio
    rate: Ratio
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
    advice: tuple[Advice, ...] = ()
    """What to do: first the largest gain, then at most three more."""
    numbers: Row = field(default_factory=dict)
    """Values for programs: samples_per_second with its interval and rounds, of_floor, mfu."""
    rivals: tuple[str, ...] = ()
    """Other implementations that may be as fast."""

    @property
    def facts(self) -> tuple[str, ...]:
        """The cards but for the first, whose number is in the headline, a line each."""
        return tuple(f"{label}: {value} ({note})" for label, value, note in self.cards[1:])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: headline, badge, too_close_to_call, `numbers`, sentences, do_first, then."""
        advice = [one.to_json() for one in self.advice]
        about: dict[str, Any] = {
            "headline": self.headline,
            "badge": self.badge or None,
            "too_close_to_call": list(self.rivals),
        }
        about |= {**self.numbers, "sentences": [*self.sentences, *self.facts]}
        return {**about, "do_first": advice[0] if advice else None, "then": advice[1:]}


def points(trials: Sequence[LoadedTrial]) -> list[Point]:
    """Return every measured throughput configuration, its rounds combined, in the order of wording.order.

    Trials on synthetic batches with the lengths of real data are left out where those data were measured.
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
    every = winners(measured)
    result = []
    for winner in every:
        best = winner.best
        badge = disturbance(caution for trial in best.trials for caution in trial.row.get("cautions") or [])
        floor = _floor(trials, best)
        ratio = next((item for item in ratios if measurement(item) == measurement(best.row)), None)
        advice = [
            *of_machine(badge, throughput_command(best.row, another(out))),
            *_of_steps(winner, every, out),
            *_of_profiles(best, trials, profiled or {}, out),
        ]
        rounds = len(best.trials)
        unknown = rounds == 1 and best.step_ms.low == best.step_ms.high
        low, high = (None, None) if unknown else (best.rate.low, best.rate.high)
        numbers = {"samples_per_second": best.samples_per_second, "samples_per_second_low": low}
        numbers |= {"samples_per_second_high": high, "rounds": rounds, "mfu": best.mfu}
        numbers["of_floor"] = floor["of_floor"] if floor else None
        rivals = dict.fromkeys(wording.implementation(one.row) for one in winner.close)
        rivals.pop(wording.implementation(best.row), None)
        cards, sentences = tuple(_cards(best, floor, ratio)), tuple(_sentences(winner))
        answer = Answer(headline=_headline(winner, [*rivals]), cards=cards, sentences=sentences, badge=badge)
        answer = dataclasses.replace(answer, advice=tuple(ranked(advice)), numbers=numbers, rivals=tuple(rivals))
        result.append(answer)
    scripts = [trial for trial in trials if trial.trial.kind == "measure"]
    return [*result, *([script_answer(scripts, profiled, out)] if scripts else [])]


def _headline(winner: Winner, rivals: Sequence[str]) -> str:
    row = winner.best.row
    name = wording.implementation(row)
    model = str(row["preset"]) if row.get("model") else f"BERT-{row['preset']}"
    trains = f"trains {model}" if row["task"] == "pretrain" else f"fine-tunes {model} for {wording.task(row)}"
    several = len({wording.implementation(one.row) for one in winner.group}) > 1
    first = f"{name} {trains}{' fastest' if several else ''}"
    if rivals:
        first = f"{', '.join([name, *rivals[:-1]])} and {rivals[-1]} are too close to call; {name} {trains}"
    where = wording.counted(int(row["world_size"]), "CPU rank" if row["device"] == "cpu" else "GPU")
    where += f" of {row['threads_per_rank']} threads" if row.get("threads_per_rank") else ""
    return (
        f"{first}: {wording.number(winner.best.samples_per_second)} samples/s with micro batch {wording.batch(row)} on "
        f"{where}{wording.by(row)} ({row['precision']}, sequences of {wording.lengths(row)})."
    )


def _cards(best: Point, floor: Row | None, ratio: Row | None) -> Iterator[Card]:
    row, per_sample = best.row, best.samples_per_second / best.row["samples_per_second"]
    yield Card("samples per second", wording.number(best.samples_per_second), _span(best.rate))
    if row.get("tokens_per_second") is not None:
        padded = row.get("padded_tokens_per_second") is not None and row.get("padding_efficiency") is not None
        note = f"{wording.percent(row['padding_efficiency'])} of all positions" if padded else "no padding is computed"
        yield Card("real tokens per second", wording.number(row["tokens_per_second"] * per_sample), note)
    yield Card("step time", f"{wording.number(best.step_ms.value)} ms", _span(best.step_ms))
    if (cost := row.get("cost_per_million_samples")) is not None:
        yield Card("cost of a million samples", wording.number(cost), "at the given price")
    if floor is not None:
        note = f"{wording.number(floor['floor_ms'])} of {wording.number(floor['step_time_ms'])} ms a step"
        yield Card("of the speed of light", wording.percent(floor["of_floor"]), note)
    if best.mfu is not None:
        in_fp8 = str((row.get("measured_peak") or {}).get("dtype")).startswith("float8")
        peak = f"of {wording.flops(row['measured_peak_flops'])} measured{' in FP8' if in_fp8 else ''}"
        yield Card("MFU", wording.percent(best.mfu), peak)
    if ratio is not None:
        span = wording.interval(ratio["throughput_ratio_low"], ratio["throughput_ratio_high"], lambda x: f"{x:.2f}")
        decision = {"yes": "conclusive", "no": "no difference"}.get(ratio["decided"], "not conclusive")
        note = ratio["reason"] if ratio["throughput_ratio"] is None else f"{span}, {decision}"
        label = f"throughput relative to {wording.reference(ratio)}"
        yield Card(label, wording.ratio(ratio["throughput_ratio"]), note)


def _span(value: Ratio) -> str:
    if value.low == value.high:
        return "one round, no interval"
    return f"95 % interval {wording.interval(value.low, value.high)}"


def _sentences(winner: Winner) -> Iterator[str]:
    """Yield the configurations that may be as fast as the best one, and why the choice is not conclusive."""
    if winner.close:
        names = [f"{wording.implementation(one.row)} {wording.place(one.row)}" for one in winner.close]
        more = f" and {len(names) - _MOST_CLOSE} more" if len(names) > _MOST_CLOSE else ""
        yield f"Too close to call: {', '.join(names[:_MOST_CLOSE])}{more}."
    if winner.undecided:
        yield f"The fastest is not conclusive yet: {winner.undecided}."


def _floor(trials: Sequence[LoadedTrial], best: Point) -> Row | None:
    """Return the broken-down step of the same shape that was not disturbed and is as fast."""
    for one in trials:
        row = one.row
        if one.trial.kind == "components" and row.get("of_floor") and _equal(row, best.row, _SAME_STEP):
            cautions, time, step = row.get("cautions") or [], float(row["step_time_ms"]), best.step_ms.value
            doubtful = disturbance(cautions) or any(one["code"] == "not_explained" for one in cautions)
            as_fast = abs(time / step - 1) <= _SAME_SPEED and min(time, step) >= float(row["floor_ms"])
            if as_fast and not doubtful:
                return row
    return None


def _of_steps(winner: Winner, every: Sequence[Winner], out: str) -> Iterator[Advice]:
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
    if len(sizes) > 1 and int(row["micro_batch_size"]) == max(sizes):
        seen, why = (
            f"the largest micro batch measured, {max(sizes)}, is the fastest",
            "larger batches were not measured",
        )
        yield advice("batch", seen, "try a larger micro batch", None, why, batch_sizes=2 * max(sizes))
    rate, others = best.samples_per_second, [one for other in every if other is not winner for one in other.group]
    others = [one for one in others if _equal(one.row, row, (*_SAME_TRAINING, "data"))]
    if others:  # a gain of 0 if none is faster: it replaces estimates
        ahead = [one for one in others if one.samples_per_second > rate and apart(one.candidate, best.candidate)]
        top = max(ahead, key=lambda point: point.samples_per_second, default=best)
        fast, remedy = wording.number(top.samples_per_second), f"train in {top.row['precision']}"
        seen = f"{top.row['precision']} makes {fast} samples/s in this run, {row['precision']} {wording.number(rate)}"
        saves, command = 1 - rate / top.samples_per_second, throughput_command(top.row, out)
        yield Advice(cause="precision", seen=seen, remedy=remedy, saves=saves, command=command, firm=True)
    elif row["precision"] in ("fp32", "tf32") and best.trials[0].environment.get("native_bf16"):
        seen = f"GEMMs run in {row['precision']}, and this device has bf16 instructions"
        yield advice("precision", seen, "try bf16", None, "bf16 was not measured in this run", precisions="bf16")


def _equal(one: Row, other: Row, names: Sequence[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


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
    """Return the answer of a run without measured throughput: what it has, or why it has nothing.

    Of profiles it is their utilization by batch size.
    """
    from analysis.diagnose.profiles import summary_rows, utilization_by_batch

    if utilization := utilization_by_batch(summary_rows(run)):
        return _profile_answer(utilization)
    good = {trial.trial.kind: trial.row for trial in reversed(trials) if trial.row["status"] == "ok"}
    kinds = {trial.trial.kind for trial in trials}
    kinds = kinds if kinds == {"probe"} else {*good} - {"probe"}  # the last probe is meant to fail
    if "components" in good:
        return Answer(headline=f"This run breaks down a step: {wording.floor_sentence(good['components'])}")
    rates = [trial.row.get("samples_per_second") or 0.0 for trial in trials if trial.trial.kind == "input"]
    if any(rates):
        fastest = f"up to {wording.number(max(rates))} samples/s"
        return Answer(headline=f"This run measured the input pipeline alone: {fastest}.")
    if kinds:
        contents = " and ".join(_CONTENTS.get(kind, kind) for kind in sorted(kinds))
        return Answer(headline=f"This run has only {contents}: throughput was not measured.")
    tally = Counter(str(trial.row["status"]) for trial in trials)
    ended = ", ".join(f"{count} {status}" for status, count in tally.items())
    reasons = [f"First reason: {trial.row['reason']}" for trial in trials if trial.row.get("reason")]
    headline = f"No trial succeeded. Of {len(trials)} trials: {ended}."
    return Answer(headline=headline, sentences=tuple(reasons[:1]))


def _profile_answer(utilization: Mapping[str, Mapping[int, float]]) -> Answer:
    name, by_batch = next(iter(utilization.items()))
    best = max(by_batch, key=lambda batch: by_batch[batch])
    cards = [
        Card(f"batch {batch}", wording.percent(value), kind)
        for kind, values in utilization.items()
        for batch, value in values.items()
    ]
    headline = f"{name} is highest at batch {best}: {wording.percent(by_batch[best])}."
    return Answer(headline=headline, cards=tuple(cards[:_MOST_CARDS]))


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
    answer = dataclasses.replace(answer, sentences=(*_script_details(row), *answer.sentences))
    badge = disturbance(row.get("cautions") or [])
    context = Context(row={**row, "kind": settings.kind, "command": settings.command}, run=out)
    advice = [one for each in rounds for one in (profiled or {}).get(each.trial.trial_id, ())]
    if wait := row.get("data_wait_ms"):
        seen = f"each step waits {wording.number(wait)} ms for data"
        advice.append(Advice(cause="data", seen=seen, remedy=FASTER_LOADER, saves=wait / row["step_time_ms"]))
    advice += of_machine(badge, context.command("machine"))
    return dataclasses.replace(answer, badge=badge, advice=tuple(ranked(advice)))


def _script_details(row: Row) -> Iterator[str]:
    if (row.get("padding_efficiency") or 1) < 0.7:  # else other things matter more
        yield f"{wording.percent(1 - row['padding_efficiency'])} of all positions are padding: group texts by length."
    parts = {name: row.get(f"{name}_ms") for name in ("data_wait", "forward", "backward", "optimizer")}
    known = {name.replace("_", " "): value / row["step_time_ms"] for name, value in parts.items() if value is not None}
    if parts["backward"] is not None:
        known["rest"] = max(0.0, 1 - sum(known.values()))
        yield f"Of a step: {', '.join(f'{name} {wording.percent(share)}' for name, share in known.items())}."
    if not (whole := row.get("whole_run")):
        return
    rates = [(what, whole[f"{what}_per_second"]) for what in ("samples", "steps")]
    said = [f"{wording.number(rate)} {what}/s" for what, rate in rates if rate]
    if whole["long_steps"]:
        every = f"every {whole['long_every']}th, " if whole["long_every"] else ""
        steps = (
            f"{wording.counted(whole['long_steps'], 'long step')} ({every}longest {whole['longest_ms'] / 1000:.3g} s)"
        )
        said.append(f"{wording.percent(whole['long_share'])} of its time in {steps}")
    said += [f"{name} {wording.number(seconds)} s" for name, seconds in whole["aside"].items()]
    yield f"Whole run: {', '.join(said)}."
    if figures := {name: value for name, value in whole["framework"].items() if name in _OF_TRAINER}:
        yield f"Trainer's own figures: {', '.join(f'{name} {wording.number(one)}' for name, one in figures.items())}."


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
    over = f"{row['steps_measured']} steps" if len(rounds) == 1 else f"{len(rounds)} rounds"
    over += f", {row['reason']}" if row["status"] == "ok" and row.get("reason") else ""
    return f"{name}: {', '.join(rates)}; {wording.number(time.value)} ms per step ({_span(time)}), median of {over}."
