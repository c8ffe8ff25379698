"""Reads what can be read of a malformed piece of a Kineto trace: event by event, the damaged ones left out."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from analysis.readers.kineto_events import DAMAGES, ExactEvent, decode_exact, tolerant_event

# Between two events. In valid JSON no text matches it (a quote inside one is escaped); a list of objects may.
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
_CONTROL = bytes(range(32))
_BLANKED = bytes.maketrans(_CONTROL, b" " * 32)
# As C++, Python and JavaScript write what is no number.
_NO_NUMBERS = (b"NaN", b"nan", b"NAN", b"inf", b"Inf", b"INF")
_NO_NUMBER = re.compile(rb'(?<=":)(?<!\\":)\s*[-+]?(?:nan(?:\([a-z0-9]*\))?|inf(?:inity)?)(?=\s*[,}])', re.IGNORECASE)
_REACH = 16
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
    """Whole events that have a duration."""
    lost: int = 0
    """Pieces between two events that cannot be read."""
    rest: bytes | None = None
    """What follows the end of the list of events, where it ended in the piece."""
    cut: bool = False
    """Whether the last event is not whole."""
    tries: int = 0
    """Attempts to mend an event that failed; their number is limited."""


def sanitized(data: bytes) -> bytes:
    """Return JSON without what commonly makes it malformed; the rest of every value stays.

    Control characters become blanks, bytes that are no UTF-8 the replacement character, NaN and infinities null.
    """
    data = data.translate(_BLANKED)
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
    # A boundary inside an event, in a list of objects among its arguments: the event goes on behind it.
    for joined in range(min(_MOST_JOINED, len(starts) - number)):
        end = ends[number + joined]
        text = data[begin:end].decode("utf-8", errors="replace").lstrip()
        try:
            event, stop = tolerant_event(text)
        except DAMAGES as error:
            found.tries += 1
            if found.tries > _MOST_TRIES or getattr(error, "pos", len(text)) < len(text.rstrip()) - _NEAR_END:
                break  # broken before its end: what follows does not mend it
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
    """Note that the last event of the piece cannot be read."""
    if match := _END.match(data):
        found.rest = data[match.end() :]
    elif match := _LIST_END.search(data):
        found.lost += 1
        found.rest = data[match.end() :]
    else:
        found.cut = True
