"""The complete answer of a run (how fast, how good, what to do first) for the page, the terminal and --json."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.diagnose.advice import Advice, Context, another, light_command, ranked, throughput_command
from analysis.diagnose.answer import Answer, Point, Winner, answers, script_answer, script_rounds, winners
from analysis.load import LoadedTrial
from analysis.metrics.cautions import FASTER_LOADER, disturbance
from analysis.metrics.comparison.winner import apart
from analysis.metrics.kernels.devices import record_of
from analysis.metrics.speed_of_light import LOSS, NOT_EXPLAINED
from records.run import RunDirectory

Row = Mapping[str, Any]

_OWN_CAUSE = ("waiting for data", "communication", "GEMMs on padding", NOT_EXPLAINED)
"""Bars of a waterfall that other advice covers, or that have no known cause."""
_SAME_SPEED = 0.25
"""Relative difference of the step of a breakdown from the trial's step up to which both measured the same."""
_SAME_STEP = ("task", "preset", "precision", "seq_len", "micro_batch_size", "world_size", "device", "implementation")
_SAME_TRAINING = ("task", "preset", "seq_len", "world_size", "device", "implementation", "data")


def complete_answers(
    trials: Sequence[LoadedTrial],
    found: Sequence[Point],
    ratios: Sequence[Row],
    out: str,
    profiled: Mapping[str, Sequence[Advice]] | None = None,
) -> list[Answer]:
    """Return one answer per model, the one measured most first, with badge, how good it is, and advice; then one of all
    scripts that were measured.

    Args:
        trials: all of the run, those of kind components too.
        found: what answer.points returned.
        ratios: what within_run.ratios_of returned.
        out: the run directory, as commands name it.
        profiled: advice from profiles, by trial id.
    """
    said, best = answers(found, ratios), winners(found)
    result = []
    for winner, answer in zip(best, said, strict=True):
        floor, doubtful = _floor(trials, winner.best)
        badge = disturbed(winner.best)
        good, mfu, numbers = _how_good(winner.best, floor)
        if doubtful is not None:
            good = (_light_again(*doubtful, winner.best.row, out), *good)
        advice = [
            *_machine(badge, throughput_command(winner.best.row, another(out))),
            *_of_row(winner, trials, out),
            *([] if floor is None or badge else _of_floor(floor, winner.best, trials, out)),
            *_of_precisions(winner, best, out),
            *_of_profiles(winner.best, trials, profiled or {}, out),
        ]
        chosen = tuple(ranked(advice))
        whole = dataclasses.replace(answer, badge=badge, good=good, mfu=mfu, advice=chosen, numbers=numbers)
        result.append(dataclasses.replace(whole, best=winner.best))
    scripts = [trial for trial in trials if trial.trial.kind == "measure"]
    return [*result, *([_of_scripts(scripts, profiled or {}, out)] if scripts else [])]


def _of_scripts(trials: Sequence[LoadedTrial], profiled: Mapping[str, Sequence[Advice]], out: str) -> Answer:
    """The answer of measured scripts, with advice for the one of the headline, by its last round."""
    answer, rounds = script_answer(trials), script_rounds(trials)[0]
    last = rounds[-1]
    if not last.ok:
        return answer
    row, badge = last.row, disturbance(last.row.get("cautions") or [])
    own = Context(row={**row, "kind": last.trial.kind, "command": last.trial.command}, run=out)
    advice = [one for trial in rounds for one in profiled.get(trial.trial.trial_id, ())]
    wait = row.get("data_wait_ms")
    if wait:
        seen = f"each step waits {wording.number(wait)} ms for data"
        advice.append(Advice(cause="data", seen=seen, remedy=FASTER_LOADER, saves=wait / row["step_time_ms"]))
    advice += _machine(badge, own.command("machine"))
    return dataclasses.replace(answer, badge=badge, advice=tuple(ranked(advice)))


def disturbed(point: Point) -> str:
    """Return what disturbed the machine while a configuration was measured; "" if nothing was detected."""
    return disturbance(caution for trial in point.trials for caution in trial.row.get("cautions") or [])


