"""The columns of the tables in a run directory, each declared once; docs/reference/columns.md is made of this file."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it is called in files and in tables, and what its values are. An empty field is unknown."""

    name: str
    type: type
    unit: str
    """Empty for counts, ratios and texts."""
    says: str
    """What it is, for the page of columns."""
    label: str = ""
    """Heading in tables for people, with the unit; empty if no table shows it."""
    form: str = "number"
    """How tables write a value: a name in analysis.render.tables.FORMS."""


# The parts of a step, in its order: a step's row has them, and a result has their medians.
_PHASES = (
    Column("data_wait_ms", float, "ms", "time waiting for the batch", "data wait ms"),
    Column("forward_ms", float, "ms", "forward pass", "forward ms"),
    Column("backward_ms", float, "ms", "backward pass without communication_ms", "backward ms"),
    Column("communication_ms", float, "ms", "exposed communication of the backward pass", "exposed comm. ms"),
    Column("optimizer_ms", float, "ms", "optimizer step", "optimizer ms"),
)

# steps-<rank>.csv, one row per optimizer step of one rank. Times are this rank's.
STEPS = (
    Column("step", int, "", "number of the step, from 0", "step", "count"),
    Column("start_ns", int, "ns", "Unix time at which it began"),
    Column("step_time_ms", float, "ms", "duration", "step ms"),
    *_PHASES,
    Column("samples", int, "", "sequences", "samples", "count"),
    Column("real_tokens", int, "", "tokens without padding", "tokens", "count"),
    Column("padded_tokens", int, "", "all tokens, including padding", "tokens with padding", "count"),
    Column("predicted_positions", int, "", "masked positions with computed logits", "predicted", "count"),
    Column("model_flops", float, "FLOP", "FLOPs that the model's mathematics needs", "FLOP", "flops"),
    Column("loss", float, "", "training loss (in nats where it is a cross entropy)", "loss"),
    Column("learning_rate", float, "", "learning rate", "learning rate"),
)

_QUANTITIES = (
    "cpu_percent, foreign_cpu_percent (used by other processes), memory_used_bytes, load_average, "
    "gpu_utilization_percent, gpu_memory_utilization_percent (of the time, not of the bytes), gpu_memory_used_bytes, "
    "power_watts, energy_joules (a counter), sm_clock_mhz, memory_clock_mhz, temperature_celsius, throttle_reasons "
    "(NVML's bit mask)"
)
# telemetry-<node>.csv: long form, one row per reading, so that any machine's sensors fit.
TELEMETRY = (
    Column("time_ns", int, "ns", "Unix time of the reading"),
    Column("device", str, "", "source: cpu, cpuN (a package) or gpuN"),
    Column("quantity", str, "", _QUANTITIES),
    Column("value", float, "", "the reading, in the unit given by the quantity"),
)

# The fields of a trial that name a measurement, in the order in which every table shows them; the device stands apart.
_SHAPE = (
    Column("task", str, "", "task that is trained"),
    Column("implementation", str, "", "implementation of the model", "implementation"),
    Column("strategy", str, "", "parallelism", "strategy"),
    Column("preset", str, "", "model shape", "model"),
    Column("precision", str, "", "fp32, tf32, bf16, fp16 or fp8"),
    Column("seq_len", int, "", "maximum tokens per sequence", "length", "count"),
    Column("micro_batch_size", int, "", "sequences per rank and micro-step", "batch per device", "count"),
    Column("grad_accum_steps", int, "", "micro-steps per optimizer step", "accumulation", "count"),
    Column("world_size", int, "", "devices over all nodes", "devices", "count"),
)

# The further settings that name a measurement: a table shows them in one label with what they are options of.
_OPTIONS = (
    Column("strategy_options", str, "", "options of the strategy as JSON; empty without options"),
    Column("task_options", str, "", "options of the task as JSON; empty without options"),
    Column("step", str, "", "how our implementation computes a step: fast, or plain PyTorch with padding"),
    Column("activation_checkpointing", bool, "", "whether activations are computed again in the backward pass"),
)

