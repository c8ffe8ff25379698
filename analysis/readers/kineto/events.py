"""The events of a Kineto trace: the whole file is decoded at once by one schema; times are exact to the nanosecond."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from analysis.intervals import Integers
from analysis.readers.packed import damage_code, unpacked_blocks
from analysis.timeline import MISSING
from common.errors import InputError
from common.memory import available_bytes

MEMORY_SHARE = 5
"""The unpacked file may take one part in so many of the free memory; events and tables take the rest."""
CHECKED_FROM_BYTES = 64 << 20
"""Smaller files are read whatever memory is free."""
# Below it float64 is spaced by at most 2^-10 us: what has three decimals gives the exact nanosecond.
_EXACT_BELOW_US = 2.0**43
# PyTorch writes nothing where a group has no description, and C++ writes what is no number as nan or inf.
_NO_VALUE = re.compile(
    rb'("Process Group Description":)\s*(?=[,}])|((?<!\\)":)\s*-?(?:nan|inf(?:inity)?)\b', re.IGNORECASE
)
_BLANKED = bytes.maketrans(bytes(range(32)), b" " * 32)
_DEEPEST = 4
_NULL = Raw(b"null")


def _named(name: str, default: Any = None) -> Any:
    return msgspec.field(name=name, default=default)


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """What an event says of a call, of work on a GPU, of an operator and of communication, in this order."""

    correlation: Any = -1
    device: Any = MISSING
    stream: Any = MISSING
    bytes: Any = 0
    grid: Any = (0, 0, 0)
    blocks_per_sm: Any = _named("blocks per SM")
    sequence: Any = _named("Sequence number", -1)
    forward_thread: Any = _named("Fwd thread id", -1)
    dimensions: Raw = _named("Input Dims", _NULL)
    types: Raw = _named("Input type", _NULL)
    inputs: Raw = _named("Concrete Inputs", _NULL)
    external_id: Any = _named("External id")
    operation: Any = _named("Collective name")
    elements_in: Any = _named("In msg nelems")
    elements_out: Any = _named("Out msg nelems")
    dtype: Any = None
    group: Any = _named("Process Group Name")
    group_size: Any = _named("Group size")
    description: Any = _named("Process Group Description")
    ranks: Any = _named("Process Group Ranks")
    first_rank: Any = _named("Global rank start")
    rank_stride: Any = _named("Global rank stride")
    seq: Any = _named("Seq")

    def detached(self) -> "Arguments":
        """Return a copy that does not hold the whole file in memory."""
        raw = {name: getattr(self, name).copy() for name in ("dimensions", "types", "inputs")}
        return msgspec.structs.replace(self, **raw)


class Event(msgspec.Struct, gc=False):
    """An event of the Chrome trace format; times are in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments = Arguments()


class CounterEvent(Event, gc=False):
    """An event whose arguments are the values of counters by their names."""

    args: Any = None


def _decoder(event: type[Event], **options: Any) -> Any:
    about = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "bertbench")
    fields: list[Any] = [("traceEvents", list[event]), *((name, Any, None) for name in about)]  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("Document", fields), **options)


