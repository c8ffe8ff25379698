"""Between the search for the fastest configuration and trials: what may be tried here, how it is run and written."""

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.machine.devices import Devices, free_memory_share
from bench.plan.automatic import AUTO, resolve_strategy, strategy_fields
from bench.plan.autotune import Measured, Outcome, Point
from bench.plan.sweep import finished_result, record_request, run_trials
from bench.plan.task_flags import task_words
from bench.run.launch import LaunchOptions
from bert.model.memory import Memory, predict_memory
from bert.parallel import STRATEGIES
from bert.parallel.options import OPTIONS, options_text, read_options, zero_stage
from common.errors import UsageError
from common.flags import flag
from records.files import read_notes, write_record
from records.run import RunDirectory
from records.trial import Trial

STATE_FILE = "autotune.json"
# The allocator of a GPU leaves some of it unused.
_USABLE_SHARE = 0.94
# What `auto` tries on several devices, of those that are registered.
_SEVERAL = ("ddp", "fsdp", "deepspeed")
# Strategies that need a package of their own name.
_PACKAGES = ("deepspeed", "horovod")
_ZERO_STAGES = (0, 1, 2, 3)
_ELSEWHERE = "give another --out, or remove that folder"
# Fields of a trial that a search chooses, or that follow from the others.
_SEARCHED = frozenset(
    {"schema_version", "trial_id", "strategy", "strategy_options", "micro_batch_size", "grad_accum_steps",
     "activation_checkpointing", "memory_limit_bytes"}
)  # fmt: skip
# Fields of a trial that have an option of another name.
_OPTIONS = {
    "world_size": "--devices", "threads_per_rank": "--threads", "data_fingerprint": "data of the fingerprint",
    "task_options": "the task's options", "relative_half_width": "--precision-target",
}  # fmt: skip


