"""The arguments of Kineto's events, decoded for those events only that need them."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from analysis.readers.kineto.events import DAMAGES, MISSING, AnyEvent, Integers, Scalar

_NO_SIZE = (0, 0, 0)
_NULL = Raw(b"null")
_MOST_DIGITS = 20


class CallArguments(msgspec.Struct, gc=False):
    """Of a call of the CUDA runtime or driver."""

    correlation: Scalar = MISSING


class KernelArguments(msgspec.Struct, gc=False, rename={"blocks_per_sm": "blocks per SM"}):
    """Of work on a GPU."""

    correlation: Scalar = MISSING
    device: Scalar = MISSING
    stream: Scalar = MISSING
    bytes: Scalar = MISSING
    grid: tuple[int, int, int] = _NO_SIZE
    block: tuple[int, int, int] = _NO_SIZE
    blocks_per_sm: float = float("nan")


class CommunicationArguments(
    msgspec.Struct,
    gc=False,
    rename={
        "operation": "Collective name",
        "external_id": "External id",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "group": "Process Group Name",
        "group_size": "Group size",
        "seq": "Seq",
        "dimensions": "Input Dims",
        "types": "Input type",
        "inputs": "Concrete Inputs",
    },
):
    """Of a communication kernel, or of the host's call of a collective."""

    operation: Scalar = None
    external_id: Scalar = None
    elements_in: Scalar = None
    elements_out: Scalar = None
    dtype: Scalar = None
    group: Scalar = None
    group_size: Scalar = None
    seq: Scalar = None
    dimensions: Raw = _NULL
    types: Raw = _NULL
    inputs: Raw = _NULL


A = TypeVar("A", bound=msgspec.Struct)


class Arguments(msgspec.Struct):
    """Arguments of one kind."""

    kind: type[Any]

    def of(self, events: Sequence[AnyEvent]) -> list[Any]:
        """Return the arguments of each event; what is missing, or cannot be read, has its default."""
        default = self.kind()
        try:
            data = b"[" + b",".join([event.args for event in events]) + b"]"
            found = msgspec.json.decode(data, type=list[self.kind | None])  # type: ignore[name-defined]
        except DAMAGES:
            return [_tolerant(event.args, self.kind) for event in events]
        return [default if arguments is None else arguments for arguments in found]


def whole_numbers(values: Sequence[Any], missing: int) -> Integers:
    """Return values as integers of 64 bits, numbers in texts too; `missing` for everything else."""
    array: npt.NDArray[Any] = np.array(values) if len(values) else np.empty(0, dtype=np.int64)
    if array.dtype != np.int64:
        array = np.array([whole(value) for value in values], dtype=np.int64)
    array[array == MISSING] = missing
    return array


def sizes(values: Sequence[tuple[int, int, int]]) -> npt.NDArray[np.int32]:
    """Return sizes of grids or blocks, shape (n, 3); 0 for what no GPU can have."""
    array: npt.NDArray[Any] = np.array(values) if len(values) else np.empty((0, 3), dtype=np.int64)
    array[(array < 0) | (array >= 2**31)] = 0
    return array.astype(np.int32)


def whole(value: Any) -> int:
    """Return a whole number of 64 bits, from a text too; MISSING for everything else."""
    try:
        number = int(value) if not isinstance(value, str) or len(value) < _MOST_DIGITS else MISSING
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if not isinstance(value, bool) and abs(number) < 2**63 and number == _number(value) else MISSING


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) else value


def loose_json(data: Any) -> Any:
    """Return what JSON says, malformed texts and numbers included; None where it cannot be read."""
    try:
        return json.loads(bytes(data).decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def _tolerant(raw: Raw, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(raw, type=kind)
    except DAMAGES:
        pass
    found = loose_json(raw)
    if not isinstance(found, dict):
        return kind()
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        value = found.get(field.encode_name)
        if field.type is Raw:
            values[field.name] = Raw(json.dumps(value).encode())
            continue
        try:
            values[field.name] = msgspec.convert(value, field.type)
        except DAMAGES:
            continue
    return kind(**values)
