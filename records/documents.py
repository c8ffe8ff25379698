"""The JSON documents of a trial and of a run: the types of their fields, by which msgspec checks them.

A declared field is used as its type; other fields of a document are shown, or not read.
"""

from pathlib import Path
from typing import Any, Required, TypedDict

import msgspec

from common.errors import SchemaError
from records.files import read_record


class Cpu(TypedDict, total=False):
    """The CPU of env.json."""

    model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None


class Gpu(TypedDict, total=False):
    """A GPU of env.json."""

    name: str | None


class Environment(TypedDict, total=False):
    """env.json, as bench.machine.environment.capture makes it."""

    device_name: str | None
    system: str | None
    python: str | None
    cpu: Cpu | None
    memory_bytes: int | None
    gpus: list[Gpu] | None
    driver: str | None
    native_bf16: bool | None
    libraries: dict[str, str | None] | None
    git_commit: str | None
    load_average: list[float] | None
    variables: dict[str, str] | None
    telemetry_unavailable: dict[str, str] | None


class Peak(TypedDict, total=False):
    """Rates before and after a trial: of GEMMs in FLOP/s, of memory in bytes/s."""

    before: float | None
    after: float | None
    dtype: str | None
    shape: list[int] | None
    products: str | None


class Amount(TypedDict):
    """Samples read from compressed shards, and how long that took."""

    samples: int
    seconds: float


class Backward(TypedDict):
    """When the gradients of a backward pass were ready (bench.run.measure.backward_of)."""

    bytes: list[int]
    ready_ms: list[float]
    backward_ms: float


class Place(TypedDict, total=False):
    """Where a rank ran."""

    host: str
    pid: int
    device: str


class RankRecord(TypedDict, total=False):
    """rank-<rank>.json, as the kinds of trials write it."""

    steps: int
    threads: int | None
    peak_memory_bytes: int | None
    peak_memory_kind: str | None
    parameters: int | None
    measured_peak: Peak | None
    measured_bandwidth: Peak | None
    shards_read: Amount | None
    backward: Backward | None
    levers: str | None
    levers_left_out: dict[str, str] | None
    unknown: dict[str, str] | None
    seconds: dict[str, float] | None
    series: dict[str, list[int]] | None
    place: Place | None
    framework: dict[str, Any] | str | None
    outcome: dict[str, Any] | None


class CautionRecord(TypedDict):
    """A caution of a result."""

    code: str
    message: str
    remedy: str


class ProfileRecord(TypedDict, total=False):
    """What a profiler cost, and why it wrote nothing."""

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
    cautions: list[CautionRecord] | None
    profile: ProfileRecord | None
    outcome: dict[str, Any] | None


class Request(TypedDict, total=False):
    """sweep.json."""

    request: Required[dict[str, Any]]
    trials: list[str]
    earlier: list[dict[str, Any]]


class TrainState(TypedDict, total=False):
    """train.json."""

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


class Target(TypedDict):
    """The score that ends a training."""

    score: str
    value: float


class TrainedRow(TypedDict, total=False):
    """A training of several, as far as a report reads it; the other fields are schema.TRAININGS."""

    folder: Required[str]
    variant: Required[str]
    seed: int | None


class TrainingsRecord(TypedDict, total=False):
    """trainings.json."""

    target: Target | None
    data: dict[str, Any]
    machine: dict[str, str]
    price_per_hour: float | None
    notes: list[str]
    rows: list[TrainedRow]


def read_document(path: Path, kind: type) -> dict[str, Any]:
    """Return a JSON record whose fields have the types that `kind`, one of the classes above, declares.

    Raises:
        SchemaError: it cannot be read, or a field has another type; the message names the field.
    """
    record = read_record(path)
    try:
        msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        remedy = "remove that file and run again, or restore it"
        raise SchemaError("file-damaged", f"{path}: {error}; {remedy}") from error
    return record
