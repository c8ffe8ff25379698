"""Splits a Kineto trace into chunks of whole events while it is unpacked, and reads what stands around the events.

A chunk is cut where one event seems to end and another to begin, and decoded as a list. A cut at any other place
(inside an event's arguments) leaves brackets open, which the decoder refuses: what it takes is cut right.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from analysis.readers.kineto.events import (
    DAMAGES,
    Chunk,
    ExactEvent,
    decode_chunk,
    decode_exact,
    exact_chunk,
    tolerant_event,
)
from analysis.readers.packed import CUT_SHORT, damage_code, unpacked_blocks
from common.errors import InputError

# Between two events. In valid JSON no text matches it (a quote inside one is escaped); a list of objects may.
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
_CONTROL = bytes(range(32))
_BLANKED = bytes.maketrans(_CONTROL, b" " * 32)
# As C++, Python and JavaScript write what is no number.
_NO_NUMBERS = (b"NaN", b"nan", b"NAN", b"inf", b"Inf", b"INF")
_NO_NUMBER = re.compile(rb'(?<=":)(?<!\\":)\s*[-+]?(?:nan(?:\([a-z0-9]*\))?|inf(?:inity)?)(?=\s*[,}])', re.IGNORECASE)
_REACH = 16
# PyTorch writes nothing where a group has no description: "Process Group Description": ,
_NO_DESCRIPTION = re.compile(rb'("Process Group Description":)\s*(?=[,}])')
_NEXT = re.compile(r"\s*,\s*(?=\{)")
_PIECE_BYTES = 1 << 18
_END = re.compile(rb"\s*\]")
_LIST_END = re.compile(rb'\}\s*\](?=\s*(?:,\s*"|\}))')
_MOST_JOINED = 16
MOST_LOST = 100_000
"""Places in which a trace may be malformed."""
_MOST_TRIES = 20_000
_NEAR_END = 2


@dataclass(slots=True)
class Repaired:
    """What was found in a piece."""

    events: list[ExactEvent] = field(default_factory=list)
    lost: int = 0
    """Pieces between two events that cannot be read."""
    rest: bytes | None = None
    """What follows the end of the list of events, where it ended in the piece."""
    truncated: bool = False
    """Whether the last event is not whole."""
    tries: int = 0
    """Failed attempts to repair an event; their number is limited."""


def sanitized(data: bytes) -> bytes:
    """Return JSON without what commonly makes it malformed; the rest of every value stays.

    Control characters become blanks, bytes that are no UTF-8 the replacement character, NaN and infinities null, and so
    do missing descriptions of process groups.
    """
    data = _NO_DESCRIPTION.sub(rb"\1 null", data.translate(_BLANKED))
    if not data.isascii():
        data = data.decode("utf-8", errors="replace").encode()
    return _without_no_numbers(data)


def _without_no_numbers(data: bytes) -> bytes:
    """Put null for NaN and infinities that are values of a field; found by their letters, which is fast."""
    parts: list[bytes] = []
    done = 0
    for place in sorted(_places(data)):
        if place < done:
            continue
        key_end = data.rfind(b":", max(done, place - _REACH), place)
        match = _NO_NUMBER.match(data, key_end + 1) if key_end >= 0 else None
        if match is not None and match.end() > place:
            parts += [data[done : match.start()], b" null"]
            done = match.end()
    return b"".join([*parts, data[done:]]) if parts else data


def _places(data: bytes) -> Iterator[int]:
    for letters in _NO_NUMBERS:
        place = data.find(letters)
        while place >= 0:
            yield place
            place = data.find(letters, place + 1)


def repair(data: bytes) -> Repaired:
    """Read the events of a piece that begins with one; after the last one the list may end, or the file be cut.

    Args:
        data: the piece, sanitized, without the list's opening bracket.
    """
    found = Repaired()
    pieces = list(_pieces(data))
    for number, (begin, end) in enumerate(pieces):
        try:
            found.events += decode_exact(b"[" + data[begin:end] + b"]")
        except DAMAGES:
            _one_by_one(data, begin, end, number == len(pieces) - 1, found)
        if found.rest is not None or found.lost > MOST_LOST:
            break
    return found


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Cut at boundaries into pieces of about _PIECE_BYTES: (begin, end), the comma between them left out."""
    begin = 0
    while begin < len(data):
        match = BOUNDARY.search(data, begin + _PIECE_BYTES) if begin + _PIECE_BYTES < len(data) else None
        if match is None:
            yield begin, len(data)
            return
        yield begin, match.start() + 1
        begin = match.end()


