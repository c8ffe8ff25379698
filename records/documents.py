"""The JSON documents of a trial and of a run: the types of their fields, and the one check of a value against them.

A declared field is used as its type; other fields of a document are shown, or not read. Old
documents lack fields, so none is required unless it says so.
"""

import reprlib
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Required, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from common.errors import SchemaError
from records.files import read_record

_MOST_INT = 2**63 - 1
_WORDS: dict[Any, str] = {
    str: "text", int: "an integer of at most 64 bits", float: "a finite number", bool: "true or false", list: "a list",
    tuple: "a list",
}  # fmt: skip


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
    wrong = wrong_field(record, kind)
    if wrong:
        raise SchemaError("file-damaged", f"{path}: {wrong}; remove that file and run again, or restore it")
    return record


def wrong_field(value: Any, kind: Any, name: str = "") -> str:
    """Return which part of a JSON value is not of its declared type, and what it holds; "" if all are.

    Numbers are finite, and integers have at most 64 bits: others cannot be computed with.

    Args:
        value: what was read.
        kind: its type: plain, Any, a union, list, tuple, dict, TypedDict or dataclass, of which `value` may lack
            fields.
        name: of the value, for the message.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return ""
    if origin in (UnionType, Union):
        if value is None and NoneType in args:
            return ""
        found = [wrong_field(value, one, name) for one in args if one is not NoneType]
        return "" if "" in found else found[0]
    if (is_typeddict(kind) or is_dataclass(kind)) and isinstance(value, dict):
        absent = sorted(getattr(kind, "__required_keys__", frozenset()) - value.keys())
        if absent:
            return f"{_joined(name, absent[0])} is missing"
        parts = ((part, value[part], of) for part, of in _fields(kind).items() if part in value)
    elif origin is dict and isinstance(value, dict):
        parts = ((part, item, args[1]) for part, item in value.items())
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        if origin is tuple and args[-1] is not ...:
            parts = ((str(number), item, of) for number, (item, of) in enumerate(zip(value, args, strict=False)))
        else:
            parts = ((str(number), item, args[0]) for number, item in enumerate(value))
    elif _is_plain(value, kind):
        return ""
    else:
        return f"{name or 'it'} is {reprlib.repr(value)} instead of {_WORDS.get(origin or kind, 'an object')}"
    return next((wrong for part, item, of in parts if (wrong := wrong_field(item, of, _joined(name, part)))), "")


@lru_cache
def _fields(kind: type) -> Mapping[str, Any]:
    found = get_type_hints(kind, include_extras=True)
    return {name: get_args(of)[0] if get_origin(of) is Required else of for name, of in found.items()}


def _is_plain(value: object, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_INT
    return kind in (bool, str) and isinstance(value, kind)


def _joined(name: str, part: object) -> str:
    return f"{name}.{part}" if name else str(part)
