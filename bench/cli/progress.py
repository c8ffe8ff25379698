"""What the user sees while data are prepared and fetched: notes, and a line that stays up to date, on stderr."""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert.data.pool import Progress as StageProgress

# Seconds over which the rate of a download is taken, and between two lines of it.
_WINDOW_SECONDS = 20.0
_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 60.0
# Time between two updates of the line of a stage.
_LINE_SECONDS = 0.1


def terminal_text(text: str) -> str:
    """Return a message for a terminal, with a space for each character that the terminal would act on."""
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def note(text: str) -> None:
    """Tell the user something that needs no answer."""
    print(f"note: {terminal_text(text)}", file=sys.stderr, flush=True)


def show_stages() -> "StageProgress":
    """Return a callback that keeps one line up to date on stderr, or says nothing where that is no terminal."""
    began: dict[str, float] = {}
    last = [0.0]
    show_bytes = show_download()

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage.startswith("download "):
            show_bytes(stage, done, total)
            return
        if not sys.stderr.isatty():
            return
        now = time.monotonic()
        ended = total is not None and done >= total
        if now - last[0] < _LINE_SECONDS and not ended:
            return
        last[0] = now
        seconds = now - began.setdefault(stage, now)
        amount = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        left = ""
        if total is not None and not ended and done and seconds > 5:
            left = f", about {duration(seconds / done * (total - done))} left"
        print(f"\r{stage} {amount}{left}\033[K", end="\n" if ended else "", file=sys.stderr, flush=True)

    return progress


def duration(seconds: float) -> str:
    """Return a time as 7 s, 3:05 min, 2:14 h or 3 d 4 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    hours = whole // 3600
    return f"{hours}:{whole % 3600 // 60:02d} h" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def show_download(clock: Callable[[], float] = time.monotonic) -> "StageProgress":
    """Return a callback that shows bytes, rate and time left on stderr: a line on a terminal, one a minute in a log.

    A call with an empty stage ends the line.
    """
    terminal = sys.stderr.isatty()
    marks: deque[tuple[float, int]] = deque()
    shown = [float("-inf") if terminal else clock(), 0.0]

    def progress(stage: str, done: int, total: int | None) -> None:
        if not stage:
            if terminal and shown[1]:
                print(file=sys.stderr, flush=True)
            return
        now = clock()
        if now - shown[0] < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS) and done != total:
            return
        if done == total and not terminal:
            return
        shown[:] = [now, 1.0]
        marks.append((now, done))
        while len(marks) > 2 and now - marks[0][0] > max(_WINDOW_SECONDS, 2 * _LOG_SECONDS * (not terminal)):
            marks.popleft()
        line = f"{stage} {describe_bytes(done, total, marks[0], marks[-1])}"
        print(f"\r{line}\033[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return progress


def describe_bytes(done: int, total: int | None, first: tuple[float, int], last: tuple[float, int]) -> str:
    """Return bytes, rate and time left in words.

    Args:
        done: bytes there.
        total: bytes in all.
        first: an earlier time in seconds, and the bytes there then.
        last: now, and the bytes there now.
    """
    words = size_of(done) if total is None else f"{size_of(done)} of {size_of(total)}"
    seconds, moved = last[0] - first[0], last[1] - first[1]
    if seconds <= 0 or moved <= 0:
        return words
    rate = moved / seconds
    words += f", {size_of(rate)}/s"
    if total is None or total <= done:
        return words
    return words + f", {duration((total - done) / rate)} left"


def size_of(count: float) -> str:
    """Return bytes in the unit that fits: kB, MB, GB, as powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"
