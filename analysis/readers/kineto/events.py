"""The typed form of Kineto's events and of their arguments, how lists of them are decoded, and exact nanoseconds."""

import functools
import json
import operator
import types
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from analysis.readers.columns import MISSING, Integers

Scalar = int | float | str | None
_MOST = 2**61
# Below it float64 is spaced by at most 2^-10 us: what has three decimals gives the exact nanosecond.
_EXACT_BELOW_US = 2.0**43
_MOST_DIGITS = 400
_NAMED = ("cat", "name", "pid", "tid")
_NULL = Raw(b"null")

DAMAGES = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)
"""What decoding raises, whatever the content."""


class _Phase(msgspec.Struct, gc=False, tag_field="ph"):
    pass


class Event(_Phase, gc=False, tag="X"):
    """An event with a duration, the only kind that is looked at. Times are in microseconds."""

    cat: Scalar = ""
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: Raw = _NULL


class ExactEvent(_Phase, gc=False, tag="X"):
    """The same with its times as they are written: float64 would round some."""

    cat: Scalar = ""
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Raw = _NULL
    dur: Raw = _NULL
    args: Raw = _NULL


class _UntaggedEvent(msgspec.Struct, gc=False):
    """An event of any phase, or of none."""

    ph: Any = None
    cat: Scalar = ""
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Raw = _NULL
    dur: Raw = _NULL
    args: Raw = _NULL


AnyEvent = Event | ExactEvent

# Phases of the Chrome trace format besides X: flows, instants, metadata, counters, nested and object events.
_OTHERS = tuple(
    msgspec.defstruct(f"Phase{ord(sign)}", [], bases=(_Phase,), gc=False, tag=sign)
    for sign in "BEbnestfPNODiIMCRcvV(),"
)


def _list_of(*kinds: Any) -> Any:
    return types.GenericAlias(list, (functools.reduce(operator.or_, kinds),))


