"""The JSON documents of a trial and of a run: the types of their fields, by which msgspec checks them.

A declared field is used as its type; other fields of a document are shown, or not read.
"""

from typing import Annotated, Any, Required, TypedDict

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Cpu(TypedDict, total=False):
    model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None


class _Gpu(TypedDict, total=False):
    name: str | None


class Environment(TypedDict, total=False):
    """env.json, as bench.machine.environment.capture makes it."""

    device_name: str | None
    system: str | None
    python: str | None
    cpu: _Cpu | None
    memory_bytes: int | None
    gpus: list[_Gpu] | None
    driver: str | None
    native_bf16: bool | None
    libraries: dict[str, str | None] | None
    git_commit: str | None
    load_average: list[float] | None
    variables: dict[str, str] | None
    telemetry_unavailable: dict[str, str] | None


class _Peak(TypedDict, total=False):
    # Before and after a trial: of GEMMs in FLOP/s, of memory in bytes/s.
    before: float | None
    after: float | None
    dtype: str | None
    shape: list[int] | None
    products: str | None


class _ShardsRead(TypedDict):
    samples: int
    seconds: float


class _Backward(TypedDict):
    # When the gradients of a backward pass were ready (bench.run.measure.backward_of).
    bytes: list[int]
    ready_ms: list[float]
    backward_ms: float


class RankRecord(TypedDict, total=False):
    """rank-<rank>.json: what a rank measured once, as the kinds of trials write it."""

    steps: int
    threads: int | None
    peak_memory_bytes: int | None
    peak_memory_kind: str | None
    parameters: int | None
    measured_peak: _Peak | None
    measured_bandwidth: _Peak | None
    shards_read: _ShardsRead | None
    """Of compressed shards, in an input trial."""
    backward: _Backward | None
    levers: str | None
    levers_left_out: dict[str, str] | None
    """Reasons by optimization of the default set that has no effect in this trial."""
    unknown: dict[str, str] | None
    seconds: dict[str, float] | None
    series: dict[str, list[int]] | None
    place: dict[str, Any] | None
    framework: dict[str, Any] | str | None
    outcome: dict[str, Any] | None


class _Caution(TypedDict):
    code: str
    message: str
    remedy: str


class _Profile(TypedDict, total=False):
    problem: str | None
    profiled_step_time_ms: float | None
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
    peak_memory_bytes: int | None
    cautions: list[_Caution] | None
    profile: _Profile | None
    outcome: dict[str, Any] | None


class Request(TypedDict, total=False):
    """sweep.json."""

    request: Required[dict[str, Any]]
    trials: list[str]
    earlier: list[dict[str, Any]]


class _MaxBatch(TypedDict, total=False):
    implementation: Required[str]
    preset: Required[str]
    precision: Required[str]
    seq_len: Required[_Count]
    world_size: Required[_Count]
    micro_batch_size: Required[_Count]
    """Largest that fits, 0 for none."""
    fails_at: _Count | None


class MaxBatches(TypedDict):
    """max_batch.json: a row per search, with its settings, `failure`, `proved` and `tried` ([size, status])."""

    found: list[_MaxBatch]


class TrainState(TypedDict, total=False):
    """train.json: where a training stands, after every attempt."""

    finished: bool
    applied_steps: int
    total_steps: int
    phase: int | None
    status: str
    reason: str | None
    checkpoint: str | None
    loss: str | None
    evaluation: dict[str, Any] | None
    best: dict[str, Any] | None


class _Target(TypedDict):
    score: str
    value: float


class _Training(TypedDict, total=False):
    folder: Required[str]
    variant: Required[str]
    seed: int | None


class TrainingsRecord(TypedDict, total=False):
    """trainings.json: several trainings; their other columns are records.schema.TRAININGS."""

    target: _Target | None
    data: dict[str, Any]
    machine: dict[str, str]
    price_per_hour: float | None
    notes: list[str]
    rows: list[_Training]
