"""What the user sees on stderr while a command works: notes, and stages of data."""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

from analysis.wording import traffic
from bench.run.processes import StopRequest
from common.atomic import storage_errors
from common.scores import evaluation_text
from records.run import TrialDirectory
from records.trial import Trial

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
        amount = traffic if stage.startswith("download ") else "{:,}".format
        words = [f"{stage} {amount(done)}" + ("" if total is None else f" of {amount(total)}")]
        if done > before and now > began and not ended:
            rate = (done - before) / (now - began)
            words += [
                f"{amount(round(rate))}/s",
                *([] if total is None else [f"{duration((total - done) / rate)} left"]),
            ]
        (draw if terminal and not ended else say)(", ".join(words))

    return progress


def new_lines(path: Path, position: int) -> tuple[list[str], int]:
    """Return the whole lines of a growing file from a position in bytes on, and the position behind them."""
    with path.open("rb") as file:
        file.seek(position)
        whole, newline, _ = file.read().rpartition(b"\n")
    return whole.decode().splitlines(), position + len(whole + newline)


_LOOK_SECONDS = 0.5


class TrainProgress:
    """Watches a launch and shows the events of its events.jsonl on stderr."""

    def __init__(self, stop: StopRequest, log: Path | None = None, until: tuple[str, float] | None = None) -> None:
        """Have `stop`, or an evaluation with the score and value of `until` or below, make the ranks save and exit.

        Events are appended to `log` too.
        """
        self._stop, self._log = stop, log
        self._score, self._target = until or ("", math.nan)
        self._reached = self._stop_shown = False
        self._directory: TrialDirectory | None = None
        self._next_look, self._position = 0.0, 0

    def stop_wanted(self) -> bool:
        """Return whether the ranks should save and exit."""
        return self._reached or self._stop.wanted()

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        """Show new events of an attempt."""
        self._directory = directory
        if self._stop.wanted() and not self._stop_shown:
            self._stop_shown = True
            say(f"{self._stop.why()}: saving a checkpoint before exit (a second signal exits at once)")
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._show_new()

    def end(self) -> None:
        """Show the remaining events and end the line."""
        self._show_new()
        draw("")

    def _show_new(self) -> None:
        if self._directory is None or not (path := self._directory.events_jsonl).exists():
            return
        lines, self._position = new_lines(path, self._position)
        for event in map(json.loads, lines):
            text = event_text(event)
            append_log(self._log, text)
            loss = event.get(self._score) if event["event"] == "evaluated" else None
            self._reached = self._reached or (loss is not None and loss <= self._target)
            (draw if event["event"] == "progress" and sys.stderr.isatty() else say)(text)


def append_log(log: Path | None, text: str) -> None:
    """Append lines with timestamps to a log, if there is one. Raises StorageError."""
    if log is not None:
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        with storage_errors(log), log.open("a", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{now} {line}\n" for line in text.splitlines() if line)


def event_text(event: Mapping[str, Any]) -> str:
    """Return an event as text; a progress event as step, loss, learning rate, samples/s and time left."""
    if event["event"] == "progress":
        loss, rate, left = event["loss"], event["samples_per_second"], event["seconds_left"]
        parts = [
            f"step {event['applied_steps']:,}/{event['total_steps']:,}",
            "loss not finite" if loss is None else f"loss {loss:.4f}",
            f"learning rate {event['learning_rate']:.3g}",
            "" if event["loss_scale"] is None else f"loss scale {event['loss_scale']:g}",
            "" if rate is None else f"{rate:,.1f} samples/s",
            f"{duration(left)} left" if left else "",
        ]
        return ", ".join(filter(None, parts))
    if event["event"] == "evaluated":
        best = ", best so far" if event.get("best") else ""
        return f"evaluation after {event['applied_steps']:,} steps: {evaluation_text(event)}{best}"
    if event["event"] == "warned":
        return f"note: {event['message']}"
    if event["event"] == "saved":
        return f"saved {event['path']} ({event['size_bytes'] / 2**20:.1f} MiB in {event['seconds']:.1f} s)"
    if event["event"] == "logging":
        return f"logging to {', '.join(f'{name} run {run_id}' for name, run_id in event['run_ids'].items())}"
    what = "starts from" if event["new_phase"] else f"resumes after step {event['applied_steps']:,} from"
    lines = [f"{what} {event['path']}" + ("" if event["moments"] else ", without optimizer state")]
    for names, side in ((event.get("missing"), "start with random values"), (event.get("unused"), "are not used")):
        if names:
            lines.append(f"  {len(names)} weights {side}: {shorten(', '.join(names), 200, placeholder=' ...')}")
    return "\n".join(lines)