def _one_by_one(data: bytes, begin: int, end: int, last: bool, found: Repaired) -> None:
    cuts = [(match.start() + 1, match.end()) for match in BOUNDARY.finditer(data, begin, end)]
    starts = [begin, *(following for _, following in cuts)]
    ends = [*(preceding for preceding, _ in cuts), end]
    number = 0
    while number < len(starts) and found.rest is None:
        number += _one(data, starts, ends, number, last, found)


def _one(data: bytes, starts: list[int], ends: list[int], number: int, last: bool, found: Repaired) -> int:
    """Read the event that begins at a boundary; return how many boundaries further the next one begins."""
    begin = starts[number]
    try:
        found.events += decode_exact(b"[" + data[begin : ends[number]] + b"]")
        return 1
    except DAMAGES:
        pass
    # A boundary inside an event, in a list of objects among its arguments: the event continues after it.
    for joined in range(min(_MOST_JOINED, len(starts) - number)):
        end = ends[number + joined]
        text = data[begin:end].decode("utf-8", errors="replace").lstrip()
        try:
            event, stop = tolerant_event(text)
        except DAMAGES as error:
            found.tries += 1
            if found.tries > _MOST_TRIES or getattr(error, "pos", len(text)) < len(text.rstrip()) - _NEAR_END:
                break  # broken before its end: the rest does not fix it
            continue
        if event is not None:
            found.events.append(event)
        stop = _more(text, stop, found)
        rest = text[stop:].encode()
        if match := _END.match(rest):
            found.rest = rest[match.end() :] + data[end:]
        elif rest.strip(b" ,"):
            found.lost += 1
        return joined + 1
    if last and number == len(starts) - 1:
        _give_up(data[begin:], found)
    else:
        found.lost += 1
    return 1


def _more(text: str, stop: int, found: Repaired) -> int:
    """Read events that follow without a boundary, such as empty ones; return where the last one ended."""
    while match := _NEXT.match(text, stop):
        try:
            event, stop_of_next = tolerant_event(text, match.end())
        except DAMAGES:
            break
        if event is not None:
            found.events.append(event)
        stop = stop_of_next
    return stop


def _give_up(data: bytes, found: Repaired) -> None:
    if match := _END.match(data):
        found.rest = data[match.end() :]
    elif match := _LIST_END.search(data):
        found.lost += 1
        found.rest = data[match.end() :]
    else:
        found.truncated = True


