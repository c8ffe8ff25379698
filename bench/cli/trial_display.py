"""How far the trial that runs is, on a terminal: a line with a bar and the time left, below those of the trials."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cli.progress import duration
from records.kinds import components_csv
from records.run import TrialDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# A line a second: drawing takes the harness some 2 ms, and on a CPU-only machine that core is the trial's.
_SECONDS = 1.0
# More than a row of a CSV of steps has.
_TAIL_BYTES = 4096
Show = Callable[[int, int, Trial, Mapping[str, Any] | None, bool], None]


class TrialDisplay:
    """Shows the trial that runs. Without a terminal it shows nothing but what `show` prints.

    It reads the records that the trial writes anyway: nothing is asked of its processes.
    """

    def __init__(
        self, show: Show, describe: Callable[[Trial], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show, self._describe, self._clock = show, describe, clock
        self._terminal = sys.stderr.isatty()
        self._head = ""
        self._bar: tuple[Progress, TaskID] | None = None
        self._next = 0.0
        self._first: tuple[float, int] | None = None

    def show(self, number: int, count: int, trial: Trial, result: Mapping[str, Any] | None, known: bool) -> None:
        """Take in that a trial begins or has ended; arguments as bench.sweep.sweep.Progress has them."""
        self.clear()
        self._head, self._first, self._next = f"[{number}/{count}] {self._describe(trial)}", None, 0.0
        if result is not None or not self._terminal:
            self._show(number, count, trial, result, known)

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        """Bring the line up to date; called while the trial runs, as often as one likes."""
        now = self._clock()
        if not self._terminal or now < self._next:
            return
        self._next = now + _SECONDS
        done = last_row(components_csv(directory, 0) if trial.kind == "components" else directory.steps_csv(0))
        if done and self._first is None:
            self._first = (now, done)
        if done is None or self._first is None:
            self._draw(0.0, "starting")
            return
        share, left = progress_of(trial, done, now - self._first[0], done - self._first[1])
        what = "round" if trial.kind == "components" else "step"
        self._draw(share, f"{what} {done:,}" + ("" if left is None else f", {duration(left)} left"))

    def clear(self) -> None:
        """Take the line away: no trial runs any more."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _draw(self, share: float, said: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        if self._bar is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[said]}", markup=False),
            )
            console = Console(stderr=True)
            progress = Progress(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._bar = (progress, progress.add_task(self._head, total=1.0, said=said))
            progress.start()
        progress, task = self._bar
        progress.update(task, completed=share, said=said, refresh=True)


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


def progress_of(trial: Trial, done: int, seconds: float, fresh: int) -> tuple[float, float | None]:
    """Return the share of a trial that is done and the seconds that are left at most; None where that is not known.

    Args:
        trial: measures a given window, or until a limit of steps or time is reached; it may be content earlier.
        done: steps or rounds made.
        seconds: time since the first of them was seen.
        fresh: those made in that time.
    """
    each = seconds / fresh if fresh > 0 and seconds > 0 else None
    last = trial.stop_iteration if trial.stop_iteration is not None else trial.max_steps
    left = None if each is None else max(0, last - done) * each
    share = min(1.0, done / last)
    if trial.stop_iteration is None:
        in_time = max(0.0, trial.max_seconds - seconds)
        if done >= trial.min_steps or each is None or (trial.min_steps - done) * each < in_time:
            left = min(in_time, math.inf if left is None else left)
            share = max(share, min(1.0, seconds / trial.max_seconds))
    return share, left
