"""The events of a Kineto trace: the whole file is decoded at once by one schema; times are exact to the nanosecond."""

import gc
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw

from analysis.readers.columns import MISSING, Integers
from analysis.readers.packed import damage_code, unpacked_blocks
from common.errors import InputError
from common.memory import available_bytes

Scalar = int | float | str | None
MEMORY_SHARE = 5
"""The unpacked file may take one part in so many of the free memory; events and tables take the rest."""
# Below it float64 is spaced by at most 2^-10 us: what has three decimals gives the exact nanosecond.
_EXACT_BELOW_US = 2.0**43
# PyTorch writes nothing where a group has no description, and C++ writes what is no number as nan or inf.
_NO_VALUE = re.compile(
    rb'("Process Group Description":)\s*(?=[,}])|((?<!\\)":)\s*-?(?:nan|inf(?:inity)?)\b', re.IGNORECASE
)
_BLANKED = bytes.maketrans(bytes(range(32)), b" " * 32)
_DEEPEST = 4
_NONE, _NULL = Raw(b"{}"), Raw(b"null")


class Event(msgspec.Struct, gc=False):
    """An event of the Chrome trace format; times are in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: Raw = _NONE


class ExactEvent(Event, gc=False):
    """The same with its times as they are written: float64 rounds some."""

    ts: Raw = _NULL  # type: ignore[assignment]
    dur: Raw = _NULL  # type: ignore[assignment]


_ABOUT = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "bertbench")


def _decoder(event: type[Event]) -> Any:
    fields: list[Any] = [("traceEvents", list[event]), *((name, Any, None) for name in _ABOUT)]  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("Document", fields))


_QUICK, _EXACT = _decoder(Event), _decoder(ExactEvent)


def _named(name: str, default: Any = None) -> Any:
    return msgspec.field(name=name, default=default)


class CallArguments(msgspec.Struct, gc=False):
    """Of a call of the CUDA runtime or driver."""

    correlation: Scalar = -1


class KernelArguments(msgspec.Struct, gc=False):
    """Of work on a GPU."""

    correlation: Scalar = -1
    device: Scalar = MISSING
    stream: Scalar = MISSING
    bytes: Scalar = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    blocks_per_sm: Scalar = _named("blocks per SM")


class OperatorArguments(msgspec.Struct, gc=False):
    """Of an operator."""

    sequence: Scalar = _named("Sequence number", -1)
    forward_thread: Scalar = _named("Fwd thread id", -1)


class InputArguments(msgspec.Struct, gc=False):
    """Of an operator whose inputs count."""

    dimensions: Raw = _named("Input Dims", _NULL)
    types: Raw = _named("Input type", _NULL)
    inputs: Raw = _named("Concrete Inputs", _NULL)


class CommunicationArguments(InputArguments, gc=False):
    """Of a communication kernel, or of the host's call of a collective."""

    external_id: Scalar = _named("External id")
    operation: Scalar = _named("Collective name")
    elements_in: Scalar = _named("In msg nelems")
    elements_out: Scalar = _named("Out msg nelems")
    dtype: Scalar = None
    group: Scalar = _named("Process Group Name")
    group_size: Scalar = _named("Group size")
    description: Scalar = _named("Process Group Description")
    ranks: Any = _named("Process Group Ranks")
    first_rank: Scalar = _named("Global rank start")
    rank_stride: Scalar = _named("Global rank stride")
    seq: Scalar = _named("Seq")


A = TypeVar("A")


def arguments(events: Sequence[Event], kind: type[A], *, detached: bool = False) -> list[A]:
    """Return the arguments of each event; what is missing has its default.

    Args:
        events: the events.
        kind: one of the structs above.
        detached: raw parts do not hold the whole file in memory.
    """
    decode = msgspec.json.Decoder(kind).decode
    return [decode(bytes(event.args) if detached else event.args) for event in events]


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds."""

    about: Any
    """Its fields as attributes: traceEvents, and those of _ABOUT."""
    data: bytes
    """Its JSON."""
    truncated: bool
    """Whether its end is missing."""

    def exact_events(self) -> list[Any]:
        """Return the events with their times as they are written."""
        return list(_EXACT.decode(self.data).traceEvents)


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
    free, size, blocks = available_bytes(), 0, []
    # A plain file is read at once, and not copied.
    block_bytes = path.stat().st_size + 1 if path.is_file() and path.suffix != ".gz" else 8 << 20
    for block in unpacked_blocks(path, "trace", cut.append, block_bytes=block_bytes):
        size += len(block)
        if free is not None and size * MEMORY_SHARE > free:
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


@contextmanager
def no_collection() -> Iterator[None]:
    """Events hold no cycles: looking for some costs as much as the decoding."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _sanitized(data: bytes) -> bytes:
    """Return JSON without what PyTorch writes that is none: control characters, bytes that are no UTF-8, no values."""
    clean = _NO_VALUE.sub(rb"\1\2null", data.translate(_BLANKED))
    return clean if clean.isascii() else clean.decode("utf-8", errors="replace").encode()


class InexactTimesError(ValueError):
    """Times cannot be told to the nanosecond from float64, or are no numbers: ExactEvent is needed."""


def nanoseconds(values: Sequence[Any]) -> Integers:
    """Return times in microseconds as nanoseconds, MISSING for what is no time. Raises InexactTimesError."""
    if values and isinstance(values[0], Raw):
        return np.array([_digits_ns(bytes(value).decode().strip('"')) for value in values], dtype=np.int64)
    try:
        return np.frombuffer(array("q", values), dtype=np.int64) * 1000 if values else np.empty(0, dtype=np.int64)
    except (TypeError, OverflowError):
        pass
    try:
        numbers = np.fromiter(values, dtype=np.float64, count=len(values))
    except (TypeError, ValueError):
        raise InexactTimesError from None
    if not (np.abs(numbers) < _EXACT_BELOW_US).all():
        raise InexactTimesError
    return np.rint(numbers * 1000.0).astype(np.int64)


def _digits_ns(digits: str) -> int:
    try:
        found = int((Decimal(digits) * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return MISSING
    return found if abs(found) < 2**61 else MISSING


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
