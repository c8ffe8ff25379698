"""JSON documents of a trial and of a training: the fields that are computed with, whose types msgspec checks."""

from typing import Any, Required, TypedDict

import msgspec


class _Cpu(TypedDict, total=False):
    model: str | None
    physical_cores: int | None
    logical_cores: int | None


class _Gpu(TypedDict, total=False):
    name: str | None


class Environment(TypedDict, total=False):
    """env.json: bench.machine.environment.capture."""

    cpu: _Cpu | None
    memory_bytes: int | None
    gpus: list[_Gpu] | None
    native_bf16: bool | None
    libraries: dict[str, str | None] | None
    load_average: list[float] | None
    telemetry_unavailable: dict[str, str] | None
    """Reasons by quantity."""


class _Peak(TypedDict, total=False):
    before: float | None
    after: float | None
    dtype: str | None
    products: str | None
    """Type of the GEMMs that were measured, where it is not dtype."""


class _Backward(TypedDict):
    bytes: list[int]
    ready_ms: list[float]
    backward_ms: float


class RankRecord(TypedDict, total=False):
    """rank-<rank>.json: what a rank measured once, as the kinds of trials write it."""

    threads: int | None
    peak_memory_bytes: int | None
    measured_peak: _Peak | None
    """FLOP/s of large GEMMs before and after the trial."""
    measured_bandwidth: _Peak | None
    """Bytes/s of the memory."""
    shards_read: dict[str, float] | None
    """Compressed shards of an input trial: samples, seconds."""
    backward: _Backward | None
    """When the gradients of a backward pass were ready (bench.run.measure.backward_timeline)."""
    levers: str | None
    """Optimizations that were on."""
    levers_left_out: dict[str, str] | None
    """Reasons by optimization of the default set that has no effect in this trial."""
    unknown: dict[str, str] | None
    """Reasons by column."""
    series: dict[str, list[int]] | None
    """records.kinds.SERIES."""
    outcome: dict[str, Any] | None
    """Of a training: bench.run.train_worker."""


class _Caution(TypedDict):
    code: str
    message: str
    remedy: str


class _Profile(TypedDict, total=False):
    problem: str | None
    unprofiled_step_time_ms: float | None
    step_time_ratio: float | None


class Result(TypedDict, total=False):
    """result.json; reports compute its columns afresh."""

    status: Required[str]
    reason: str | None
    wall_seconds: float | None
    timeout_seconds: float | None
    samples_per_second: float | None
    step_time_ms: float | None
    steps_measured: int | None
    steps_warmup: int | None
    cautions: list[_Caution] | None
    profile: _Profile | None


class Request(TypedDict, total=False):
    """sweep.json."""

    request: Required[dict[str, Any]]
    trials: list[str]
    earlier: list[dict[str, Any]]


class _MaxBatch(TypedDict, total=False):
    implementation: Required[str]
    preset: Required[str]
    precision: Required[str]
    seq_len: Required[int]
    world_size: Required[int]
    micro_batch_size: Required[int]
    fails_at: int | None


class MaxBatches(TypedDict):
    """max_batch.json."""

    found: list[_MaxBatch]


class _TrainingRow(TypedDict):
    folder: str


class TrainingsRecord(TypedDict, total=False):
    """trainings.json."""

    target: dict[str, Any] | None
    data: dict[str, Any]
    rows: list[_TrainingRow]


class Best(msgspec.Struct):
    """The checkpoint with the best evaluation."""

    checkpoint: str
    applied_steps: int | None = None
    score: str | None = None
    value: float | None = None


class TrainState(msgspec.Struct, kw_only=True):
    """train.json: where a training stands, rewritten after every attempt."""

    phase: int | None = None
    total_steps: int = 0
    request: dict[str, Any] = {}
    """The options of the command."""
    loss: str = ""
    """What the training loss is made of."""
    finished: bool = False
    applied_steps: int = 0
    status: str = "interrupted"
    """How the last attempt ended, and why."""
    reason: str | None = ""
    checkpoint: str | None = None
    evaluation: dict[str, Any] | None = None
    best: Best | None = None
    attempts: list[str] = []
    """Ids of their trials."""