def strategies_to_try(names: Sequence[str], devices: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (strategy, options) to try, and (strategy, why) of those that are not here.

    Strategies with ZeRO's stages come once for each.
    """
    found: list[tuple[str, str]] = []
    absent: list[tuple[str, str]] = []
    several = [name for name in _SEVERAL if name in STRATEGIES]
    wanted = [other for name in names for other in (several if name == AUTO and devices > 1 else [name])]
    for name in dict.fromkeys(resolve_strategy(name, devices) for name in wanted):
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            absent.append((name, f"the package {name} is not installed"))
        elif name == "single" and devices > 1:
            absent.append((name, f"it runs on one device, not on {devices}"))
        elif "zero_stage" in OPTIONS.get(name, ()):
            found += [(name, options_text(name, {"zero_stage": stage})) for stage in _ZERO_STAGES]
        else:
            found.append((name, ""))
    return found, absent


def memory_limit(run: RunDirectory, given_gib: float | None, devices: Devices, ranks: int) -> int | None:
    """Return the memory a rank may use: what was given, else what an earlier call found, else what is free.

    Another limit makes other trials of those that are finished: a search keeps its own.

    Raises:
        UsageError: the search in this folder was given another one.
    """
    state = _state(run)
    before = state.get("request", {}).get("memory_limit_gib")
    if "request" in state and before != given_gib:
        own, now = ("that was not given" if limit is None else f"of {limit}" for limit in (before, given_gib))
        raise UsageError(
            "settings-changed", f"the search in {run.path} has a --memory-limit-gib {own}, this one {now}: {_ELSEWHERE}"
        )
    if given_gib is not None:
        return int(given_gib * 2**30)
    if isinstance(limit := state.get("limit_bytes"), int):
        return limit
    if devices.kind == "cpu":
        return free_memory_share(ranks) >> 20 << 20
    sizes = [gpu.memory_bytes for gpu in devices.gpus[:ranks]]
    known = [size for size in sizes if size is not None]
    return int(_USABLE_SHARE * min(known)) if known else None


def check_same_search(run: RunDirectory, base: Trial) -> None:
    """Refuse a folder that holds the search for another model, other data or another way to measure.

    Raises:
        UsageError: it names what differs; what that search found would be written over.
    """
    before = _state(run).get("base", {})
    now = json.loads(json.dumps(base.to_json()))
    differ = [name for name in now if name not in _SEARCHED and name in before and before[name] != now[name]]
    if differ:
        said = ", ".join(f"{_OPTIONS.get(name) or flag(name)} {before[name]} (now {now[name]})" for name in differ[:3])
        raise UsageError(
            "settings-changed", f"{run.path} holds the search for another configuration, with {said}: {_ELSEWHERE}"
        )


def _state(run: RunDirectory) -> dict[str, Any]:
    """What an earlier call wrote, as far as it can be read. Raises NewerSchemaError for that of a newer bertbench."""
    found = read_notes(run.path / STATE_FILE)
    # By hand or by another program it may hold anything.
    return {name: value for name, value in found.items() if name == "limit_bytes" or isinstance(value, dict)}


def trial_of(base: Trial, point: Point) -> Trial:
    """Return the trial that measures a point."""
    return dataclasses.replace(
        base,
        **strategy_fields(point.strategy, point.options, base.world_size),
        micro_batch_size=point.micro_batch_size,
        grad_accum_steps=point.grad_accum_steps,
        activation_checkpointing=point.recompute,
        round=point.round,
    )


def point_of(trial: Trial) -> Point:
    """Return the point that a trial measures."""
    return Point(
        strategy=trial.strategy,
        options=trial.strategy_options,
        micro_batch_size=trial.micro_batch_size,
        grad_accum_steps=trial.grad_accum_steps,
        recompute=trial.activation_checkpointing,
        round=trial.round,
    )


def memory_of(base: Trial, point: Point) -> Memory:
    """Return what a rank is predicted to need at its peak."""
    return predict_memory(trial_of(base, point), base.device)


class Runner:
    """Runs a point as a trial of a run directory, unless it is there already. Used in bench.plan.sweep.locked(run)."""

    def __init__(
        self,
        run: RunDirectory,
        base: Trial,
        request: Mapping[str, Any],
        devices: Devices,
        options: LaunchOptions,
        note: Callable[[str], None],
        retry_failed: bool = False,
    ) -> None:
        self.trials: list[Trial] = []
        self._run = run
        self._base = base
        self._request = request
        self._devices = devices
        self._options = options
        self._note = note
        self._retry_failed = retry_failed

    def measure(self, point: Point, predicted: int, expected: int) -> Measured:
        """Return how the trial of a point ended."""
        trial = trial_of(self._base, point)
        self.trials.append(trial)
        note = self._note if len(self.trials) == 1 else _say_nothing
        (result,) = run_trials(
            self._run, [trial], self._request, self._devices, self._options, _show_nothing, note, self._retry_failed
        )
        return _measured(point, result, predicted, expected, trial.trial_id)

    def earlier(self) -> list[Measured]:
        """Return the trials of this search that ended well in the run directory, whichever call asked for them."""
        found = []
        for directory in self._run.trials():
            result = finished_result(directory)
            if result is None or result["status"] != "ok":
                continue
            trial = directory.read_trial()
            point = point_of(trial)
            if trial_of(self._base, point) == dataclasses.replace(
                trial, memory_limit_bytes=self._base.memory_limit_bytes
            ):
                predicted = memory_of(self._base, point).total
                found.append(_measured(point, result, predicted, predicted, trial.trial_id))
        return found

    def finish(self) -> None:
        """Have the run directory name all trials of the search; none is run again, refused ones neither."""
        record_request(self._run, self.trials, self._request)


def _measured(point: Point, result: Mapping[str, Any], predicted: int, expected: int, trial_id: str) -> Measured:
    return Measured(
        point=point,
        status=str(result["status"]),
        samples_per_second=result.get("samples_per_second"),
        peak_memory_bytes=result.get("peak_memory_bytes"),
        predicted_bytes=predicted,
        expected_bytes=expected,
        reason=str(result.get("reason") or ""),
        trial_id=trial_id,
        interval=_rate_interval(result),
    )


def _rate_interval(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of samples/s that the interval of the step time makes."""
    names = ("samples_per_second", "step_time_ms", "step_time_ms_high", "step_time_ms_low")
    values = [float(result[name]) for name in names if result.get(name) is not None]
    if len(values) < len(names):
        return None
    rate, time, high, low = values
    return rate * time / high, rate * time / low


def commands(base: Trial, point: Point) -> dict[str, list[str]]:
    """Return the calls of `bertbench throughput` and `bertbench train` that run a point."""
    options = read_options(point.options)
    own = [flag(name) for name in sorted(options)]
    values = [str(options[name]) for name in sorted(options)]
    more = ["--activation-checkpointing"] * point.recompute
    shared = ["--device", base.device, "--dropout", f"{base.dropout:g}", "--data", base.data]
    shared += ["--padding", base.padding] if base.padding else []
    shared += task_words(base.task, base.task_options)
    shared += ["--devices", str(base.world_size)]
    throughput = ["--presets", base.preset, "--precisions", base.precision, "--seq-lens", str(base.seq_len)]
    throughput += ["--strategies", point.strategy, "--batch-sizes", str(point.micro_batch_size)]
    throughput += ["--grad-accum", str(point.grad_accum_steps)]
    plural = [{"--zero-stage": "--zero-stages"}.get(name, name) for name in own]
    train = ["--preset", base.preset, "--precision", base.precision, "--seq-len", str(base.seq_len)]
    train += ["--strategy", point.strategy, "--micro-batch-size", str(point.micro_batch_size)]
    train += ["--grad-accum-steps", str(point.grad_accum_steps)]
    return {
        "throughput": ["bertbench", "throughput", base.task, *throughput, *_pairs(plural, values), *more, *shared],
        "train": ["bertbench", "train", base.task, *train, *_pairs(own, values), *more, *shared],
    }


def deepspeed_json(base: Trial, point: Point) -> dict[str, Any]:
    """Return the configuration that has DeepSpeed train a point."""
    return {
        "train_batch_size": point.micro_batch_size * point.grad_accum_steps * base.world_size,
        "train_micro_batch_size_per_gpu": point.micro_batch_size,
        "gradient_accumulation_steps": point.grad_accum_steps,
        "zero_optimization": {"stage": zero_stage(trial_of(base, point))},
        "bf16": {"enabled": base.precision == "bf16"},
        "fp16": {"enabled": base.precision == "fp16"},
    }


def write_state(run: RunDirectory, content: Mapping[str, Any]) -> None:
    """Write what the search has found so far. Raises StorageError."""
    write_record(run.path / STATE_FILE, content)


def row_of(item: Measured) -> dict[str, Any]:
    """Return a trial as plain values by name, those of its point among them."""
    fields = dataclasses.asdict(item)
    return {**fields.pop("point"), **fields}


def best_row(run: RunDirectory, outcome: Outcome) -> dict[str, Any] | None:
    """Return the best configuration as plain values, over all its rounds, and what is close to it.

    The rate and its interval are those of the report, the peak of memory is the highest of a round.
    """
    from analysis.diagnose.answer import points
    from analysis.load import load_run

    if outcome.best is None:
        return None
    ids = [found.trial_id for found in outcome.rounds]
    (whole,) = points([trial for trial in load_run(run) if trial.trial.trial_id in ids])
    peaks = [found.peak_memory_bytes for found in outcome.rounds if found.peak_memory_bytes is not None]
    own = row_of(outcome.best)
    del own["round"], own["trial_id"]
    own |= {"samples_per_second": outcome.rate, "interval": whole.rate_interval, "trial_ids": ids}
    own |= {"rounds": [found.rate for found in outcome.rounds], "peak_memory_bytes": max(peaks, default=None)}
    close = [
        {**dataclasses.asdict(point), "samples_per_second": found.rate, "rounds": list(found.rates)}
        for point, found in outcome.close
    ]
    return {**own, "decided": not outcome.undecided, "undecided": outcome.undecided, "close": close}


def _pairs(names: Sequence[str], values: Sequence[str]) -> list[str]:
    return [word for pair in zip(names, values, strict=True) for word in pair]


def _show_nothing(number: int, count: int, trial: Trial, result: Mapping[str, Any] | None, known: bool) -> None:
    """The search shows its points by itself."""


def _say_nothing(text: str) -> None:
    """It has been said."""