_QUICK: Any = msgspec.json.Decoder(_list_of(Event, *_OTHERS))
_UNTAGGED: Any = msgspec.json.Decoder(list[_UntaggedEvent])
_EXACT: Any = msgspec.json.Decoder(_list_of(ExactEvent, *_OTHERS))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some events of a trace that have a duration, in the order of the file."""

    events: Sequence[AnyEvent]
    start: Integers
    """Their starts, ns, as the trace counts; MISSING where it is no number."""
    duration: Integers
    """Their durations, ns; MISSING if absent."""


def decode_chunk(data: bytes | memoryview) -> Chunk:
    """Decode a JSON list of events."""
    try:
        found = _QUICK.decode(data)
    except msgspec.ValidationError:  # among other reasons, of an event that does not say its phase
        return exact_chunk(decode_exact(data))
    events = [event for event in found if type(event) is Event]
    start = _quick_ns([event.ts for event in events])
    duration = _quick_ns([event.dur for event in events])
    if start is None or duration is None:
        return exact_chunk(decode_exact(data))
    return Chunk(events, start, duration)


def decode_exact(data: bytes | memoryview) -> list[ExactEvent]:
    """Decode a JSON list of events, times as they are written. Raises like decode_chunk."""
    try:
        return [event for event in _EXACT.decode(data) if type(event) is ExactEvent]
    except msgspec.ValidationError:
        found = _UNTAGGED.decode(data)
    return [
        ExactEvent(event.cat, event.name, event.pid, event.tid, event.ts, event.dur, event.args)
        for event in found
        if event.ph == "X"
    ]


def exact_chunk(events: Sequence[ExactEvent]) -> Chunk:
    """Return events with their times in exact nanoseconds."""
    return Chunk(events, _exact_ns([event.ts for event in events]), _exact_ns([event.dur for event in events]))


def tolerant_event(text: str, begin: int = 0) -> tuple[ExactEvent | None, int]:
    """Decode the event that begins there as Python's reader does: with NaN, control characters, values of any type.

    Returns:
        the event, None where it is none with a duration, and where in the text it ended.
    """
    value, end = json.JSONDecoder(strict=False, parse_float=_Digits).raw_decode(text, begin)
    if not isinstance(value, dict) or value.get("ph") != "X":
        return None, end
    named: dict[str, Any] = {name: _scalar(value.get(name, "" if name in ("cat", "name") else None)) for name in _NAMED}
    times: dict[str, Any] = {name: Raw(json.dumps(value.get(name), default=str).encode()) for name in ("ts", "dur")}
    arguments = Raw(json.dumps(value.get("args"), default=str).encode())
    return ExactEvent(**named, **times, args=arguments), end


class _Digits(str):
    """A number as it is written."""


def _scalar(value: Any) -> Scalar:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    return value if value is None or (isinstance(value, int) and not isinstance(value, bool)) else str(value)


def _quick_ns(values: Sequence[Scalar]) -> Integers | None:
    """Nanoseconds, None where float64 cannot tell them or a value is no number."""
    found = _numbers(values)
    if found.dtype == np.int64:
        return None if np.any(np.abs(found) > _MOST // 1000) else found * 1000
    if found.dtype != np.float64 or not np.all(np.abs(found) < _EXACT_BELOW_US):
        return None
    found *= 1000.0
    rounded: Integers = np.rint(found, out=found).astype(np.int64)
    return rounded


def _numbers(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return values as an array of the type that numpy gives them; whole numbers of 64 bits in half of its time."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64) if values else np.empty(0, dtype=np.int64)
    except (TypeError, OverflowError):
        return np.array(values)


def _exact_ns(values: Sequence[Raw]) -> Integers:
    return np.fromiter((_digits_ns(bytes(value)) for value in values), dtype=np.int64, count=len(values))


def _digits_ns(text: bytes) -> int:
    if text.isdigit() and len(text) < 17:
        return int(text) * 1000
    if text[-4:-3] == b"." and len(text) < 24:
        try:
            return int(text[:-4] + text[-3:])
        except ValueError:
            pass
    try:
        number = (
            Decimal(str(json.loads(text)) if text[:1] == b'"' else text.decode()) if len(text) < _MOST_DIGITS else None
        )
        if number is None or not number.is_finite() or number.adjusted() > 18:
            return MISSING
        nanoseconds = int((number * 1000).to_integral_value())
    except (InvalidOperation, ValueError, RecursionError):
        return MISSING
    return nanoseconds if abs(nanoseconds) < _MOST else MISSING


_NO_SIZE = (0, 0, 0)
_MOST_WHOLE_DIGITS = 20


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
        "description": "Process Group Description",
        "ranks": "Process Group Ranks",
        "first_rank": "Global rank start",
        "rank_stride": "Global rank stride",
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
    description: Scalar = None
    ranks: Raw = _NULL
    first_rank: Scalar = None
    rank_stride: Scalar = None
    seq: Scalar = None
    dimensions: Raw = _NULL
    types: Raw = _NULL
    inputs: Raw = _NULL


HostCall = tuple[str, str, int, int, CommunicationArguments]
"""A call of a collective: name, thread, start, end, arguments."""


A = TypeVar("A", bound=msgspec.Struct)
_ARGS = attrgetter("args")


class Arguments(msgspec.Struct):
    """Arguments of one kind."""

    kind: type[Any]

    def of(self, events: Sequence[AnyEvent]) -> list[Any]:
        """Return the arguments of each event; what is missing, or cannot be read, has its default."""
        default = self.kind()
        try:
            data = b"[" + b",".join(map(_ARGS, events)) + b"]"
            found = msgspec.json.decode(data, type=list[self.kind | None])  # type: ignore[name-defined]
        except DAMAGES:
            return [_tolerant(event.args, self.kind) for event in events]
        return [default if arguments is None else arguments for arguments in found]


def whole_numbers(values: Sequence[Any], missing: int) -> Integers:
    """Return values as integers of 64 bits, numbers in texts too; `missing` for everything else."""
    found = _numbers(values)
    if found.dtype != np.int64:
        found = np.array([whole(value) for value in values], dtype=np.int64)
    found[found == MISSING] = missing
    return found


def sizes(values: Sequence[tuple[int, int, int]]) -> npt.NDArray[np.int32]:
    """Return sizes of grids or blocks, shape (n, 3); 0 for what no GPU can have."""
    try:
        found = np.fromiter(chain.from_iterable(values), dtype=np.int64, count=3 * len(values)).reshape(-1, 3)
    except OverflowError:
        found = np.array(values, dtype=object)
    found[(found < 0) | (found >= 2**31)] = 0
    return found.astype(np.int32)


def whole(value: Any) -> int:
    """Return a whole number of 64 bits, from a text too; MISSING for everything else."""
    try:
        number = int(value) if not isinstance(value, str) or len(value) < _MOST_WHOLE_DIGITS else MISSING
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