def _floor(trials: Sequence[LoadedTrial], best: Point) -> tuple[Row | None, tuple[str, str] | None]:
    """The row of the step of the same shape that was broken down; where there is none that can be used, None and the id
    of an unusable trial with the reason.
    """
    parts = [one for one in trials if one.trial.kind == "components" and one.row.get("of_floor") is not None]
    doubts = [(part, _doubt(part.row, best)) for part in parts if _equal(part.row, best.row, _SAME_STEP)]
    sound = next((part.row for part, doubt in doubts if not doubt), None)
    if sound is not None or not doubts:
        return sound, None
    part, doubt = doubts[0]
    return None, (part.trial.trial_id, doubt)


def _doubt(floor: Row, best: Point) -> str:
    """Why a broken-down step says nothing about a configuration; "" where it does."""
    own, step, least = float(floor["step_time_ms"]), best.step_ms.value, float(floor["floor_ms"])
    cautions = floor.get("cautions") or []
    if (seen := disturbance(cautions)) or (
        seen := next((str(one["message"]) for one in cautions if one["code"] == "not_explained"), "")
    ):
        return seen
    if min(own, step) < least:
        return f"a step of {wording.number(min(own, step))} ms is below the floor of {wording.number(least)} ms"
    if abs(own / step - 1) > _SAME_SPEED:
        return f"its step took {wording.number(own)} ms, but a step of this trial takes {wording.number(step)} ms"
    return ""


def _light_again(trial_id: str, doubt: str, row: Row, out: str) -> str:
    folder = RunDirectory(Path(out)).trial(trial_id).path
    return f"Delete {folder} and measure the speed of light again with `{light_command(row, out)}`: {doubt}."


def _how_good(best: Point, floor: Row | None) -> tuple[tuple[str, ...], str, dict[str, Any]]:
    row, sentences, of_peak = best.row, [], ""
    low, high = best.rate_interval
    one_round = best.rounds == 1 and best.step_ms.low == best.step_ms.high
    mfu = best.mfu
    numbers: dict[str, Any] = {
        "samples_per_second": best.samples_per_second,
        "samples_per_second_low": None if one_round else low,
        "samples_per_second_high": None if one_round else high,
        "rounds": best.rounds,
        "of_floor": None if floor is None else floor["of_floor"],
        "mfu": mfu,
        "record": None,
    }
    if floor is not None:
        step, least = wording.number(floor["step_time_ms"]), wording.number(floor["floor_ms"])
        share = wording.percent(floor["of_floor"])
        sentences.append(f"It reaches {share} of the speed of light measured here: {least} of {step} ms a step.")
    if mfu is not None:
        peak = wording.flops(row.get("measured_peak_flops"))
        of_peak = f"MFU is {wording.percent(mfu)} (measured peak {peak})."
    record = record_of(str(best.trials[0].environment.get("device_name") or ""), row)
    if record is not None:
        of_record = best.samples_per_second / int(row["world_size"]) / record.samples_per_second
        numbers["record"] = {**record._asdict(), "share": of_record}
        rate = wording.number(record.samples_per_second)
        sentences.append(
            f"That is {wording.percent(of_record)} of the published {rate} samples/s per device "
            f"({record.conditions}; {record.source})."
        )
    return tuple(sentences), of_peak, numbers


def _machine(badge: str, command: str) -> list[Advice]:
    if not badge:
        return []
    why = "the undisturbed speed was not measured"
    remedy = "wait until the machine is idle, then measure again"
    return [Advice(cause="machine", seen=badge, remedy=remedy, command=command, unknown=why)]


