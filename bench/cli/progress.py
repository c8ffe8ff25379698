"""What the user sees on stderr while a command works: notes, and stages of data."""

import shutil
import sys
import time
from collections.abc import Callable

# Between two states of a line: drawing takes time of a core, which on a CPU-only machine is the trial's.
LINE_SECONDS = 1.0
_LOG_SECONDS = 60.0


def terminal_text(text: str) -> str:
    """Return a message for a terminal, with a space for each character that the terminal would act on."""
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def draw(text: str) -> None:
    """Replace the last line of a terminal; in a log, do nothing."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{terminal_text(text)[:width]}\033[K", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print lines for the user, in place of one that was drawn."""
    draw("")
    print(terminal_text(text), file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Tell the user something that needs no answer."""
    say(f"note: {text}")


def duration(seconds: float) -> str:
    """Return a time as 7 s, 3:05 min, 2:14 h or 3 d 4 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    hours = whole // 3600
    return f"{hours}:{whole % 3600 // 60:02d} h" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size_of(count: float) -> str:
    """Return bytes in the unit that fits: kB, MB, GB, as powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


def show_stages(clock: Callable[[], float] = time.monotonic) -> Callable[[str, int, int | None], None]:
    """Return a callback that shows how far a stage is, in bytes for a download, and the time left.

    It keeps one line of a terminal up to date; in a log it writes a line a minute.
    """
    terminal = sys.stderr.isatty()
    first: dict[str, tuple[float, int]] = {}
    shown = clock()

    def progress(stage: str, done: int, total: int | None) -> None:
        nonlocal shown
        now, ended = clock(), total is not None and done >= total
        began, before = first.setdefault(stage, (now, done))
        if now - shown < (LINE_SECONDS if terminal else _LOG_SECONDS) and not (ended and terminal):
            return
        shown = now
        amount = size_of if stage.startswith("download ") else "{:,}".format
        words = [f"{stage} {amount(done)}" + ("" if total is None else f" of {amount(total)}")]
        if done > before and now > began and not ended:
            rate = (done - before) / (now - began)
            words += [
                f"{amount(round(rate))}/s",
                *([] if total is None else [f"{duration((total - done) / rate)} left"]),
            ]
        (draw if terminal and not ended else say)(", ".join(words))

    return progress
