"""Cautions about a measurement, each with a remedy. Needs numpy only.

They are called cautions because `warnings` is a module of Python.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis import wording
from analysis.metrics import statistics
from analysis.metrics.telemetry import inside, throttle_reasons
from analysis.wording import percent
from records.trial import Trial

Row = Mapping[str, Any]

# With fewer measured steps, even the interval of the median is unreliable.
FEWEST_STEPS = 8
# At most half of the steps can be found to be warm-up: near that limit, warm-up may have continued.
_LONG_WARMUP = 0.4
_NOISY_DEVIATION = 0.05
_NOISY_TAIL = 1.25
_FOREIGN_CPU_PERCENT = 10.0
_DATA_WAIT_SHARE = 0.05
_PEAK_DRIFT = 0.15
# A profiler that makes steps so many times as long says little about their time.
_SLOWED = 1.5
FASTER_LOADER = "give its DataLoader more workers, a faster disk or a core of their own"
_FASTER_INPUT = "use a faster disk or leave a core for the loader; --data synthetic shows the difference"
# Codes that say that the machine was disturbed, the plainest first.
_DISTURBED = ("loaded", "throttled", "drifted", "mfu_above_one")
# Scaling efficiency that is believed, by scaling's `basis`; ranks that share one CPU may use it better than one does.
_MOST_EFFICIENT = {"per device": 1.1, "same cores per rank": 1.1}
_MOST_EFFICIENT_SHARED = 1.5


@dataclass(frozen=True, slots=True)
class Caution:
    """One caution."""

    code: str
    message: str
    remedy: str


_AGAIN = "measure again (a new --out)"
_TEXTS = {
    "window_cut": (
        "the script made {} steps: {} of the window [{}, {}) were measured",
        "{longer}, or lower --stop",
    ),
    "warmup_long": (
        "warm-up took at least {} of {} steps and may reach into the window",
        "{longer}, or set the window (--start, --stop)",
    ),
    "too_few_steps": ("only {} steps were measured; a reliable interval needs at least {}", "{longer}"),
    "interval_wide": (
        "the interval of the median step time is ±{}, wider than ±{}",
        "{longer}, or use a quieter machine",
    ),
    "noisy": (
        "step times vary: robust deviation {:.0f} % of the median, 95th percentile {:.2f} x the median",
        "close other programs, fix clocks and power mode, or measure longer; sequences of unequal length vary too",
    ),
    "loaded": (
        "other programs used the machine: {}",
        f"stop them or wait until they end, or reserve the machine, then {_AGAIN}",
    ),
    "throttled": (
        "a GPU throttled inside the window: {}",
        f"improve cooling or power supply, or lower the clocks to ones it sustains; then {_AGAIN}",
    ),
    "power_capped": (
        "a GPU reached its software power cap inside the window",
        "usual for large GEMMs at the default limit; compare only runs with the same power limit",
    ),
    "bf16_emulated": (
        "this {} has no bf16 matrix instructions: bf16 is emulated and slow",
        "measure with --precisions fp32 here; bf16 results of this machine do not carry over to others",
    ),
    "tf32_on_cpu": ("tf32 is a GPU format; on a CPU it runs as fp32", "measure with --precisions fp32 here"),
    "reading": (
        "compressed shards are read at {:,.0f} samples/s, slower than batches are made",
        "if training needs more, store the shards uncompressed (data pretrain --gzip-level 0)",
    ),
    "data_wait": ("each step waits for data for {} of its time", "{loader}"),
    "straggler": (
        "rank {} needs {} more time for its own work than the fastest rank; the others wait",
        "check that rank for other load, throttling or a slower device; give ranks equal devices and cores",
    ),
    "mfu_above_one": (
        "MFU is {} of the measured peak, which was measured too low",
        f"{_AGAIN} on a quiet machine; do not quote this MFU",
    ),
    "peak_changed": (
        "the measured peaks before and after the trial differ by {}",
        "check for other load or throttling; MFU uses the higher peak, so it may be too low",
    ),
}
"""Message, with the values of the caution, and remedy."""

Seen = Iterator[tuple[str, tuple[Any, ...]]]


def of_trial(
    trial: Trial,
    result: Mapping[str, Any],
    rows: Sequence[Row],
    environment: Mapping[str, Any],
    telemetry: Sequence[Row] = (),
) -> list[dict[str, str]]:
    """Return the cautions of one trial as {code, message, remedy}; `rows` are its measured steps of ranks.combine."""
    seen = [
        *(_of_window(trial, result) if trial.kind not in ("train", "profile", "probe") else ()),
        *_of_machine(trial, rows, environment, telemetry),
        *_of_result(trial, result),
    ]
    texts = {"longer": _longer(trial, result), "loader": FASTER_LOADER if trial.kind == "measure" else _FASTER_INPUT}
    return [
        {"code": code, "message": _TEXTS[code][0].format(*values), "remedy": _TEXTS[code][1].format(**texts)}
        for code, values in seen
    ]


def _is_cut(trial: Trial, result: Mapping[str, Any]) -> bool:
    """Whether a script ended inside of its window."""
    stop = trial.stop_iteration
    return bool(trial.kind == "measure" and result["steps_measured"] and stop and result["window_stop"] < stop)


def _longer(trial: Trial, result: Mapping[str, Any]) -> str:
    """What makes more steps."""
    if _is_cut(trial, result) or (trial.kind == "measure" and trial.start_iteration is None):
        return "let the script make more steps"
    if trial.kind == "components":
        return "raise --max-seconds"
    if trial.start_iteration is not None:
        return "raise --stop"
    if int(result["steps_warmup"]) + int(result["steps_measured"]) >= trial.max_steps:
        return "raise --max-steps"
    return "raise --max-seconds (MAX_SECONDS= of `make bench`)"


def _of_window(trial: Trial, result: Mapping[str, Any]) -> Seen:
    warmup, measured = int(result["steps_warmup"]), int(result["steps_measured"])
    if _is_cut(trial, result):
        yield "window_cut", (result["window_stop"], measured, trial.start_iteration, trial.stop_iteration)
    if result["warmup_source"] == "detected" and warmup and warmup >= _LONG_WARMUP * (warmup + measured):
        yield "warmup_long", (warmup, warmup + measured)
    width = result.get("median_half_width")
    if measured < FEWEST_STEPS:
        yield "too_few_steps", (measured, FEWEST_STEPS)
    elif width is not None and width > trial.relative_half_width:
        yield "interval_wide", (percent(width), percent(trial.relative_half_width))


def _of_machine(trial: Trial, rows: Sequence[Row], environment: Mapping[str, Any], telemetry: Sequence[Row]) -> Seen:
    if len(rows) >= FEWEST_STEPS:
        times = np.array([row["step_time_ms"] for row in rows])
        median = float(np.median(times))
        deviation, tail = statistics.robust_deviation(times) / median, statistics.percentile(times, 95) / median
        if deviation > _NOISY_DEVIATION or tail > _NOISY_TAIL:
            yield "noisy", (100 * deviation, tail)
    foreign = np.array([])
    if rows and rows[0].get("start_ns") is not None:
        span = (rows[0]["start_ns"], rows[-1]["end_ns"])
        foreign = inside(telemetry, "foreign_cpu_percent", *span)
        if len(foreign) and np.median(foreign) > _FOREIGN_CPU_PERCENT:
            yield "loaded", (f"{np.median(foreign):.0f} % of the CPUs while this trial was measured",)
        names, capped = throttle_reasons(telemetry, *span)
        if names:
            yield "throttled", (", ".join(names),)
        if capped:
            yield "power_capped", ()
    load, cores = environment.get("load_average"), (environment.get("cpu") or {}).get("logical_cores")
    if not len(foreign) and load and cores and load[0] > 0.5 * cores:
        yield "loaded", (f"load average {load[0]:.1f} on {cores} logical cores before this trial began",)
    if trial.precision == "bf16" and environment.get("native_bf16") is False:
        yield "bf16_emulated", ("CPU" if trial.device == "cpu" else "GPU",)
    if trial.precision == "tf32" and trial.device == "cpu":
        yield "tf32_on_cpu", ()


def _of_result(trial: Trial, result: Mapping[str, Any]) -> Seen:
    read, rate = result.get("shards_read_samples_per_second"), result.get("samples_per_second")
    wait, step = result.get("data_wait_ms"), result.get("step_time_ms")
    if trial.kind == "input":
        if read and rate and read < rate:
            yield "reading", (read,)
    elif wait and step and wait > _DATA_WAIT_SHARE * step:
        yield "data_wait", (percent(wait / step),)
    for row in result.get("per_rank", []) if trial.kind != "input" else ():
        if row["straggler"]:
            yield "straggler", (row["rank"], percent(row["skew"]))
    mfu, drift = result.get("mfu"), (result.get("measured_peak") or {}).get("drift") or 0
    if mfu is not None and mfu > 1:
        yield "mfu_above_one", (percent(mfu),)
    if drift > _PEAK_DRIFT:
        yield "peak_changed", (percent(drift),)


def disturbance(cautions: Iterable[Mapping[str, Any]]) -> str:
    """Return the message of the most direct of these cautions that says that the machine was disturbed, else ""."""
    messages = {caution["code"]: str(caution["message"]) for caution in cautions if caution["code"] in _DISTURBED}
    return next((messages[code] for code in _DISTURBED if code in messages), "")


def of_records(steps: Mapping[int, Sequence[Row]], ranks: Mapping[int, Row]) -> list[dict[str, str]]:
    """Return a caution for every rank that has fewer step records than it made steps."""
    remedy = "restore steps-*.csv, or remove the trial's folder and run the sweep again"
    counts = [(rank, record.get("steps") or 0, len(steps.get(rank, ()))) for rank, record in ranks.items()]
    return [
        asdict(Caution("records_lost", f"rank {rank} made {made} steps, but its record has only {recorded}", remedy))
        for rank, made, recorded in counts
        if recorded < made
    ]


def of_profiles(rows: Sequence[Row]) -> list[Caution]:
    """Return the caution of profiles under which a step took 1.5 times as long as without, or longer."""
    most = max(((row.get("profile") or {}).get("step_time_ratio") or 0.0 for row in rows), default=0.0)
    message = f"a step took up to {most:.2f} times as long under the profiler as without it"
    remedy = "read shares, not times; record fewer steps, or on an idle machine"
    return [Caution("profiler_slow", message, remedy)] if most > _SLOWED else []


def of_scaling(rows: Sequence[Row]) -> list[Caution]:
    """Return the caution of rows of scaling.efficiency that more devices cannot explain."""
    above = [row for row in rows if not quotable(row)]
    if not above:
        return []
    row = max(above, key=lambda row: float(row["efficiency"]))
    message = (
        f"{row['scaling']} scaling of {wording.implementation(row)} to {row['world_size']} ranks at micro batch "
        f"{row['micro_batch_size']} is {percent(row['efficiency'])}: the run on {row['base_world_size']} was disturbed"
    )
    remedy = "do not quote this scaling; measure both again on a quiet machine (a new --out, --rounds 3)"
    return [Caution("scaling_above_one", message, remedy)]


def quotable(row: Row) -> bool:
    """Whether a row of scaling.efficiency has an efficiency that more devices can explain."""
    high = row["efficiency"] > _MOST_EFFICIENT.get(row["basis"], _MOST_EFFICIENT_SHARED)
    return not (high and (row["efficiency_low"] is None or row["efficiency_low"] > 1))