# What is measured of a trial, in the order of results.csv: the head stands before its round, device and kind.
_MEASURED_HEAD = (
    Column("samples_per_second", float, "1/s", "samples of the window / its duration, all ranks", "samples/s"),
    Column("tokens_per_second", float, "1/s", "real tokens of the window / its duration, all ranks", "tokens/s"),
    Column("step_time_ms", float, "ms", "median over the window of the slowest rank's step time", "step ms"),
    Column("step_time_ms_low", float, "ms", "lower end of the median's 95 % interval", "step ms, low", "fine"),
    Column("step_time_ms_high", float, "ms", "upper end of the median's 95 % interval", "step ms, high", "fine"),
    Column("mfu", float, "", "model FLOP/s / measured peak FLOP/s of all devices", "MFU", "percent"),
    Column("peak_memory_bytes", int, "B", "highest peak memory of any rank", "peak memory", "size"),
)
_MEASURED_REST = (
    Column("padded_tokens_per_second", float, "1/s", "tokens with padding / duration, all ranks", "padded tokens/s"),
    Column("padding_efficiency", float, "", "real tokens / tokens with padding", "real tokens", "percent"),
    Column("step_time_ms_p5", float, "ms", "5th percentile of step times", "step ms, 5 %"),
    Column("step_time_ms_p95", float, "ms", "95th percentile of step times", "step ms, 95 %"),
    Column("step_time_ms_mean", float, "ms", "mean of step times", "mean step ms"),
    Column("step_time_ms_std", float, "ms", "standard deviation of step times", "deviation ms"),
    Column("steps_measured", int, "", "steps inside the window", "steps", "count"),
    Column("steps_warmup", int, "", "steps before the window", "warm-up", "count"),
    *(replace(phase, says=f"{phase.says}; median over the window") for phase in _PHASES),
    Column("model_flops_per_second", float, "FLOP/s", "peak of all devices together", "FLOP/s", "flops"),
    Column("measured_peak_flops", float, "FLOP/s", "peak measured with a large GEMM, of all devices", "peak", "flops"),
    Column("rank_skew", float, "", "own work of the slowest rank / that of the fastest rank - 1", "skew", "percent"),
    Column("energy_joules", float, "J", "of the training devices, over the window", "energy J"),
    Column("joules_per_sample", float, "J", "energy / samples of the window", "J/sample"),
    Column("cost_per_million_samples", float, "", "of a million samples, --price-per-hour", "cost / 10⁶ samples"),
    Column("shards_read_samples_per_second", float, "1/s", "reading compressed shards (--input-only)", "shards read/s"),
)

# results.csv, one row per trial; the first columns are a contract, measurement columns follow in this order.
RESULTS = (
    Column("trial_id", str, "", "name of the trial's folder"),
    Column("status", str, "", "ok, oom, refused, crashed, timeout or interrupted", "status"),
    *_SHAPE,
    *_MEASURED_HEAD,
    Column("round", int, "", "repetition, from 0", "round", "count"),
    Column("device", str, "", "cpu or cuda"),
    Column("kind", str, "", "throughput, input, probe, profile, comm, components or measure"),
    *_MEASURED_REST,
    *_OPTIONS,
    Column("nodes", int, "", "number of nodes", "nodes", "count"),
    Column("data", str, "", "synthetic, or the folder or file of the data", "data"),
    Column("reason", str, "", "why the status is not ok, or what ended a command of kind measure early"),
)

# curve.csv of a training, one row per step; steps made again after a resume replace the earlier ones.
CURVE = (
    Column("step", int, "", "step of the loop, from 0, as in steps-RANK.csv"),
    Column("applied_steps", int, "", "updates applied so far, this step included; an overflow applies none"),
    Column("samples", int, "", "sequences seen so far, including this step"),
    Column("loss", float, "", "training loss, mean over all ranks and micro-steps"),
    Column("learning_rate", float, "", "learning rate"),
)

# collectives.csv of a trial of kind comm, a row per size, placement and repetition.
COLLECTIVES = (
    Column("size_bytes", int, "B", "size of the whole tensor, even if a rank sends or keeps a part (as in nccl-tests)"),
    Column("count", int, "", "elements that a rank sends (all-gather) or keeps (reduce-scatter), else of the tensor"),
    Column("placement", str, "", "in_place or out_of_place"),
    Column("repetition", int, "", "from 0"),
    Column("iterations", int, "", "consecutive operations of this repetition"),
    Column("time_us", float, "µs", "time of one operation: the slowest rank's time / iterations"),
    Column("wrong", int, "", "wrong elements over all ranks"),
)

# components-<rank>.csv of a trial of kind components, one row per part of a step and round.
COMPONENTS = (
    Column("round", int, "", "from 0"),
    Column("component", str, "", "which part"),
    Column("calls", int, "", "consecutive calls, timed together"),
    Column("time_ms", float, "ms", "time of one call"),
)