def _of_row(winner: Winner, trials: Sequence[LoadedTrial], out: str) -> list[Advice]:
    """Advice from the measured parts of a step and the configuration, without options that it already uses."""
    row = winner.best.row
    step, exposed = float(row["step_time_ms"]), row.get("communication_ms") or 0.0
    found = []
    if (wait := row.get("data_wait_ms") or 0.0) and str(row.get("data")) != "synthetic":
        seen = f"each step waits {wording.number(wait)} ms for data"
        remedy = "prepare the data in advance or use a faster disk (synthetic data show the limit)"
        command = throughput_command(row, out, data="synthetic")
        found.append(Advice(cause="data", seen=seen, remedy=remedy, command=command, saves=wait / step))
    if exposed and int(row["world_size"]) > 1:
        seen = f"{wording.number(exposed)} ms of communication are exposed in each step"
        more = 4 * int(row.get("grad_accum_steps") or 1)
        command = throughput_command(row, out, grad_accum=more)
        remedy = f"communicate less often, with {more} micro-steps per step"
        found.append(Advice(cause="communication", seen=seen, remedy=remedy, command=command, saves=exposed / step))
    own = str(row["implementation"]).startswith("bertbench")
    padding = row.get("padding_efficiency")
    if own and padding is not None and not any(_without_padding(one) for one in _same_shape(winner)):
        command = throughput_command(row, out, levers="auto")
        seen = f"{wording.percent(1 - padding)} of all computed positions are padding"
        found.append(
            Advice(cause="padding", seen=seen, remedy="compute real tokens alone", command=command, saves=1 - padding)
        )
    return [*found, *_untried(winner, trials, out)]


def _same_shape(winner: Winner) -> list[Point]:
    shape = ("micro_batch_size", "world_size", "grad_accum_steps")
    alike = [one for one in winner.group if all(one.row.get(name) == winner.best.row.get(name) for name in shape)]
    return [one for one in alike if str(one.row["implementation"]).startswith("bertbench")]


def _optimizations(point: Point) -> frozenset[str] | None:
    """The optimizations that were on: those that the trial names, otherwise those that its rank has recorded.

    None where neither says so: runs from before ranks recorded them.
    """
    text = point.row.get("levers") or point.trials[0].ranks.get(0, {}).get("levers")
    return None if not text else frozenset(str(text).split("+")) - {"none"}


def _without_padding(point: Point) -> bool:
    """Whether a configuration computes real tokens alone; one that does not say so had a default, which does."""
    names = _optimizations(point)
    return names is None or "unpad" in names


def _untried(winner: Winner, trials: Sequence[LoadedTrial], out: str) -> list[Advice]:
    """A precision and batch sizes that the run did not try; what they gain is not known."""
    row, found = winner.best.row, []
    precisions = {str(trial.row.get("precision")) for trial in trials}
    native = winner.best.trials[0].environment.get("native_bf16")
    if row["precision"] in ("fp32", "tf32") and "bf16" not in precisions and native:
        command = throughput_command(row, out, precisions="bf16")
        seen = f"GEMMs run in {row['precision']}, and this device has bf16 instructions"
        why = "bf16 was not measured in this run"
        found.append(Advice(cause="precision", seen=seen, remedy="try bf16", command=command, unknown=why))
    sizes = {int(point.row["micro_batch_size"]) for point in winner.group}
    if len(sizes) > 1 and int(row["micro_batch_size"]) == max(sizes):
        command = throughput_command(row, out, batch_sizes=2 * max(sizes))
        seen = f"the largest micro batch measured, {max(sizes)}, is the fastest"
        why = "larger batches were not measured"
        found.append(Advice(cause="batch", seen=seen, remedy="try a larger one", command=command, unknown=why))
    return found


def _of_precisions(winner: Winner, every: Sequence[Winner], out: str) -> list[Advice]:
    """The gain of the fastest other precision measured for the same training; a gain of 0 if none is faster."""
    mine = winner.best
    fastest = [
        max(points, key=lambda point: point.samples_per_second)
        for other in every
        if other is not winner
        if (points := [point for point in other.group if _equal(point.row, mine.row, _SAME_TRAINING)])
    ]
    if not fastest:
        return []
    faster = [
        point
        for point in fastest
        if point.samples_per_second > mine.samples_per_second and apart(point.candidate, mine.candidate)
    ]
    best = max(faster, key=lambda point: point.samples_per_second, default=mine)
    saves = 1 - mine.samples_per_second / best.samples_per_second
    new, old = best.row["precision"], mine.row["precision"]
    rates = f"{wording.number(best.samples_per_second)} and {wording.number(mine.samples_per_second)} samples/s"
    seen = f"{new} is faster than {old} in this run ({rates})"
    command = throughput_command(best.row, out)
    remedy = f"train in {new}"
    of = "time per sample"
    return [Advice(cause="precision", seen=seen, remedy=remedy, command=command, saves=saves, of=of, firm=True)]


