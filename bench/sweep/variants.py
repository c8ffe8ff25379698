"""Variants of a comparison or search: trials of a run directory, such as those that find the largest batch
(`largest_batch`), or whole training runs in folders of their own (`PlannedVariant`)."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.machine.devices import Devices
from bench.run.attempt import Watcher, train_once
from bench.sweep.options import AUTO
from bench.sweep.sweep import Session, run_trials
from bench.sweep.training import Plan, TrainOptions, check_continues, plan_training
from common import locks
from common.errors import UsageError
from records.training import TrainRun, is_train_run
from records.trial import Trial

Measure = Callable[[Trial], Mapping[str, Any]]
"""Runs a trial, or reads its result."""
Value = bool | int | float | str
Values = Mapping[str, Value]
"""The options of `bertbench train` that a variant sets, by name."""
# Steps that show a batch size fits: the first allocates the optimizer state, the second runs with it.
PROBE_STEPS = 3
PROOF_STEPS = 20
# Settings that do not change the result of a training run, nor its time significantly.
_FREE_SETTINGS = ("log_every", "save_every", "keep", "data")


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """Outcome of the search."""

    micro_batch_size: int
    """The largest size that ran; 0 if not even 1 fits."""
    proved: bool
    """Whether it ran PROOF_STEPS steps and the next size (one search step larger) ran out of memory or is above the
    limit."""
    fails_at: int | None
    """The smallest size that failed; None if the limit ended the search."""
    failure: str
    """Status and reason of that failure, or the reason that the search ended."""
    tried: tuple[tuple[int, str], ...]
    """Every (size, status) in the order tried."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)


class _Search:
    """Runs probes and stores their results."""

    def __init__(self, trial: Trial, measure: Measure, step: int) -> None:
        self._trial = dataclasses.replace(trial, kind="probe")
        self._measure = measure
        self._step = step
        self.tried: list[tuple[int, str]] = []
        self.results: dict[int, Mapping[str, Any]] = {}

    def ends(self, size: int, steps: int) -> str:
        """Return the status of `steps` steps at micro batch `size`."""
        probe = dataclasses.replace(self._trial, micro_batch_size=size, start_iteration=1, stop_iteration=steps)
        self.results[size] = result = self._measure(probe)
        self.tried.append((size, str(result["status"])))
        return str(result["status"])

    def failed_for_memory(self, size: int) -> bool:
        """Return whether the last trial of that size ended as oom."""
        return bool(self.results[size]["status"] == "oom")

    def bounds(self, start: int, limit: int) -> tuple[int, int | None]:
        """Return the largest size that ran and the smallest that did not (None: the limit was reached)."""
        fits, fails, size = 0, None, min(start, limit)
        while fails is None and fits < limit:
            end = self.ends(size, PROBE_STEPS)
            if end == "ok":
                fits, size = size, min(2 * size, limit)
            else:
                fails = size
        # Also try sizes below the step while nothing fits: a result of 0 means that not even 1 fits.
        while fails is not None and fails - fits > (self._step if fits else 1) and self.failed_for_memory(fails):
            half = (fails - fits) // 2
            middle = fits + (half - half % self._step if half > self._step else half)
            end = self.ends(middle, PROBE_STEPS)
            fits, fails = (middle, fails) if end == "ok" else (fits, middle)
        return fits, fails


def largest_batch(trial: Trial, limit: int, measure: Measure, step: int = 1) -> MaxBatch:
    """Search upwards from `trial.micro_batch_size`; `measure` runs each trial in its own process.

    A size fits if its trial ends with status ok, and is too large if it ends as oom. Any other status stops the search
    without proof that the size is the largest. With `step`, the search ends when the largest size that fits and the
    smallest that fails are that far apart: a search by 32 has five trials fewer than one by 1.
    """
    search = _Search(trial, measure, step)
    fits, fails = search.bounds(trial.micro_batch_size, limit)
    # Memory can still grow after the first steps (fragmentation, longer batches): prove the size, step down if need be.
    while fits > 0 and search.ends(fits, PROOF_STEPS) != "ok":
        fails = fits
        smaller = fits - step if fits > step else fits // 2
        fits = smaller if search.failed_for_memory(fits) else 0
    tried = tuple(search.tried)
    if fails is None:
        return MaxBatch(fits, True, None, f"the limit of {limit} was reached without running out of memory", tried)
    failure = search.results[fails]
    proved = fits > 0 and failure["status"] == "oom"
    return MaxBatch(fits, proved, fails, f"{failure['status']}: {failure.get('reason', '')}", tried)