_PROFILED_TRAINING = (
    Column("communication_share", float, "", "time of all collectives in a profiled step"),
    Column("communication_exposed_share", float, "", "time of exposed communication in a profiled step"),
    Column("communication_exposed_ms", float, "ms", "exposed communication per profiled step"),
    Column("all_reduce_share", float, "", "time of all-reduce in a profiled step"),
    Column("all_reduce_exposed_share", float, "", "time of exposed all-reduce"),
    Column("all_reduce_hidden_share", float, "", "time of all-reduce hidden by computation"),
    Column("all_reduce_ms", float, "ms", "per profiled step"),
    Column("profiled_step_ms", float, "ms", "mean step time with the profiler: the base of the communication shares"),
    Column("profiled_steps", int, "", "steps under the profiler"),
    Column("profile_problem", str, "", "why there is no profile"),
)

# trainings.csv of `train --vary`, `--seeds` and `--until`, one row per training; the scores of the last evaluation
# follow as score_NAME. With a target, everything ends with the first evaluation at or below it, or the last step.
TRAININGS = (
    Column("variant", str, "", "values of the varied options"),
    Column("seed", int, "", "seed of weights, data order and dropout"),
    Column("folder", str, "", "name of its run directory"),
    Column("status", str, "", "finished, reached or not (the target), how the last attempt ended, or not begun"),
    Column("implementation", str, "", "implementation of the model"),
    Column("strategy", str, "", "parallelism"),
    Column("backend", str, "", "communication backend: gloo or nccl"),
    Column("precision", str, "", "fp32, tf32, bf16, fp16 or fp8"),
    Column("devices", int, "", "devices, one process each"),
    Column("device", str, "", "cpu or cuda"),
    Column("global_batch_size", int, "", "sequences per update"),
    Column("micro_batch_size", int, "", "sequences per device and micro-step"),
    Column("grad_accum_steps", int, "", "micro-steps per update"),
    Column("steps", int, "", "updates made"),
    Column("total_steps", int, "", "updates in the whole run"),
    Column("samples", int, "", "sequences seen"),
    Column("tokens", int, "", "tokens seen, without padding"),
    Column("epochs", float, "", "samples / samples of an epoch"),
    Column("step_seconds", float, "s", "training time: time of the steps only"),
    Column("total_seconds", float, "s", "from the start of the processes, over all attempts"),
    Column("step_time_ms", float, "ms", "median step"),
    Column("samples_per_second", float, "1/s", "samples / step_seconds"),
    Column("epoch_seconds", float, "s", "time of an epoch, steps only, at that rate"),
    Column("speedup", float, "", "samples_per_second over that of the first variant with this seed"),
    Column("time_saved", float, "", "share of the first variant's step_seconds, if both saw as many samples"),
    Column("energy_joules", float, "J", "energy of the training devices from the first step on"),
    Column("cost", float, "", "total_seconds at --price-per-hour"),
    Column("last_loss", float, "", "loss of the last step, mean over the ranks"),
    Column("greatest_loss_difference", float, "", "from the first variant, over the steps both made"),
    Column("evaluations", int, "", "evaluations"),
    Column("best_score", str, "", "score that selects the best checkpoint"),
    Column("best_value", float, "", "its value at the best checkpoint"),
    Column("peak_memory_bytes", int, "B", "of the rank that needs the most"),
    Column("peak_memory_kind", str, "", "device allocator, or resident set of the process"),
    *_PROFILED_TRAINING,
    Column("attempts", int, "", "number of calls that trained it"),
    Column("reason", str, "", "why the status is neither finished nor reached"),
)


def names(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return what the columns are called in files, in order."""
    return tuple(column.name for column in columns)


def parsers(columns: Iterable[Column]) -> dict[str, Callable[[str], Any]]:
    """Return what makes a value of a column's text, by name, as records.files.typed_rows takes them."""
    return {column.name: column.type for column in columns}


STEP_COLUMNS = parsers(STEPS)
TELEMETRY_COLUMNS = parsers(TELEMETRY)
SHAPE_COLUMNS = names(_SHAPE)
OPTION_COLUMNS = names(_OPTIONS)
MEASURED_COLUMNS = names((*_MEASURED_HEAD, *_MEASURED_REST))
RESULT_COLUMNS = names(RESULTS)
RESULT = {column.name: column for column in RESULTS}
PHASE_COLUMNS = names(_PHASES)
CURVE_COLUMNS = parsers(CURVE)
COLLECTIVE_COLUMNS = parsers(COLLECTIVES)
COMPONENT_COLUMNS = parsers(COMPONENTS)
TRAINING_COLUMNS = names(TRAININGS)
PROFILED_TRAINING_COLUMNS = names(_PROFILED_TRAINING)