_QUICK = _decoder(Event)


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds."""

    about: Any
    """Its fields as attributes: traceEvents, and those of the document."""
    data: bytes
    """Its JSON."""
    truncated: bool
    """Whether its end is missing."""

    def exact_events(self) -> list[Event]:
        """Return the events with their times as they are written: float64 rounds some."""
        return list(_decoder(Event, float_hook=Decimal).decode(self.data).traceEvents)

    def counter_events(self, category: str) -> list[CounterEvent]:
        """Return the events of a category in order of time."""
        events = (event for event in _decoder(CounterEvent).decode(self.data).traceEvents if event.cat == category)
        return sorted(events, key=lambda event: float(event.ts or 0))


def load(path: Path) -> Content:
    """Decode a trace, gzip-compressed or not, up to its last whole event.

    Raises:
        InputError: it is larger than the memory allows, it is no trace, or it is malformed before its end.
    """
    cut: list[str] = []
    data = _unpacked(path, cut)
    if data[:64].lstrip().startswith(b"["):  # torch.autograd's own profiler writes the list alone
        data = b'{"traceEvents":' + data + b"}"
    damages = (msgspec.DecodeError, UnicodeDecodeError)
    try:
        try:
            content = _decoded(data)
        except damages:
            content = _decoded(_sanitized(data))
    except damages as error:
        code = "file-format" if isinstance(error, msgspec.ValidationError) else damage_code(cut[0] if cut else "")
        why = cut[0] if cut else str(error)[:200]
        raise InputError(
            code, f"cannot read {path} as a trace of the PyTorch profiler: {why}; give the file of export_chrome_trace"
        ) from error
    return Content(content.about, content.data, content.truncated or bool(cut))


def _unpacked(path: Path, cut: list[str]) -> bytes:
    size, blocks = 0, []
    # A plain file is read at once, and not copied.
    block_bytes = path.stat().st_size + 1 if path.is_file() and path.suffix != ".gz" else 8 << 20
    for block in unpacked_blocks(path, cut.append, block_bytes=block_bytes):
        size += len(block)
        if size >= CHECKED_FROM_BYTES and size * MEMORY_SHARE > (free := available_bytes()):
            limit = f"1/{MEMORY_SHARE} of the available memory ({free:,} bytes)"
            raise InputError("file-limit", f"{path} is larger than {limit}: record fewer steps")
        blocks.append(block)
    return b"".join(blocks)


def _decoded(data: bytes) -> Content:
    try:
        return Content(_QUICK.decode(data), data, truncated=False)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        end = len(data)
        for _ in range(_DEEPEST):  # the last closing brace is an event's, or one of its arguments'
            end = data.rfind(b"}", 0, end)
            whole = data[: end + 1] + b"]}"
            try:
                return Content(_QUICK.decode(whole), whole, truncated=True)
            except msgspec.DecodeError:
                continue
        raise


def _sanitized(data: bytes) -> bytes:
    """Return JSON without what PyTorch writes that is none: control characters, bytes that are no UTF-8, no values."""
    clean = _NO_VALUE.sub(rb"\1\2null", data.translate(_BLANKED))
    return clean if clean.isascii() else clean.decode("utf-8", errors="replace").encode()


class InexactTimesError(ValueError):
    """Times cannot be told to the nanosecond from float64, or are no numbers: `Content.exact_events` are needed."""


def nanoseconds(values: Sequence[Any]) -> Integers:
    """Return times in microseconds as nanoseconds, MISSING for what is no time. Raises InexactTimesError."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64) * 1000 if values else np.empty(0, dtype=np.int64)
    except (TypeError, OverflowError):
        pass
    if float not in (kinds := set(map(type, values))):
        return np.array([_digits_ns(value) for value in values], dtype=np.int64)
    if kinds <= {float, int} and (np.abs(numbers := np.array(values, dtype=np.float64)) < _EXACT_BELOW_US).all():
        return np.rint(numbers * 1000.0).astype(np.int64)
    raise InexactTimesError


def _digits_ns(digits: Any) -> int:
    try:
        time_ns = int((Decimal(digits) * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError, TypeError):
        return MISSING
    return time_ns if abs(time_ns) < 2**61 else MISSING


def whole_numbers(values: Sequence[Any], missing: int) -> Integers:
    """Return values as integers of 64 bits, numbers in texts too; `missing` for everything else."""
    try:
        numbers = np.frombuffer(array("q", values), dtype=np.int64).copy() if values else np.empty(0, dtype=np.int64)
    except (TypeError, OverflowError):
        numbers = np.array([whole(value) for value in values], dtype=np.int64)
    numbers[numbers == MISSING] = missing
    return numbers


def whole(value: Any) -> int:
    """Return a whole number of 64 bits, from a text too; MISSING for everything else."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if abs(number) < 2**63 and (isinstance(value, str) or number == value) else MISSING
