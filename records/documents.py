"""JSON documents of a trial and of a training: the fields that are computed with, whose types msgspec checks."""

from typing import Any, Required, TypedDict

import msgspec


class Environment(TypedDict, total=False):
    """env.json: bench.machine.devices.capture."""

    cpu: dict[str, Any] | None
    """model, physical_cores, logical_cores."""
    memory_bytes: int | None
    gpus: list[dict[str, Any]] | None
    """name."""
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
    backward: dict[str, Any] | None
    """bytes, ready_ms and backward_ms: when the gradients of a backward pass were ready (bench.run.measure)."""
    step_lacks: str | None
    """What is not installed without which the fast step of our own model is slower."""
    unknown: dict[str, str] | None
    """Reasons by column."""
    series: dict[str, list[int]] | None
    """records.components.SERIES."""
    outcome: dict[str, Any] | None
    """Of a training: bench.run.train_worker."""


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
    cautions: list[dict[str, str]] | None
    """code, message, remedy."""
    profile: dict[str, Any] | None
    """problem, unprofiled_step_time_ms, step_time_ratio."""


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
