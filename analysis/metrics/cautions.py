"""Cautions about a measurement: a stable code, what was seen with its number, and a remedy. Needs numpy only."""

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
FASTER_LOADER = "give its DataLoader more workers, a faster disk or a core of their own"
_VARIED = (
    "measure longer, fix clocks and power mode; evaluation, a slow loader and sequences of unequal length vary too"
)
_AGAIN = "measure again (a new --out)"
_REMEDIES = {
    "noisy": "close other programs, fix clocks and power mode, or measure longer; sequences of unequal length vary too",
    "loaded": f"stop them or wait until they end, or reserve the machine, then {_AGAIN}",
    "throttled": f"improve cooling or power supply, or lower the clocks to ones it sustains; then {_AGAIN}",
    "bf16_emulated": "measure with --precisions fp32 here; bf16 results of this machine do not carry over to others",
    "tf32_on_cpu": "measure with --precisions fp32 here",
    "reading": "if training needs more, store the shards uncompressed (data pretrain --gzip-level 0)",
    "data_wait": "use a faster disk or leave a core for the loader; --data synthetic shows the difference",
    "straggler": "check that rank for other load, throttling or a slower device; give ranks equal devices and cores",
    "mfu_above_one": f"{_AGAIN} on a quiet machine; do not quote this MFU",
    "peak_changed": "check for other load or throttling; MFU uses the higher peak, so it may be too low",
    "scaling_above_one": "do not quote this scaling; measure both again on a quiet machine (a new --out, --rounds 3)",
}
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


def of_trial(
    trial: Trial, result: Row, rows: Sequence[Row], environment: Row, telemetry: Sequence[Row] = ()
) -> list[dict[str, str]]:
    """Return the cautions of one trial as {code, message, remedy}; `rows` are its measured steps by `combine`."""
    remedies = _REMEDIES | ({"data_wait": FASTER_LOADER, "noisy": _VARIED} if trial.kind == "measure" else {})
    window = _of_window(trial, result) if trial.kind not in ("train", "profile", "probe") else ()
    others = (*_of_machine(trial, rows, environment, telemetry), *_of_result(trial, result))
    return [asdict(one) for one in (*window, *(Caution(code, message, remedies[code]) for code, message in others))]


def _of_window(trial: Trial, result: Row) -> Iterator[Caution]:
    warmup, measured, stop = int(result["steps_warmup"]), int(result["steps_measured"]), trial.stop_iteration
    script, wanted = trial.kind == "measure", trial.relative_half_width
    cut = bool(script and measured and stop and result["window_stop"] < stop)
    option = "--max-steps" if warmup + measured >= trial.max_steps else "--max-seconds"
    option = "--max-seconds" if trial.kind == "components" else option if stop is None else "--stop"
    longer = "let the script make more steps" if cut or (script and stop is None) else f"raise {option}"
    if cut:
        window = f"{measured} of the window [{trial.start_iteration}, {stop}) were measured"
        message = f"the script made {result['window_stop']} steps: {window}"
        yield Caution("window_cut", message, f"{longer}, or lower --stop")
    if result["warmup_source"] == "detected" and warmup and warmup >= _LONG_WARMUP * (warmup + measured):
        message = f"warm-up took at least {warmup} of {warmup + measured} steps and may reach into the window"
        yield Caution("warmup_long", message, f"{longer}, or set the window (--start, --stop)")
    if measured < FEWEST_STEPS:
        message = f"only {measured} steps were measured; a reliable interval needs at least {FEWEST_STEPS}"
        yield Caution("too_few_steps", message, longer)
    elif (width := result.get("median_half_width")) is not None and width > wanted:
        message = f"the interval of the median step time is ±{percent(width)}, wider than ±{percent(wanted)}"
        yield Caution("interval_wide", message, f"{longer}, or use a quieter machine")


