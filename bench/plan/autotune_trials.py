"""Connect the search for the fastest configuration to trials: what can be tried, how it is run and recorded."""

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.implementations import OURS, TRAININGS
from bench.machine.devices import Devices, free_memory_share
from bench.plan.autotune import Asked, Measured, Outcome, predicted_bytes
from bench.plan.options import AUTO, resolve_strategy, task_words
from bench.plan.sweep import finished_result, record_request
from bert.parallel import STRATEGIES, devices_per_rank
from bert.parallel.options import OPTIONS, options_text, read_options, zero_stage
from common.errors import UsageError
from common.flags import flag
from common.reading import read_notes
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial

STATE_FILE = "autotune.json"
# The GPU allocator cannot use all memory.
_USABLE_SHARE = 0.94
# Strategies that `auto` tries on several devices, if registered.
_SEVERAL = ("ddp", "fsdp", "deepspeed")
# Strategies that need the package of the same name.
_PACKAGES = ("deepspeed", "horovod")
_ZERO_STAGES = (0, 1, 2, 3)
_ELSEWHERE = "give another --out, or remove that folder"
# Fields of a trial that a search chooses or that follow from other fields.
_SEARCHED = (
    "strategy", "strategy_options", "micro_batch_size", "grad_accum_steps", "activation_checkpointing",
    "memory_limit_bytes",
)  # fmt: skip
# Fields of a trial whose option has another name.
_OPTIONS = {
    "world_size": "--devices", "threads_per_rank": "--threads", "data_fingerprint": "data of the fingerprint",
    "task_options": "the task's options", "relative_half_width": "--precision-target",
}  # fmt: skip


