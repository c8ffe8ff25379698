"""Cautions about a measurement, each with a remedy. Needs numpy only.

They are called cautions because `warnings` is a module of Python.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
SLOWED = 1.5
"""A profiler that makes steps so many times as long says little about their time."""
FASTER_LOADER = "give its DataLoader more workers, a faster disk or a core of their own"
"""What to try when a script waits for data."""
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
    """What was seen, with its number."""
    remedy: str


def of_trial(
    trial: Trial,
    result: Mapping[str, Any],
    rows: Sequence[Row],
    environment: Mapping[str, Any],
    telemetry: Sequence[Row] = (),
) -> list[dict[str, str]]:
    """Return the cautions of one trial as dictionaries {code, message, remedy}.

    Args:
        trial: what ran.
        result: what throughput.summarize found so far.
        rows: the measured steps, as ranks.combine makes them.
        environment: env.json.
        telemetry: rows of records.schema.TELEMETRY.
    """
    found = [
        *([] if trial.kind == "train" else _of_window(trial, result)),  # a training does not measure steps
        *_of_noise(rows, environment, telemetry),
        *_of_throttling(rows, telemetry),
        *_of_precision(trial, environment),
        *(_of_reading(result) if trial.kind == "input" else _of_waiting(trial, result)),
        *_of_peak(result),
    ]
    return [asdict(caution) for caution in found]


def disturbance(found: Iterable[Mapping[str, Any]]) -> str:
    """Return the message of the most direct of these cautions that says that the machine was disturbed, else ""."""
    messages = {caution["code"]: str(caution["message"]) for caution in found if caution["code"] in _DISTURBED}
    return next((messages[code] for code in _DISTURBED if code in messages), "")


def of_records(steps: Mapping[int, Sequence[Row]], ranks: Mapping[int, Row]) -> list[dict[str, str]]:
    """Return a caution for every rank that has fewer step records than it made steps."""
    found = []
    for rank, record in ranks.items():
        made, kept = record.get("steps"), len(steps.get(rank, ()))
        if isinstance(made, int) and kept < made:
            found.append(
                Caution(
                    "records_lost",
                    f"rank {rank} made {made} steps, but its record has only {kept}: the record is truncated",
                    "restore steps-*.csv, or remove the trial's folder and run the sweep again",
                )
            )
    return [asdict(caution) for caution in found]


def one_round(rounds: int) -> Caution:
    """Return the caution of a run whose competing implementations were measured in fewer than three rounds."""
    return Caution(
        "one_round" if rounds == 1 else "few_rounds",
        f"implementations were measured in {rounds} round{'' if rounds == 1 else 's'}; a process can be slow or fast "
        "as a whole, so differences between implementations are not conclusive",
        "run again with --rounds 3 or more: rounds are interleaved and added to the same run directory",
    )


def left_out(missing: int, planned: int) -> Caution:
    """Return the caution of a run that lacks trials of its last command."""
    return Caution(
        "left_out",
        f"{missing} of the {planned} trials of the last command were not measured",
        "run the same command again, with a larger time budget if it has one",
    )


def damaged(problem: str) -> Caution:
    """Return the caution of a run with a trial that cannot be read."""
    return Caution("damaged", problem, "remove that trial's folder, or restore its trial.json, and run the sweep again")


def of_run(environments: Sequence[Mapping[str, Any]]) -> list[Caution]:
    """Return the caution of a run whose trials were not all measured on one machine with one software.

    Args:
        environments: env.json of every trial; fields that a trial did not record are ignored.
    """
    seen: dict[str, list[str]] = {name: [] for name in ("device", "torch", "transformers", "commit of this suite")}
    for environment in environments:
        libraries = environment.get("libraries") or {}
        values = (environment.get("device_name"), libraries.get("torch"), libraries.get("transformers"))
        for name, value in zip(seen, (*values, environment.get("git_commit")), strict=True):
            if value is not None and str(value) not in seen[name]:
                seen[name].append(str(value))
    differing = [f"{name} ({', '.join(values)})" for name, values in seen.items() if len(values) > 1]
    if not differing:
        return []
    remedy = "measure all trials again on one machine with one software (a new --out)"
    return [Caution("mixed", f"trials that are compared here differ in {'; '.join(differing)}", remedy)]


def of_profiles(rows: Sequence[Row]) -> list[Caution]:
    """Return the caution of profiles under which a step took more than SLOWED times as long as without.

    Args:
        rows: of trials under a profiler, with `profile` where the same trial was measured without it.
    """
    ratios = [ratio for row in rows if (ratio := (row.get("profile") or {}).get("step_time_ratio")) is not None]
    if not ratios or max(ratios) <= SLOWED:
        return []
    message = f"a step took up to {max(ratios):.2f} times as long under the profiler as without it"
    return [Caution("profiler_slow", message, "read shares, not times; record fewer steps, or on an idle machine")]


def of_script(name: str, contents: Sequence[str]) -> list[Caution]:
    """Return the caution of a script whose rounds were measured with different contents.

    Args:
        name: of the script.
        contents: what load.script_contents returned for its rounds.
    """
    if len(contents) < 2:
        return []
    return [
        Caution(
            "script_changed",
            f"{name} was edited between its rounds ({len(contents)} contents, SHA-256 {', '.join(contents)}): they are "
            "taken together as one measurement",
            "give each version a --name or an --out of its own",
        )
    ]


def of_scaling(rows: Sequence[Row]) -> list[Caution]:
    """Return the caution of efficiencies that more devices cannot explain, far above what noise of the runs allows.

    Args:
        rows: what scaling.efficiency returned.
    """
    above = [row for row in rows if not quotable(row)]
    if not above:
        return []
    row = max(above, key=lambda row: row["efficiency"])
    return [
        Caution(
            "scaling_above_one",
            f"{row['scaling']} scaling of {row['implementation']} to {row['world_size']} ranks at micro batch "
            f"{row['micro_batch_size']} is {percent(row['efficiency'])}: the run on {row['base_world_size']} was "
            "likely disturbed, or used its threads poorly",
            "do not quote this scaling; measure both again on a quiet machine (a new --out, --rounds 3)",
        )
    ]


def quotable(row: Row) -> bool:
    """Whether a row of scaling.efficiency has an efficiency that more devices can explain."""
    high = row["efficiency"] > _MOST_EFFICIENT.get(row["basis"], _MOST_EFFICIENT_SHARED)
    return not (high and (row["efficiency_low"] is None or row["efficiency_low"] > 1))


def _of_window(trial: Trial, result: Mapping[str, Any]) -> Iterator[Caution]:
    warmup, measured = int(result["steps_warmup"]), int(result["steps_measured"])
    start, stop = trial.start_iteration, trial.stop_iteration
    cut = trial.kind == "measure" and measured > 0 and stop is not None and result["window_stop"] < stop
    if cut or (trial.kind == "measure" and start is None):
        longer = "let the script make more steps"
    elif trial.kind == "components":
        longer = "raise --max-seconds"
    elif start is not None:
        longer = "raise --stop"
    elif warmup + measured >= trial.max_steps:
        longer = "raise --max-steps"
    else:
        longer = "raise --max-seconds (MAX_SECONDS= of `make bench`)"
    if trial.kind in ("profile", "probe"):  # steps to be looked at, or to see whether they fit: not to be timed
        return
    if cut:
        yield Caution(
            "window_cut",
            f"the script made {result['window_stop']} steps: {measured} of the window [{start}, {stop}) were measured",
            f"{longer}, or lower --stop",
        )
    if result["warmup_source"] == "detected" and warmup and warmup >= _LONG_WARMUP * (warmup + measured):
        yield Caution(
            "warmup_long",
            f"warm-up took at least {warmup} of {warmup + measured} steps and may reach into the window",
            f"{longer}, or set the window (--start, --stop)",
        )
    if measured < FEWEST_STEPS:
        yield Caution(
            "too_few_steps",
            f"only {measured} steps were measured; a reliable interval needs at least {FEWEST_STEPS}",
            longer,
        )
    width = result.get("median_half_width")
    if measured >= FEWEST_STEPS and width is not None and width > trial.relative_half_width:
        yield Caution(
            "interval_wide",
            f"the interval of the median step time is ±{100 * width:.1f} %, "
            f"wider than {'' if trial.kind == 'measure' else 'the requested '}±{100 * trial.relative_half_width:.1f} %",
            f"{longer}, or use a quieter machine",
        )


def _of_noise(rows: Sequence[Row], environment: Mapping[str, Any], telemetry: Sequence[Row]) -> Iterator[Caution]:
    if len(rows) >= FEWEST_STEPS:
        times = np.array([row["step_time_ms"] for row in rows])
        median = float(np.median(times))
        deviation = statistics.robust_deviation(times) / median
        tail = statistics.percentile(times, 95) / median
        if deviation > _NOISY_DEVIATION or tail > _NOISY_TAIL:
            yield Caution(
                "noisy",
                f"step times vary: robust deviation {100 * deviation:.0f} % of the median, "
                f"95th percentile {tail:.2f} x the median",
                "close other programs, fix clocks and power mode, or measure longer; sequences of unequal length vary "
                "too",
            )
    foreign = _foreign_cpu(rows, telemetry)
    if foreign is not None and foreign > _FOREIGN_CPU_PERCENT:
        yield Caution(
            "loaded",
            f"other processes used {foreign:.0f} % of the CPUs while this trial was measured",
            "stop them, or reserve the machine, and measure again (a new --out)",
        )
    load, cores = environment.get("load_average"), (environment.get("cpu") or {}).get("logical_cores")
    if foreign is None and load and cores and load[0] > 0.5 * cores:
        yield Caution(
            "loaded",
            f"the load average was {load[0]:.1f} on {cores} logical cores before this trial began",
            "wait until other work ends, then measure again (a new --out); the previous trial may still count in this "
            "load",
        )


def _foreign_cpu(rows: Sequence[Row], telemetry: Sequence[Row]) -> float | None:
    if not rows or rows[0].get("start_ns") is None:
        return None
    values = inside(telemetry, "foreign_cpu_percent", rows[0]["start_ns"], rows[-1]["end_ns"])
    return float(np.median(values)) if len(values) else None


def _of_throttling(rows: Sequence[Row], telemetry: Sequence[Row]) -> Iterator[Caution]:
    if not rows or rows[0].get("start_ns") is None:
        return
    names, capped = throttle_reasons(telemetry, rows[0]["start_ns"], rows[-1]["end_ns"])
    if names:
        yield Caution(
            "throttled",
            f"a GPU throttled inside the window: {', '.join(names)}",
            "improve cooling or power supply, let it cool down, or lower the clocks to ones it sustains; then measure "
            "again (a new --out)",
        )
    if capped:
        yield Caution(
            "power_capped",
            "a GPU reached its software power cap inside the window",
            "usual for large GEMMs at the default limit; compare only runs with the same power limit",
        )


def _of_precision(trial: Trial, environment: Mapping[str, Any]) -> Iterator[Caution]:
    if trial.precision == "bf16" and environment.get("native_bf16") is False:
        yield Caution(
            "bf16_emulated",
            f"this {'CPU' if trial.device == 'cpu' else 'GPU'} has no bf16 matrix instructions: "
            "bf16 is emulated and slow",
            "measure with --precisions fp32 here; bf16 results of this machine do not carry over to others",
        )
    if trial.precision == "tf32" and trial.device == "cpu":
        yield Caution(
            "tf32_on_cpu", "tf32 is a GPU format; on a CPU it runs as fp32", "measure with --precisions fp32 here"
        )


def _of_reading(result: Mapping[str, Any]) -> Iterator[Caution]:
    read, rate = result.get("shards_read_samples_per_second"), result.get("samples_per_second")
    if read and rate and read < rate:
        yield Caution(
            "reading",
            f"compressed shards are read at {read:,.0f} samples/s, slower than batches are made, which limits a "
            "whole epoch",
            "if training needs more, store the shards uncompressed (data pretrain --gzip-level 0)",
        )


def _of_waiting(trial: Trial, result: Mapping[str, Any]) -> Iterator[Caution]:
    wait, step = result.get("data_wait_ms"), result.get("step_time_ms")
    if wait and step and wait > _DATA_WAIT_SHARE * step:
        yield Caution(
            "data_wait",
            f"each step waits for data for {percent(wait / step)} of its time",
            FASTER_LOADER
            if trial.kind == "measure"
            else "use a faster disk or leave a core for the loader; --data synthetic shows the difference",
        )
    for row in result.get("per_rank", []):
        if row["straggler"]:
            yield Caution(
                "straggler",
                f"rank {row['rank']} needs {percent(row['skew'])} more time for its own work than the fastest rank, "
                "and all others wait for it",
                "check that rank for other load, throttling or a slower device; give ranks equal devices and cores",
            )


def _of_peak(result: Mapping[str, Any]) -> Iterator[Caution]:
    mfu, peak = result.get("mfu"), result.get("measured_peak") or {}
    if mfu is not None and mfu > 1:
        yield Caution(
            "mfu_above_one",
            f"MFU is {percent(mfu)} of the measured peak: the peak was measured too low, or the machine got faster",
            "measure again on a quiet machine (a new --out); do not quote this MFU",
        )
    if (peak.get("drift") or 0) > _PEAK_DRIFT:
        yield Caution(
            "peak_changed",
            f"the measured peaks before and after the trial differ by {percent(peak['drift'])}: "
            "the machine changed speed",
            "check for other load or throttling; MFU uses the higher peak, so it may be too low",
        )