def _of_machine(
    trial: Trial, rows: Sequence[Row], environment: Row, telemetry: Sequence[Row]
) -> Iterator[tuple[str, str]]:
    if len(rows) >= FEWEST_STEPS:
        times = np.array([row["step_time_ms"] for row in rows])
        median = float(np.median(times))
        deviation, tail = statistics.robust_deviation(times) / median, statistics.percentile(times, 95) / median
        if deviation > _NOISY_DEVIATION or tail > _NOISY_TAIL:
            spread = f"robust deviation {100 * deviation:.0f} % of the median, 95th percentile {tail:.2f} x the median"
            yield "noisy", f"step times vary: {spread}"
    timed = rows and rows[0].get("start_ns") is not None
    span = (rows[0]["start_ns"], rows[-1]["end_ns"]) if timed else (0, -1)
    load, cores = environment.get("load_average"), (environment.get("cpu") or {}).get("logical_cores")
    used = ""
    if len(foreign := inside(telemetry, "foreign_cpu_percent", *span)):
        if np.median(foreign) > _FOREIGN_CPU_PERCENT:
            used = f"{np.median(foreign):.0f} % of the CPUs while this trial was measured"
    elif load and cores and load[0] > 0.5 * cores:
        used = f"load average {load[0]:.1f} on {cores} logical cores before this trial began"
    if used:
        yield "loaded", f"other programs used the machine: {used}"
    if names := throttle_reasons(telemetry, *span):
        yield "throttled", f"a GPU throttled inside the window: {', '.join(names)}"
    if trial.precision == "bf16" and environment.get("native_bf16") is False:
        what = "CPU" if trial.device == "cpu" else "GPU"
        yield "bf16_emulated", f"this {what} has no bf16 matrix instructions: bf16 is emulated and slow"
    if trial.precision == "tf32" and trial.device == "cpu":
        yield "tf32_on_cpu", "tf32 is a GPU format; on a CPU it runs as fp32"


def _of_result(trial: Trial, result: Row) -> Iterator[tuple[str, str]]:
    read, rate = result.get("shards_read_samples_per_second"), result.get("samples_per_second")
    wait, step = result.get("data_wait_ms"), result.get("step_time_ms")
    if trial.kind == "input":
        if read and rate and read < rate:
            yield "reading", f"compressed shards are read at {read:,.0f} samples/s, slower than batches are made"
    else:
        if wait and step and wait > _DATA_WAIT_SHARE * step:
            yield "data_wait", f"each step waits for data for {percent(wait / step)} of its time"
        for row in result.get("per_rank", []):
            if row["straggler"]:
                more = f"{percent(row['skew'])} more time for its own work than the fastest rank"
                yield "straggler", f"rank {row['rank']} needs {more}; the others wait"
    mfu, drift = result.get("mfu"), (result.get("measured_peak") or {}).get("drift") or 0
    if mfu is not None and mfu > 1:
        yield "mfu_above_one", f"MFU is {percent(mfu)} of the measured peak, which was measured too low"
    if drift > _PEAK_DRIFT:
        yield "peak_changed", f"the measured peaks before and after the trial differ by {percent(drift)}"


def disturbance(cautions: Iterable[Row]) -> str:
    """Return the message of the most direct of these cautions that says that the machine was disturbed, else ""."""
    messages = {caution["code"]: str(caution["message"]) for caution in cautions}
    return next((messages[code] for code in _DISTURBED if code in messages), "")


def of_scaling(rows: Sequence[Row]) -> list[Caution]:
    """Return the caution of rows of scaling.efficiency that more devices cannot explain."""
    row = max((row for row in rows if not quotable(row)), key=lambda row: float(row["efficiency"]), default=None)
    if row is None:
        return []
    message = (
        f"{row['scaling']} scaling of {wording.implementation(row)} to {row['world_size']} ranks at micro batch "
        f"{row['micro_batch_size']} is {percent(row['efficiency'])}: the run on {row['base_world_size']} was disturbed"
    )
    return [Caution("scaling_above_one", message, _REMEDIES["scaling_above_one"])]


def quotable(row: Row) -> bool:
    """Whether a row of scaling.efficiency has an efficiency that more devices can explain."""
    high = row["efficiency"] > _MOST_EFFICIENT.get(row["basis"], _MOST_EFFICIENT_SHARED)
    return not (high and (row["efficiency_low"] is None or row["efficiency_low"] > 1))
