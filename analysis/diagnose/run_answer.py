"""The complete answer of a run (how fast, how good, what to do first) for the page, the terminal and --json."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.advice import Advice, Context, another, ranked, throughput_command
from analysis.diagnose.answer import (
    Answer,
    Point,
    Winner,
    answers,
    nothing_measured,
    profile_answer,
    script_answer,
    script_rounds,
    winners,
)
from analysis.load import LoadedTrial
from analysis.metrics.cautions import FASTER_LOADER, disturbance
from analysis.metrics.comparison.winner import apart
from analysis.metrics.speed_of_light import LOSS, NOT_EXPLAINED
from records.run import RunDirectory

Row = Mapping[str, Any]

# Bars of a waterfall that other advice covers, or that have no known cause.
_OTHER_CAUSE = ("waiting for data", "communication", "GEMMs on padding", NOT_EXPLAINED)
# Relative difference of the step of a breakdown from the trial's step up to which both measured the same.
_SAME_SPEED = 0.25
_SAME_TRAINING = ("task", "task_options", "preset", "seq_len", "world_size", "device", "implementation", "levers")
_SAME_STEP = (*_SAME_TRAINING, "precision", "micro_batch_size")
# Bars of a waterfall that torch.compile makes shorter on a GPU.
_FUSED_BY_COMPILE = ("head and its loss", "elementwise parts", "casts and sums of gradients")
# Optimizations that torch.compile takes the place of: other kernels of the same operators, and its own casts.
_REPLACED_BY_COMPILE = frozenset({"fused-elementwise", "bf16-weights"})
# Optimizations with which advice to compile would be none, or would be refused.
_NOT_COMPILED = frozenset({"compile", "fp8"})


def complete_answers(
    trials: Sequence[LoadedTrial],
    measured: Sequence[Point],
    ratios: Sequence[Row],
    out: str,
    profiled: Mapping[str, Sequence[Advice]] | None = None,
) -> list[Answer]:
    """Return one answer per model, with badge, how good it is, and advice; then one of all scripts that were measured.

    Commands name the run directory as `out`; `profiled` is advice from profiles, by trial id.
    """
    advised, best = profiled or {}, winners(measured)
    result = []
    for winner, answer in zip(best, answers(measured, ratios), strict=True):
        point = winner.best
        badge = disturbance(caution for trial in point.trials for caution in trial.row.get("cautions") or [])
        floor = _floor(trials, point)
        good, mfu, numbers = _how_good(point, floor)
        advice = [
            *_machine(badge, throughput_command(point.row, another(out))),
            *_of_row(winner, out),
            *_untried(winner, trials, out),
            *([] if floor is None or badge else _of_floor(floor, point, trials, out)),
            *_of_precisions(winner, best, out),
            *_of_profiles(point, trials, advised, out),
        ]
        facts: dict[str, Any] = {"badge": badge, "good": tuple(good), "mfu": mfu, "numbers": numbers, "best": point}
        result.append(dataclasses.replace(answer, advice=tuple(ranked(advice)), **facts))
    scripts = [trial for trial in trials if trial.trial.kind == "measure"]
    return [*result, *([_of_scripts(scripts, advised, out)] if scripts else [])]


def without_measurement(run: RunDirectory, trials: Sequence[LoadedTrial]) -> Answer:
    """Return the answer of a run without measured throughput: utilization by batch size where it has profiles."""
    from analysis.diagnose.profiles import summary_rows, utilization_by_batch

    utilization = utilization_by_batch(summary_rows(run))
    return profile_answer(utilization) if utilization else nothing_measured(trials)


def _of_scripts(trials: Sequence[LoadedTrial], profiled: Mapping[str, Sequence[Advice]], out: str) -> Answer:
    """The answer of measured scripts, with advice for the one of the headline, by its last round."""
    answer, rounds = script_answer(trials), script_rounds(trials)[0]
    last = rounds[-1]
    if not last.ok:
        return answer
    row, badge = last.row, disturbance(last.row.get("cautions") or [])
    context = Context(row={**row, "kind": last.trial.kind, "command": last.trial.command}, run=out)
    advice = [one for trial in rounds for one in profiled.get(trial.trial.trial_id, ())]
    if wait := row.get("data_wait_ms"):
        seen = f"each step waits {wording.number(wait)} ms for data"
        advice.append(Advice(cause="data", seen=seen, remedy=FASTER_LOADER, saves=wait / row["step_time_ms"]))
    advice += _machine(badge, context.command("machine"))
    return dataclasses.replace(answer, badge=badge, advice=tuple(ranked(advice)))


def _floor(trials: Sequence[LoadedTrial], best: Point) -> Row | None:
    """The row of the broken-down step of the same shape that was not disturbed and is as fast."""
    parts = [one.row for one in trials if one.trial.kind == "components" and one.row.get("of_floor") is not None]
    for row in parts:
        cautions, time, step = row.get("cautions") or [], float(row["step_time_ms"]), best.step_ms.value
        doubtful = disturbance(cautions) or any(one["code"] == "not_explained" for one in cautions)
        same = abs(time / step - 1) <= _SAME_SPEED and min(time, step) >= float(row["floor_ms"])
        if _equal(row, best.row, _SAME_STEP) and same and not doubtful:
            return row
    return None


def _how_good(best: Point, floor: Row | None) -> tuple[list[str], str, dict[str, Any]]:
    row, sentences, of_peak = best.row, [], ""
    one_round = best.rounds == 1 and best.step_ms.low == best.step_ms.high
    low, high = (None, None) if one_round else (best.rate.low, best.rate.high)
    numbers: dict[str, Any] = {
        "samples_per_second": best.samples_per_second,
        "samples_per_second_low": low,
        "samples_per_second_high": high,
        "rounds": best.rounds,
        "of_floor": None if floor is None else floor["of_floor"],
        "mfu": best.mfu,
    }
    if floor is not None:
        step, least = wording.number(floor["step_time_ms"]), wording.number(floor["floor_ms"])
        share = wording.percent(floor["of_floor"])
        sentences.append(f"It reaches {share} of the speed of light measured here: {least} of {step} ms a step.")
    if best.mfu is not None:
        peak = wording.flops(row.get("measured_peak_flops"))
        of_peak = f"MFU is {wording.percent(best.mfu)} (measured peak {peak})."
    return sentences, of_peak, numbers


def _machine(badge: str, command: str) -> list[Advice]:
    why, remedy = "the undisturbed speed was not measured", "wait until the machine is idle, then measure again"
    return [Advice(cause="machine", seen=badge, remedy=remedy, command=command, unknown=why)] if badge else []


def _of_row(winner: Winner, out: str) -> list[Advice]:
    """Advice from the measured parts of a step, without options that it already uses."""
    row, settings = winner.best.row, winner.best.row
    step, exposed = float(row["step_time_ms"]), row.get("communication_ms") or 0.0
    advice = []
    if (wait := row.get("data_wait_ms") or 0.0) and str(row.get("data")) != "synthetic":
        seen = f"each step waits {wording.number(wait)} ms for data"
        remedy = "prepare the data in advance or use a faster disk (synthetic data show the limit)"
        command = throughput_command(settings, out, data="synthetic")
        advice.append(Advice(cause="data", seen=seen, remedy=remedy, command=command, saves=wait / step))
    if exposed and int(row["world_size"]) > 1:
        more = 4 * int(row.get("grad_accum_steps") or 1)
        seen = f"{wording.number(exposed)} ms of communication are exposed in each step"
        remedy = f"communicate less often, with {more} micro-steps per step"
        command = throughput_command(settings, out, grad_accum=more)
        advice.append(Advice(cause="communication", seen=seen, remedy=remedy, command=command, saves=exposed / step))
    padding = row.get("padding_efficiency")
    shape = ("micro_batch_size", "world_size", "grad_accum_steps")
    alike = [one for one in winner.group if _is_ours(one) and _equal(one.row, row, shape)]
    levers = [_optimizations(one) for one in alike]
    # What does not say so had a default, which computes real tokens alone.
    if padding is not None and _is_ours(winner.best) and all(one is not None and "unpad" not in one for one in levers):
        seen = f"{wording.percent(1 - padding)} of all computed positions are padding"
        command, remedy = throughput_command(settings, out, levers="auto"), "compute real tokens alone"
        advice.append(Advice(cause="padding", seen=seen, remedy=remedy, command=command, saves=1 - padding))
    return advice


def _is_ours(point: Point) -> bool:
    return point.trials[0].trial.implementation == "bertbench"


def _optimizations(point: Point) -> frozenset[str] | None:
    """The optimizations that were on, by the trial or the record of its rank; None where neither says so."""
    text = point.row.get("levers") or point.trials[0].ranks.get(0, {}).get("levers")
    return None if not text else frozenset(str(text).split("+")) - {"none"}


def _untried(winner: Winner, trials: Sequence[LoadedTrial], out: str) -> list[Advice]:
    """A precision and batch sizes that the run did not try; what they gain is not known."""
    row, settings, advice = winner.best.row, winner.best.row, []
    precisions = {str(trial.row.get("precision")) for trial in trials}
    native = winner.best.trials[0].environment.get("native_bf16")
    if row["precision"] in ("fp32", "tf32") and "bf16" not in precisions and native:
        seen = f"GEMMs run in {row['precision']}, and this device has bf16 instructions"
        why, command = "bf16 was not measured in this run", throughput_command(settings, out, precisions="bf16")
        advice.append(Advice(cause="precision", seen=seen, remedy="try bf16", command=command, unknown=why))
    sizes = {int(point.row["micro_batch_size"]) for point in winner.group}
    if len(sizes) > 1 and int(row["micro_batch_size"]) == max(sizes):
        seen = f"the largest micro batch measured, {max(sizes)}, is the fastest"
        why, command = "larger batches were not measured", throughput_command(settings, out, batch_sizes=2 * max(sizes))
        advice.append(Advice(cause="batch", seen=seen, remedy="try a larger one", command=command, unknown=why))
    return advice


def _of_precisions(winner: Winner, every: Sequence[Winner], out: str) -> list[Advice]:
    """The gain of the fastest other precision measured for the same training; a gain of 0 if none is faster."""
    mine = winner.best
    groups = [other.group for other in every if other is not winner]
    others = [[point for point in group if _equal(point.row, mine.row, (*_SAME_TRAINING, "data"))] for group in groups]
    fastest = [max(points, key=lambda point: point.samples_per_second) for points in others if points]
    if not fastest:
        return []
    rate = mine.samples_per_second
    faster = [one for one in fastest if one.samples_per_second > rate and apart(one.candidate, mine.candidate)]
    best = max(faster, key=lambda point: point.samples_per_second, default=mine)
    new, rates = best.row["precision"], f"{wording.number(best.samples_per_second)} and {wording.number(rate)}"
    return [
        Advice(
            cause="precision",
            seen=f"{new} is faster than {mine.row['precision']} in this run ({rates} samples/s)",
            remedy=f"train in {new}",
            command=throughput_command(best.row, out),
            saves=1 - rate / best.samples_per_second,
            of="time per sample",
            firm=True,
        )
    ]


def _equal(one: Row, other: Row, names: Sequence[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


def _of_floor(floor: Row, best: Point, trials: Sequence[LoadedTrial], out: str) -> list[Advice]:
    """The loss of a broken-down step that is largest: what a step could save if that part ran at its ceiling."""
    losses = [bar for bar in floor["waterfall"] if bar["kind"] == LOSS and bar["name"] not in _OTHER_CAUSE]
    if not losses:
        return []
    most = max(losses, key=lambda bar: float(bar["ms"]))
    seen = f'the part "{most["name"]}" takes {wording.number(most["ms"])} ms of each step more than its floor'
    remedy, command = _remedy(str(most["name"]), best, trials, out)
    return [Advice(cause="speed", seen=seen, remedy=remedy, command=command, saves=float(most["share"]))]


def _remedy(bar: str, best: Point, trials: Sequence[LoadedTrial], out: str) -> tuple[str, str]:
    row, settings = best.row, best.row
    levers = _optimizations(best) if _is_ours(best) and row["device"] == "cuda" else None
    if levers is not None and bar in _FUSED_BY_COMPILE and not levers & _NOT_COMPILED:
        names = "+".join(sorted((levers - _REPLACED_BY_COMPILE) | {"compile"}))
        return "fuse its operators with torch.compile", throughput_command(settings, out, levers=names)
    if levers is not None and bar == "attention" and "unpad" not in levers:
        names = "+".join(sorted({*levers, "unpad"}))
        return "compute real tokens alone", throughput_command(settings, out, levers=names)
    for one in _profiles(best, trials):
        if one.row.get("status") == "ok":
            path = shlex.quote(f"{out}/trials/{one.trial.trial_id}")
            return "see its operators in the profile of this run", f"bertbench analyze {path}"
    # A profile needs a folder of its own beside the sweep; it takes its configuration from it.
    words = ["bertbench", "profile", best.trials[0].trial.task, "--winner-of", out, "--out", f"{out}-profile"]
    return "find its operators in a profile", shlex.join(words)


def _profiles(best: Point, trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    return [one for one in trials if one.trial.kind == "profile" and _equal(one.row, best.row, _SAME_STEP)]


def _of_profiles(
    best: Point, trials: Sequence[LoadedTrial], profiled: Mapping[str, Sequence[Advice]], out: str
) -> list[Advice]:
    """What profiles advise, tested on the configuration as it was measured, without what disturbed a recording."""
    context = Context(row=best.row, run=out)
    advice = [advice for one in _profiles(best, trials) for advice in profiled.get(one.trial.trial_id, ())]
    advice = [one for one in advice if one.cause != "machine"]
    return [dataclasses.replace(one, command=context.command(one.cause) or one.command) for one in advice]


def advice_of_profiles(trials: Sequence[LoadedTrial], measured: Sequence[Point]) -> dict[str, list[Advice]]:
    """Return the advice from the profiles of the fastest configurations, by trial id, as complete_answers takes it."""
    from analysis.diagnose.profiles import open_profile

    profiles = [one for winner in winners(measured) for one in _profiles(winner.best, trials)]
    opened = {one.trial.trial_id: open_profile(one.directory) for one in profiles if one.directory.profile.is_dir()}
    return {name: profile.to_do(profile.explained()) for name, profile in opened.items()}