def _equal(one: Row, other: Row, names: Sequence[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


_FUSED_BY_COMPILE = ("head and its loss", "elementwise parts", "casts and sums of gradients")
"""Bars of a waterfall that torch.compile makes shorter on a GPU."""
_REPLACED_BY_COMPILE = frozenset({"fused-elementwise", "bf16-weights"})
"""Optimizations that torch.compile takes the place of: other kernels of the same operators, and its own casts."""
_NOT_COMPILED = frozenset({"compile", "fp8"})
"""Optimizations with which advice to compile would be none, or would be refused."""


def _of_floor(floor: Row, best: Point, trials: Sequence[LoadedTrial], out: str) -> list[Advice]:
    """The loss of a broken-down step that is largest: what a step could save if that part ran at its ceiling."""
    losses = [bar for bar in floor["waterfall"] if bar["kind"] == LOSS and bar["name"] not in _OWN_CAUSE]
    if not losses:
        return []
    most = max(losses, key=lambda bar: float(bar["ms"]))
    seen = f'the part "{most["name"]}" takes {wording.number(most["ms"])} ms of each step more than its floor'
    remedy, command = _remedy(str(most["name"]), best, trials, out)
    return [Advice(cause="speed", seen=seen, remedy=remedy, command=command, saves=float(most["share"]))]


def _remedy(bar: str, best: Point, trials: Sequence[LoadedTrial], out: str) -> tuple[str, str]:
    row = best.row
    own = str(row["implementation"]).startswith("bertbench")
    levers = _optimizations(best) if own and row["device"] == "cuda" else None
    if levers is not None and bar in _FUSED_BY_COMPILE and not levers & _NOT_COMPILED:
        names = "+".join(sorted((levers - _REPLACED_BY_COMPILE) | {"compile"}))
        return "fuse its operators with torch.compile", throughput_command(row, out, levers=names)
    if levers is not None and bar == "attention" and "unpad" not in levers:
        return "compute real tokens alone", throughput_command(row, out, levers="+".join(sorted({*levers, "unpad"})))
    profiles = [one for one in _profiles(best, trials) if one.row.get("status") == "ok"]
    if profiles:
        path = f"{out}/trials/{profiles[0].trial.trial_id}"
        return "see its operators in the profile of this run", f"bertbench analyze {shlex.quote(path)}"
    # A profile needs a folder of its own beside the sweep; it takes its configuration from it.
    task = str(row["task"]).split(" ", 1)[0]
    command = shlex.join(["bertbench", "profile", task, "--winner-of", out, "--out", f"{out}-profile"])
    return "find its operators in a profile", command


def _profiles(best: Point, trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    return [one for one in trials if one.trial.kind == "profile" and _equal(one.row, best.row, _SAME_STEP)]


def _of_profiles(
    best: Point, trials: Sequence[LoadedTrial], profiled: Mapping[str, Sequence[Advice]], out: str
) -> list[Advice]:
    """What profiles advise, tested on the configuration as it was measured.

    What disturbed the machine during a recording says nothing about the measured speed.
    """
    own = Context(row=best.row, run=out)
    found = [advice for one in _profiles(best, trials) for advice in profiled.get(one.trial.trial_id, ())]
    return [
        dataclasses.replace(one, command=own.command(one.cause) or one.command)
        for one in found
        if one.cause != "machine"
    ]


def advice_of_profiles(trials: Sequence[LoadedTrial], found: Sequence[Point]) -> dict[str, list[Advice]]:
    """Return the advice from the profiles of the fastest configurations, by trial id, as complete_answers takes it."""
    from analysis.diagnose.profiles import open_profile

    advised = {}
    for winner in winners(found):
        for one in _profiles(winner.best, trials):
            if one.directory.profile.is_dir():
                opened = open_profile(one.directory)
                advised[one.trial.trial_id] = opened.to_do(opened.explained())
    return advised