def measured_trials(session: Session) -> Measure:
    """Return a function that runs a trial, or reads its result if it is finished. Other hardware is noted once."""
    quiet = dataclasses.replace(session, note=lambda text: None)
    sessions = itertools.chain([session], itertools.repeat(quiet))

    def measure(trial: Trial) -> dict[str, Any]:
        (result,) = run_trials(next(sessions), [trial])
        return result

    return measure


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedVariant:
    """A planned training run of a comparison or search."""

    values: Values
    plan: Plan
    run: TrainRun

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.path.name

    @property
    def finished(self) -> bool:
        """Whether its training has ended."""
        return bool((self.run.read_state() or {}).get("finished"))

    @property
    def refused(self) -> bool:
        """Whether it was found that it cannot run here."""
        return (self.run.read_state() or {}).get("status") == "refused"

    def train(self, devices: Devices, watcher: Watcher) -> bool:
        """Train, or resume, until the run is complete; return False if it already was, or cannot run here.

        Its run directory records how it ended.

        Raises:
            LockedError: another call uses it.
            StorageError: its run directory cannot be written.
            KeyboardInterrupt: interrupted.
        """
        with locks.locked(self.run.path, "another call", "wait for it, or choose another --out"):
            if self.finished or self.refused:
                return False
            check_continues(self.run, self.plan)
            train_once(self.run, self.plan, devices, watcher)
            return True

    def device_name(self) -> str | None:
        """The machine that trained it; None before training."""
        names = (attempt.read_environment().get("device_name") for attempt in self.run.attempts())
        return next((str(name) for name in names if name), None)


def plan_variant(options: TrainOptions, values: Values, devices: Devices) -> PlannedVariant:
    """Return the training run for some options and the values of a variant, in the folder of the options."""
    return PlannedVariant(values=values, plan=plan_training(options, devices), run=TrainRun(options.out.resolve()))


def check_comparable(planned: Sequence[PlannedVariant], devices: Devices) -> None:
    """Refuse a comparison of training runs with different settings, among each other or with existing runs."""
    sizes = {item.name: item.plan.settings.global_batch_size for item in planned}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UsageError(
            "batch-size-mismatch",
            f"the variants would have different global batch sizes ({told}): give --global-batch-size, and "
            "--micro-batch-size or --grad-accum-steps, not both",
        )
    for item in planned:
        folder = item.run.path
        if is_train_run(folder.parent):
            raise UsageError(
                "folder-occupied",
                f"--out {folder.parent} is the run directory of a training run: give another folder",
            )
        attempts = item.run.attempts()
        differences = _differences(attempts[-1].read_trial(), item, devices.kind) if attempts else []
        if differences:
            raise UsageError(
                "settings-changed",
                f"{folder} is a run with {'; '.join(differences)}, but a comparison needs equal settings and data: "
                "give another --out, or the earlier options",
            )


def _differences(before: Trial, item: PlannedVariant, device: str) -> list[str]:
    settings, old = item.plan.settings.to_json(), dict(before.training)
    names = [name for name in settings if name in old and name not in _FREE_SETTINGS]
    if old.get("levers") == AUTO == (item.plan.options.levers or AUTO):
        names.remove("levers")  # the defaults, which a comparison may have written out
    pairs = [(name, old[name], settings[name]) for name in names]
    pairs.append(("implementation", before.implementation, item.plan.implementation))
    pairs.append(("device", before.device, device))
    pairs.append(("threads", before.threads_per_rank, item.plan.options.threads))
    fingerprints = before.data_fingerprint, item.plan.source.fingerprint
    if all(fingerprints):  # compare the content of the data, not the path
        pairs.append(("a hash of the data", *fingerprints))
    else:
        pairs.append(("data", before.data, settings["data"]))
    return [f"{name} {was}, not {now}" for name, was, now in pairs if was != now]