MOST_EVENT_BYTES = 64 << 20
"""Size of one event, and of all that stands before or after the events."""
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[\s*(?=\{|\])")
_AT_BYTE = re.compile(r"([\w',\[\]{} ]+) \(byte (\d+)\)$")
# Possessive: a text of megabytes must cost no memory to step back, and one without an end ends the search.
_BRACKET_OR_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
# Another event where the document's next field should stand: a stray bracket ended the list.
_GOES_ON = re.compile(rb"[\s,]*\{")
_LEAST_TAIL = 256
_MOST_GUESSED_TAIL = 1 << 16
_COMMA = re.compile(rb"\s*,\s*")
_MOST_OPENINGS = 16
_MOST_CUTS = 4
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _About(msgspec.Struct):
    baseTimeNanoseconds: Any = None  # noqa: N815 (the trace's own name)
    bertbench: Any = None
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    schemaVersion: Any = None  # noqa: N815
    traceEvents: msgspec.Raw = msgspec.Raw()  # noqa: N815


class EventStream:
    """The events of one file, in pieces, and what else is known of it afterwards."""

    def __init__(self, path: Path) -> None:
        """Prepare to read; nothing is opened yet."""
        self.path = path
        self.about: dict[str, Any] = {}
        """Fields of the document other than the events, as far as they are used; complete after the last piece."""
        self.lost = 0
        """Events, or pieces between events, that cannot be read."""
        self.damage: list[str] = []
        """What the file lost, one clause each."""
        self.truncated = False
        """Whether the list of events does not end."""
        self._blocks = unpacked_blocks(path, "trace", self.damage.append)

    def pieces(self) -> Iterator[Chunk]:
        """Yield the events, piece by piece.

        Raises:
            InputError: the file cannot be read, is no trace, or has an event over the limit.
        """
        data, begin, bare = self._opened()
        while True:
            block = next(self._blocks, None)
            if block is None:
                piece, data, ended = self._final(data, begin)
            else:
                piece, data, ended = self._whole_events(data[begin:] + block)
            begin = 0
            if self.lost > MOST_LOST:
                raise InputError(
                    "file-damaged", f"{self.path} is malformed in more than {MOST_LOST:,} places: record it again"
                )
            if piece is not None:
                yield piece
            del piece
            if ended and len(data) < _LEAST_TAIL:
                data += next(self._blocks, b"")
            if ended and _GOES_ON.match(data):
                data = data.lstrip().removeprefix(b",")
                self.lost += 1
            elif ended:
                self._read_tail(data, bare)
                return
            elif block is None:
                self.truncated = True
                if not self.damage:  # otherwise unpacking has said it
                    self.damage.append(CUT_SHORT)
                return

    def _opened(self) -> tuple[bytes, int, bool]:
        """Return the first data, the place behind the opening bracket of the events, whether the file is a list."""
        data = b""
        while True:
            block = next(self._blocks, None)
            data += block or b""
            data = data.removeprefix(_BYTE_ORDER_MARK)
            if match := _BARE.match(data):
                return data, match.end(), True
            for match in islice(_OPENING.finditer(data), _MOST_OPENINGS):
                head = _about(data[: match.end()] + b"]}")
                if head is not None and head.pop("traceEvents", None):
                    self.about |= head
                    return data, match.end(), False
            if block is None or len(data) > MOST_EVENT_BYTES:
                return self._opened_by_force(data)

    def _opened_by_force(self, data: bytes) -> tuple[bytes, int, bool]:
        match = _OPENING.search(data)
        if match is None:
            raise _no_trace(self.path, data, self.damage)
        self.damage.append("the part before its events cannot be read")
        return data, match.end(), False

    def _whole_events(self, data: bytes) -> tuple[Chunk | None, bytes, bool]:
        """Decode the whole events of a piece: (events, what follows them, whether the list ended)."""
        first = cut = _last_boundary(data)
        for _ in range(_MOST_CUTS):
            if cut is None:
                break
            chunk, stop = _decoded(data, end=cut[0])
            if chunk is not None:
                return (chunk, data[cut[1] :], False) if stop is None else (chunk, data[stop:], True)
            if stop is None:  # malformed before its end: another cut would not help
                return self._repaired(data[: cut[0]], data[cut[1] :])
            cut = _last_boundary(data, cut[0])
        cut = _exact_boundary(data) or (first if len(data) > MOST_EVENT_BYTES else None)
        if cut is not None:
            return self._repaired(data[: cut[0]], data[cut[1] :])
        if len(data) > MOST_EVENT_BYTES:
            raise InputError(
                "file-limit",
                f"{self.path} has an event above the limit of {MOST_EVENT_BYTES:,} bytes: record again",
            )
        return None, data, False

    def _final(self, data: bytes, begin: int) -> tuple[Chunk | None, bytes, bool]:
        end = data.rfind(b"]", max(begin, len(data) - _MOST_GUESSED_TAIL))
        if end >= 0:  # most traces end soon behind their events; what is cut wrong is refused and cut by what follows
            chunk, stop = _decoded(data, begin, end)
            if chunk is not None:
                return chunk, data[end + 1 :] if stop is None else data[begin + stop :], True
        chunk, stop = _decoded(data, begin, closed=True)
        if chunk is not None:
            return chunk, b"" if stop is None else data[begin + stop :], True
        return self._repaired(data[begin:], b"")

    def _repaired(self, data: bytes, following: bytes) -> tuple[Chunk, bytes, bool]:
        """Read a malformed piece that begins with an event; `following` comes after the comma behind it."""
        clean = sanitized(data)
        chunk, stop = _decoded(clean, closed=not following)
        if chunk is not None:
            rest = None if stop is None else clean[stop:]
            ended = rest is not None or not following
        else:
            found = repair(clean)
            self.lost += found.lost + (found.truncated and bool(following))
            chunk, rest, ended = exact_chunk(found.events), found.rest, found.rest is not None
        if rest is None:
            return chunk, following, ended
        return chunk, rest + b"," + following if following else rest, True

    def _read_tail(self, data: bytes, bare: bool) -> None:
        parts = [data]
        size = len(data)
        for block in self._blocks:
            size += len(block)
            if size > MOST_EVENT_BYTES:
                self.damage.append(f"the part after its events exceeds the limit of {MOST_EVENT_BYTES:,} bytes")
                return
            parts.append(block)
        tail = b"".join(parts).strip()
        if bare:
            return
        found = _about(b"{" + tail.removeprefix(b","))
        if found is None:
            self.damage.append("the part after its events cannot be read")
            return
        if found.pop("traceEvents", None):
            self.damage.append("it has two lists of events; only the first is read")
        self.about |= found


def _decoded(
    data: bytes, begin: int = 0, end: int | None = None, closed: bool = False
) -> tuple[Chunk | None, int | None]:
    """Decode the events that a piece of the data begins with; the piece's own end of the list is `closed`.

    Returns:
        the events, and where in the piece what follows their list begins, if it ended in it. Malformed: no events, and
        the piece's length if brackets are still open there.
    """
    end = len(data) if end is None else end
    size = end - begin
    if begin and not closed and data.startswith(b"[", begin - 1) and data.startswith(b"]", end):
        text = memoryview(data)[begin - 1 : end + 1]  # both brackets are in the data: no copy
    else:
        text = memoryview(b"".join((b"[", memoryview(data)[begin:end], b"" if closed else b"]")))
    try:
        return decode_chunk(text), None
    except DAMAGES as error:
        said = str(error)
    match = _AT_BYTE.search(said)
    if match is None:
        return None, size if "truncated" in said else None
    place = int(match[2])
    if match[1].strip() != "trailing characters":
        return None, size if place > size else None
    try:
        return decode_chunk(text[: place - 1]), place - 2  # the decoder counts from 1 here
    except DAMAGES:
        return None, None


def _last_boundary(data: bytes, before: int | None = None) -> tuple[int, int] | None:
    """Return the last boundary: the end of an event and the start of the next."""
    end = len(data) if before is None else before
    window = 1 << 14
    while True:
        begin = max(0, end - window)
        last = deque(BOUNDARY.finditer(data, begin, end), maxlen=1)
        if last:
            return last[0].start() + 1, last[0].end()
        if not begin:
            return None
        window *= 8


def _exact_boundary(data: bytes) -> tuple[int, int] | None:
    """Return the last boundary by counting brackets: slower, for events with lists of events in their arguments."""
    depth = 0
    end = None
    for match in _BRACKET_OR_TEXT.finditer(data):
        sign = data[match.start()]
        if sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
            if depth < 0:
                break
            if not depth:
                end = match.end()
    following = _COMMA.match(data, end) if end is not None else None
    return (following.start(), following.end()) if following else None


def _about(data: bytes) -> dict[str, Any] | None:
    """Decode the document without its events; the fields that are used. None: it is malformed."""
    for attempt in (data, sanitized(data)):
        try:
            found = msgspec.json.decode(attempt, type=_About)
        except DAMAGES:
            continue
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not None and value != msgspec.Raw()}
    try:
        loose = json.loads(data.decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return {name: loose[name] for name in _About.__struct_fields__ if loose.get(name) is not None}


def _no_trace(path: Path, data: bytes, damage: list[str]) -> InputError:
    if damage:
        return InputError(
            damage_code(damage[0]), f"cannot read {path}: {damage[0]}; the file is damaged or truncated; copy it again"
        )
    try:
        document = json.loads(data[:MOST_EVENT_BYTES].decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError) as error:
        return InputError(
            "file-damaged",
            f"{path} is incomplete JSON ({str(error)[:200]}), or not a PyTorch profiler trace: if the profiler "
            "was stopped early, record again",
        )
    if isinstance(document, Mapping) and "nodes" in document:
        return InputError(
            "file-format",
            f"{path} is a PyTorch execution trace, not a profiler trace: give the file of export_chrome_trace",
        )
    return InputError("file-format", f"{path} is JSON but not a PyTorch profiler trace: it has no list `traceEvents`")
