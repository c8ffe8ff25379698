"""What the user sees while trials run: one line per trial, on stderr."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from analysis.wording import strategy_label
from bench.machine.devices import Devices
from bench.plan.options import AUTO, resolve_strategy
from bench.plan.sweep import Again, write_results
from common.redact import terminal_text
from records.run import RunDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from bert.data.pool import Progress as StageProgress

# Seconds over which the rate of a download is taken, and between two lines of it.
_WINDOW_SECONDS = 20.0
_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 60.0
# Time between two updates of the line of a stage.
_LINE_SECONDS = 0.1


def show_progress(number: int, count: int, trial: Trial, result: Mapping[str, Any] | None, known: bool) -> None:
    """Show how a trial ended, or on a terminal that it has begun; arguments as bench.plan.sweep.Progress has them."""
    head = f"[{number}/{count}] {describe(trial)}"
    if result is not None:
        said = f"{terminal_text(_outcome(result))}{' (already done)' if known else ''}"
        print(f"{head}: {said}", file=sys.stderr, flush=True)
    elif sys.stderr.isatty():
        print(f"{head} ...", end="\r", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Tell the user something that needs no answer."""
    print(f"note: {terminal_text(text)}", file=sys.stderr, flush=True)


def tell_of_cpu(devices: Devices, asked: str, as_json: bool) -> None:
    """Say why there is no GPU, where --device did not ask for the CPU; call it when nothing is left to refuse."""
    if devices.note and asked == "auto" and not as_json:
        print(f"measuring on the CPU: {devices.note}", file=sys.stderr)


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
    place = f"on {trial.world_size} {'GPU' if trial.device == 'cuda' else 'CPU rank'}{'s'[: trial.world_size > 1]}"
    if trial.kind == "comm":
        again = [f"round {trial.round + 1}"] if trial.round else []
        return " ".join([str(dict(trial.collective)["name"]), trial.precision, place, *again])
    words = [
        trial.implementation,
        *(["input only"] if trial.kind == "input" else []),
        trial.preset,
        trial.precision,
        f"seq {trial.seq_len}",
        f"batch {trial.micro_batch_size}",
    ]
    if trial.grad_accum_steps > 1:
        words.append(f"x {trial.grad_accum_steps}")
    words.append(place)
    if trial.profiler:
        words.append(f"under {trial.profiler}")
    name = strategy_label(trial.strategy, trial.strategy_options, trial.activation_checkpointing, trial.allocator)
    if name != resolve_strategy(AUTO, trial.world_size):
        words.append(f"by {name}")
    if trial.data.startswith("synthetic:") and trial.data_fingerprint:
        words.append("with made-up data")
    if trial.round:
        words.append(f"round {trial.round + 1}")
    return " ".join(words)


def _outcome(result: Mapping[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result.get('reason', '')}"
    if "peak_busbw_gb_s" in result:
        wrong = f", {result['wrong']} elements WRONG" if result["wrong"] else ""
        return f"{result['sizes']} sizes, busbw up to {result['peak_busbw_gb_s'] or 0:.3g} GB/s{wrong}"
    rate = result.get("samples_per_second")
    return "no step measured" if rate is None else f"{rate:.1f} samples/s"


@contextmanager
def measured_anew(wanted: bool, run: RunDirectory, trials: Sequence[Trial]) -> Iterator[Again | None]:
    """Hand out what --again asks for, and say where the earlier records are; used while the run is locked."""
    if not wanted:
        yield None
        return
    again = Again(run, [trial.trial_id for trial in trials])
    if again.continued:
        note("an interrupted call with --again is continued: what it has measured anew is not measured once more")
    try:
        yield again
        again.finish()  # a call that is interrupted goes on
    finally:
        if again.earlier.trials():
            write_results(again.earlier)
            note(f"earlier records: {again.earlier.path}; `bertbench compare` holds them against {run.path}")


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
            left = f", about {_duration(seconds / done * (total - done))} left"
        print(f"\r{stage} {amount}{left}\033[K", end="\n" if ended else "", file=sys.stderr, flush=True)

    return progress


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes}:{rest:02d} min"


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
    left = round((total - done) / rate)
    hours, minutes = left // 3600, left % 3600 // 60
    return words + f", {f'{hours} h {minutes} min' if hours else f'{minutes} min {left % 60} s'} left"


def size_of(count: float) -> str:
    """Return bytes in the unit that fits: kB, MB, GB, as powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"
