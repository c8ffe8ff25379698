"""The session of a command that runs trials: it locks the run directory and shows how far each trial is."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from analysis import wording
from bench.cli.options import TrialOptions, run_folder
from bench.cli.progress import LINE_SECONDS, draw, duration, say
from bench.launch.world import World
from bench.machine.devices import Devices
from bench.run.inside import Leader, follow
from bench.run.supervise import LaunchOptions
from bench.sweep.options import request_of
from bench.sweep.sweep import Session, expected_seconds, finished_result, locked, run_trials
from common.errors import BertbenchError
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial


class TrialDisplay:
    """Shows how trials ended, a line each, and on a terminal which one runs and about how long it will."""

    def __init__(self, run: RunDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._head, self._began, self._next = "", 0.0, 0.0
        self._expected: float | None = None

    def show(
        self, number: int, count: int, trial: Trial, result: Mapping[str, Any] | None, known: bool = False
    ) -> None:
        """Show that a trial begins or has ended; arguments as bench.sweep.sweep.Progress has them."""
        self._head, self._next = f"[{number}/{count}] {describe(trial)}", 0.0
        if result is not None:
            say(f"{self._head}: {_outcome(result)}{' (already done)' if known else ''}")
        else:
            self._began, self._expected = self._clock(), expected_seconds(self._run, [trial])

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        """Bring the line up to date; called while the trial runs, as often as one likes."""
        now = self._clock()
        if now >= self._next:
            self._next, seconds = now + LINE_SECONDS, now - self._began
            left = "" if self._expected is None else f", about {duration(max(0.0, self._expected - seconds))} left"
            draw(f"{self._head}: {duration(seconds)}{left}")


@contextmanager
def session(
    options: TrialOptions, command: str, devices: Devices, price_per_hour: float | None = None, **notes: Any
) -> Iterator[Session]:
    """Lock the run directory of a command for a call that runs trials in it, and show on stderr how far each is.

    The options and `notes` are recorded; `price_per_hour` of the devices is for the cost columns.
    """
    run = RunDirectory(run_folder(options.out))
    display = TrialDisplay(run)
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds, price_per_hour=price_per_hour, look=display.look)
    request = {"command": command, **request_of(options), **notes}
    with locked(run):
        try:
            yield Session(
                run=run, request=request, devices=devices, options=launch, progress=display.show,
                retry_failed=options.retry_failed,
            )  # fmt: skip
        finally:
            draw("")


def run_all(
    options: TrialOptions,
    command: str,
    devices: Devices,
    trials: Sequence[Trial],
    world: World | None = None,
    price_per_hour: float | None = None,
) -> list[dict[str, Any]]:
    """Run the trials of a command and return their results, in the ranks of `world` if this process is one of them.

    Ranks other than the first have none.
    """
    if world is not None and world.rank:
        if follow(world, devices):
            raise BertbenchError("rank-failed", f"rank {world.rank} failed: see its log in the folder of the trial")
        return []
    with (
        Leader(world) if world else nullcontext() as leader,
        session(options, command, devices, price_per_hour) as call,
    ):
        announce(call, trials, options)
        return run_trials(replace(call, options=replace(call.options, leader=leader)), trials)


def announce(session: Session, trials: Sequence[Trial], options: TrialOptions) -> None:
    """Say on stderr how many trials are to run, about how long that takes, and why on the CPU where that was chosen."""
    run, limit = session.run, session.options.timeout_seconds or math.inf
    due = [trial for trial in trials if finished_result(run.trial(trial.trial_id), session.retry_failed, limit) is None]
    if not due:
        return
    seconds, reason = expected_seconds(run, due), session.devices.note
    words = [
        f"{len(due)} trial{'s'[: len(due) != 1]} to run",
        f"{len(trials) - len(due)} already done" if len(due) < len(trials) else "",
        "" if seconds is None else f"about {duration(seconds)}",
        f"on the CPU: {reason}" if options.device == "auto" and reason and not options.json else "",
    ]
    print(", ".join(filter(None, words)), file=sys.stderr, flush=True)


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
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