def strategies_to_try(names: Sequence[str], devices: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (strategy, options) to try, and (strategy, reason) for unavailable ones.

    Strategies with ZeRO stages are listed once per stage.
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
    """Return the memory limit of a rank: the given one, otherwise that of an earlier call, otherwise free memory.

    The limit is part of a trial, so a search keeps its own to reuse finished trials.
    """
    state = _state(run)
    before = state.get("request", {}).get("memory_limit_gib")
    if "request" in state and before != given_gib:
        own, now = ("no limit" if limit is None else f"a limit of {limit} GiB" for limit in (before, given_gib))
        raise UsageError(
            "settings-changed",
            f"the search in {run.path} has {own}, but --memory-limit-gib gives {now}: {_ELSEWHERE}",
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
    """Refuse a folder with a search for another model, other data or other measuring options."""
    before = _state(run).get("base", {})
    now = json.loads(json.dumps(base.to_json()))
    free = {*_SEARCHED, "schema_version", "trial_id"}
    differ = [name for name in now if name not in free and name in before and before[name] != now[name]]
    if differ:
        said = ", ".join(f"{_OPTIONS.get(name) or flag(name)} {before[name]} (now {now[name]})" for name in differ[:3])
        raise UsageError("settings-changed", f"{run.path} has a search with other settings: {said}: {_ELSEWHERE}")


def _state(run: RunDirectory) -> dict[str, Any]:
    found = read_notes(run.path / STATE_FILE)
    # The file may have been edited or written by another program.
    return {name: value for name, value in found.items() if name == "limit_bytes" or isinstance(value, dict)}


class Runner:
    """Runs the trials of a search that are not in the run directory yet. Used in bench.plan.sweep.locked(run)."""

    def __init__(
        self,
        run: RunDirectory,
        base: Trial,
        request: Mapping[str, Any],
        measure: Callable[[Trial], Mapping[str, Any]],
    ) -> None:
        self._run = run
        self._base = base
        self._request = request
        self._measure = measure
        self._trials: list[Trial] = []

    def measure(self, asked: Asked) -> Measured:
        """Run a trial if needed; return its result."""
        self._trials.append(asked.trial)
        return _measured(asked.trial, self._measure(asked.trial), asked.predicted_bytes, asked.expected_bytes)

    def earlier(self) -> list[Measured]:
        """Return the successful trials of this search in the run directory, from any call."""
        found = []
        for directory in self._run.trials():
            result = finished_result(directory)
            if result is None or result["status"] != "ok":
                continue
            trial = directory.read_trial()
            searched = {name: getattr(trial, name) for name in (*_SEARCHED, "round")}
            own = dataclasses.replace(
                self._base, **searched, devices_per_rank=devices_per_rank(trial.strategy, trial.world_size)
            )
            if own == trial:
                # The memory limit may differ: it does not matter for a trial that fits.
                known = dataclasses.replace(trial, memory_limit_bytes=self._base.memory_limit_bytes)
                predicted = predicted_bytes(trial)
                found.append(_measured(known, result, predicted, predicted, trial.trial_id))
        return found

    def finish(self) -> None:
        """Record all trials of the search in the run directory without running any again."""
        record_request(self._run, self._trials, self._request)


def _measured(
    trial: Trial, result: Mapping[str, Any], predicted: int | None, expected: int | None, trial_id: str = ""
) -> Measured:
    return Measured(
        trial=trial,
        status=str(result["status"]),
        samples_per_second=result.get("samples_per_second"),
        peak_memory_bytes=result.get("peak_memory_bytes"),
        predicted_bytes=predicted,
        expected_bytes=expected,
        reason=str(result.get("reason") or ""),
        trial_id=trial_id or trial.trial_id,
        interval=_rate_interval(result),
    )


def _rate_interval(result: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = result.get("samples_per_second_low"), result.get("samples_per_second_high")
    return None if low is None or high is None else (float(low), float(high))


def commands(trial: Trial) -> dict[str, list[str]]:
    """Return the `bertbench throughput` and `bertbench train` commands for a configuration, as far as they exist."""
    options = read_options(trial.strategy_options)
    own = [flag(name) for name in sorted(options)]
    values = [str(options[name]) for name in sorted(options)]
    more = ["--activation-checkpointing"] * trial.activation_checkpointing
    shared = ["--device", trial.device, "--data", trial.data]
    shared += [] if trial.model else ["--dropout", f"{trial.dropout:g}"]
    shared += ["--padding", trial.padding] if trial.padding else []
    shared += task_words(trial.task, trial.task_options)
    shared += ["--devices", str(trial.world_size)]
    trust = ["--trust-remote-code"] * trial.trust_remote_code
    model = ["--model", trial.model, *trust] if trial.model else ["--presets", trial.preset]
    if trial.implementation != OURS:
        model += ["--implementations", trial.implementation]
    throughput = [*model, "--precisions", trial.precision, "--seq-lens", str(trial.seq_len)]
    throughput += ["--strategies", trial.strategy, "--batch-sizes", str(trial.micro_batch_size)]
    throughput += ["--grad-accum", str(trial.grad_accum_steps)]
    plural = [{"--zero-stage": "--zero-stages"}.get(name, name) for name in own]
    measured = ["bertbench", "throughput", trial.task, *throughput, *_pairs(plural, values), *more, *shared]
    if trial.implementation not in TRAININGS:
        return {"throughput": measured}
    train = ["--model", trial.model, *trust] if trial.model else ["--preset", trial.preset]
    train += ["--precision", trial.precision, "--seq-len", str(trial.seq_len)]
    train += ["--strategy", trial.strategy, "--micro-batch-size", str(trial.micro_batch_size)]
    train += ["--grad-accum-steps", str(trial.grad_accum_steps)]
    train += ["--implementation", trial.implementation] if trial.implementation != OURS else []
    return {
        "throughput": measured,
        "train": ["bertbench", "train", trial.task, *train, *_pairs(own, values), *more, *shared],
    }


def deepspeed_json(trial: Trial) -> dict[str, Any]:
    """Return the DeepSpeed configuration for a trial."""
    return {
        "train_batch_size": trial.global_batch_size,
        "train_micro_batch_size_per_gpu": trial.micro_batch_size,
        "gradient_accumulation_steps": trial.grad_accum_steps,
        "zero_optimization": {"stage": zero_stage(trial)},
        "bf16": {"enabled": trial.precision == "bf16"},
        "fp16": {"enabled": trial.precision == "fp16"},
    }


def write_state(run: RunDirectory, content: Mapping[str, Any]) -> None:
    """Write the state of the search. Raises StorageError."""
    write_record(run.path / STATE_FILE, content)


def point_of(trial: Trial) -> dict[str, Any]:
    """Return the fields of a trial that the search chose, by their names in the records."""
    return {
        "strategy": trial.strategy,
        "options": trial.strategy_options,
        "micro_batch_size": trial.micro_batch_size,
        "grad_accum_steps": trial.grad_accum_steps,
        "recompute": trial.activation_checkpointing,
        "round": trial.round,
    }


def row_of(item: Measured) -> dict[str, Any]:
    """Return a trial as plain values by name."""
    own = {field.name: getattr(item, field.name) for field in dataclasses.fields(item) if field.name != "trial"}
    return {**point_of(item.trial), **own}


def best_row(run: RunDirectory, outcome: Outcome) -> dict[str, Any] | None:
    """Return the best configuration over all its rounds as plain values, and those close to it.

    The rate and its interval are those of the report; the peak memory is the highest of all rounds.
    """
    from analysis.load import load_run
    from analysis.run_views import rate_interval

    if outcome.best is None:
        return None
    ids = [found.trial_id for found in outcome.rounds]
    interval = rate_interval([trial for trial in load_run(run) if trial.trial.trial_id in ids])
    peaks = [found.peak_memory_bytes for found in outcome.rounds if found.peak_memory_bytes is not None]
    own = row_of(outcome.best)
    del own["round"], own["trial_id"]
    own |= {"samples_per_second": outcome.rate, "interval": interval, "trial_ids": ids}
    own |= {"rounds": [found.rate for found in outcome.rounds], "peak_memory_bytes": max(peaks, default=None)}
    close = [
        {**point_of(trial), "samples_per_second": found.rate, "rounds": list(found.rates)}
        for trial, found in outcome.close
    ]
    return {**own, "decided": not outcome.undecided, "undecided": outcome.undecided, "close": close}


def _pairs(names: Sequence[str], values: Sequence[str]) -> list[str]:
    return [word for pair in zip(names, values, strict=True) for word in pair]
