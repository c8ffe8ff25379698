"""What the user sees on stderr while a command works: notes, stages of data, and trials."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from records.run import TrialDirectory
    from records.trial import Trial

# Seconds between two states of a line: drawing takes time of a core, which on a CPU-only machine is the trial's.
_LINE_SECONDS, _LOG_SECONDS = 1.0, 60.0
# More than a row of a CSV of steps has.
_TAIL_BYTES = 4096


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
        if now - shown < (_LINE_SECONDS if terminal else _LOG_SECONDS) and not (ended and terminal):
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


class TrialDisplay:
    """Shows how trials ended, a line each, and on a terminal how far the one that runs is, from its records."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._head = ""
        self._next = 0.0
        self._first: tuple[float, int] | None = None

    def show(
        self, number: int, count: int, trial: "Trial", result: Mapping[str, Any] | None, known: bool = False
    ) -> None:
        """Show that a trial begins or has ended; arguments as bench.sweep.sweep.Progress has them."""
        self._head, self._first, self._next = f"[{number}/{count}] {describe(trial)}", None, 0.0
        if result is not None:
            say(f"{self._head}: {_outcome(result)}{' (already done)' if known else ''}")

    def look(self, trial: "Trial", directory: "TrialDirectory") -> None:
        """Bring the line up to date; called while the trial runs, as often as one likes."""
        now = self._clock()
        if not sys.stderr.isatty() or now < self._next:
            return
        self._next = now + _LINE_SECONDS
        in_rounds = trial.kind == "components"
        done = last_row(directory.components_csv(0) if in_rounds else directory.steps_csv(0))
        if done is None:
            draw(f"starting {self._head}")
            return
        self._first = self._first or (now, done)
        left = seconds_left(trial, done, now - self._first[0], done - self._first[1])
        time_left = "" if left is None else f", at most {duration(left)} left"
        draw(f"{'round' if in_rounds else 'step'} {done:,}{time_left}: {self._head}")


def last_row(path: Path) -> int | None:
    """Return how many rows of a growing CSV are whole, by the counter from 0 in its first column; None for none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            whole = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    first = whole[-1].partition(b",")[0] if whole else b""
    return int(first) + 1 if first.isdigit() else None


def seconds_left(trial: "Trial", done: int, seconds: float, fresh: int) -> float | None:
    """Return the seconds that a trial takes at most; None where that is not known.

    Args:
        trial: measures a given window, or until a limit of steps or time is reached; it may end earlier.
        done: steps or rounds made.
        seconds: time since the first of them was seen.
        fresh: those made in that time.
    """
    if not fresh:
        return None
    last = trial.stop_iteration or trial.max_steps
    in_time = math.inf if trial.stop_iteration else trial.max_seconds - seconds
    at_least = (trial.min_steps - done) * seconds / fresh
    return max(0.0, min((last - done) * seconds / fresh, max(in_time, at_least)))


def describe(trial: "Trial") -> str:
    """Return a trial in a few words."""
    from analysis import wording

    row = trial.row()
    what = f"{wording.implementation(row)} {wording.model(row)} {wording.place(row)}"
    if trial.kind == "comm":
        what = f"{dict(trial.collective)['name']} {trial.precision} on {wording.devices(row)}"
    under = f" under {trial.profiler}" if trial.profiler else ""
    return f"{what}{under}" + (f" round {trial.round + 1}" if trial.round else "")


def _outcome(result: Mapping[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result.get('reason', '')}"
    if "peak_busbw_gb_s" in result:
        wrong = f", {result['wrong']} elements WRONG" if result["wrong"] else ""
        return f"{result['sizes']} sizes, busbw up to {result['peak_busbw_gb_s'] or 0:.3g} GB/s{wrong}"
    rate = result.get("samples_per_second")
    return "no step measured" if rate is None else f"{rate:.1f} samples/s"
