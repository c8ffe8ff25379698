"""One engine behind everything that measures one variant after another and then says what came of it.

    choose -> plan -> measure -> conclude

A choice says what to measure next: every combination of the axes in turn (`grid`, `in_turn`), the largest batch by
doubling and bisection (`largest_batch`), the fastest configuration by a search (bench.plan.autotune), or what Optuna
draws (bench.tune.worker). It is a generator, which yields a variant, is sent what was found of it, and returns
what it concludes. `explore` runs it. What is measured is a trial of a run directory (`measured_trials`), or a whole
training in a folder of its own (`PlannedVariant`).
"""

import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.machine.devices import Devices
from bench.plan.sweep import Again, Progress, run_trials
from bench.plan.training import Plan, TrainOptions, check_continues, plan_training
from bench.run.attempt import train_once
from bench.run.launch import LaunchOptions, Watcher
from common import locks
from common.errors import UsageError
from records.run import RunDirectory
from records.training import TrainRun, is_train_run
from records.trial import Trial

Value = bool | int | float | str
Values = Mapping[str, Value]
"""What a variant has of its own: options of `bertbench train`, by name."""
V = TypeVar("V")
R = TypeVar("R")
C = TypeVar("C")
# Steps that show a batch size fits: the first allocates the optimizer state, the second runs with it.
PROBE_STEPS = 3
PROOF_STEPS = 20
# Settings that change neither what a training does nor, in earnest, how long it takes.
_FREE_SETTINGS = ("log_every", "save_every", "keep", "data")


def explore(
    choice: Generator[V, R, C], measure: Callable[[V], R], stopped: Callable[[], bool] = lambda: False
) -> C | None:
    """Measure what a choice asks for, one after the other, until it concludes.

    Args:
        choice: what to measure next.
        measure: returns what was found of a variant.
        stopped: asked before each; the choice is then closed without a conclusion.

    Returns:
        The conclusion; None where it was stopped.
    """
    found: Any = None
    try:
        while not stopped():
            found = measure(choice.send(found))
    except StopIteration as end:
        conclusion: C = end.value
        return conclusion
    finally:
        choice.close()
    return None


def in_turn(variants: Iterable[V]) -> Generator[V, Any, int]:
    """Yield each variant once; the conclusion is how many there were."""
    number = 0
    for number, variant in enumerate(variants, start=1):  # noqa: B007
        yield variant
    return number


def grid(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the axes, the last one changing fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """Outcome of the search."""

    micro_batch_size: int
    """The largest size that ran; 0 where not even 1 fits."""
    proved: bool
    """Whether it ran PROOF_STEPS steps, and the next one (a step of the search larger) was shown to fail for memory or
    the limit was reached."""
    fails_at: int | None
    """The smallest size that was shown to fail; None where the limit ended the search."""
    failure: str
    """Status and reason of that failure, or what ended the search."""
    tried: tuple[tuple[int, str], ...]
    """Every (size, status) in the order of trying."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)


Probes = Generator[Trial, Mapping[str, Any], C]
"""Yields trials and is sent their results, as bench.plan.variants.explore runs it."""


class _Search:
    """Asks for probes and remembers how they ended."""

    def __init__(self, trial: Trial, step: int) -> None:
        self._trial = dataclasses.replace(trial, kind="probe")
        self._step = step
        self.tried: list[tuple[int, str]] = []
        self.results: dict[int, Mapping[str, Any]] = {}

    def ends(self, size: int, steps: int) -> Probes[str]:
        """Return the status of `steps` steps at micro batch `size`."""
        result = yield dataclasses.replace(
            self._trial, micro_batch_size=size, start_iteration=1, stop_iteration=steps
        )  # fmt: skip
        self.results[size] = result
        self.tried.append((size, str(result["status"])))
        return str(result["status"])

    def failed_for_memory(self, size: int) -> bool:
        """Return whether the last trial of that size ended as oom."""
        return bool(self.results[size]["status"] == "oom")

    def bounds(self, start: int, limit: int) -> Probes[tuple[int, int | None]]:
        """Return the largest size that ran and the smallest that did not (None: the limit was reached)."""
        fits, fails, size = 0, None, min(start, limit)
        while fails is None and fits < limit:
            end = yield from self.ends(size, PROBE_STEPS)
            if end == "ok":
                fits, size = size, min(2 * size, limit)
            else:
                fails = size
        # Below the step too as long as nothing fits: "0" says that not even 1 does.
        while fails is not None and fails - fits > (self._step if fits else 1) and self.failed_for_memory(fails):
            half = (fails - fits) // 2
            middle = fits + (half - half % self._step if half > self._step else half)
            end = yield from self.ends(middle, PROBE_STEPS)
            fits, fails = (middle, fails) if end == "ok" else (fits, middle)
        return fits, fails


def largest_batch(trial: Trial, limit: int, step: int = 1) -> Probes[MaxBatch]:
    """Search upwards from `trial.micro_batch_size`; each trial is to be run in a process of its own.

    A size fits when its trial ends with status ok and is too large when it ends as oom. Any other end stops the search:
    it says nothing about memory, so what was found is then not proved to be the largest. With a `step` the search ends
    when what fits and what fails are so far apart: a search by 32 has five trials fewer than one by 1.
    """
    search = _Search(trial, step)
    fits, fails = yield from search.bounds(trial.micro_batch_size, limit)
    # Memory can still grow after the first steps (fragmentation, longer batches): prove the size, step down if need be.
    while fits > 0 and (yield from search.ends(fits, PROOF_STEPS)) != "ok":
        fails = fits
        smaller = fits - step if fits > step else fits // 2
        fits = smaller if search.failed_for_memory(fits) else 0
    tried = tuple(search.tried)
    if fails is None:
        return MaxBatch(fits, True, None, f"the limit of {limit} was reached without running out of memory", tried)
    failure = search.results[fails]
    proved = fits > 0 and failure["status"] == "oom"
    return MaxBatch(fits, proved, fails, f"{failure['status']}: {failure.get('reason', '')}", tried)


def measured_trials(
    run: RunDirectory,
    request: Mapping[str, Any],
    devices: Devices,
    options: LaunchOptions,
    progress: Progress,
    note: Callable[[str], None],
    retry_failed: bool = False,
    again: Again | None = None,
) -> Callable[[Trial], dict[str, Any]]:
    """Return what runs one trial of a run directory, or reads its result where it is finished.

    Arguments are those of bench.plan.sweep.run_trials; used inside `locked(run)`. Other hardware is noted once.
    """
    told = [note]

    def measure(trial: Trial) -> dict[str, Any]:
        own = told.pop() if told else lambda text: None
        (result,) = run_trials(run, [trial], request, devices, options, progress, own, retry_failed, again)
        return result

    return measure


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedVariant:
    """A training among others, looked at before anything runs."""

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

    def train(self, devices: Devices, watcher: Watcher) -> bool:
        """Train to the end, or on from where it stopped; return False where nothing was left to do.

        Its run directory records how it ended.

        Raises:
            LockedError: another call uses it.
            StorageError: its run directory cannot be written.
            KeyboardInterrupt: it was ended at once.
        """
        with locks.locked(self.run.path, "another call", "wait for it, or choose another --out"):
            if self.finished:
                return False
            check_continues(self.run, self.plan)
            train_once(self.run, self.plan, devices, watcher)
            return True

    def device_name(self) -> str | None:
        """The machine that it was trained on; None before."""
        names = (attempt.read_environment().get("device_name") for attempt in self.run.attempts())
        return next((str(name) for name in names if name), None)


def plan_variant(options: TrainOptions, values: Values, devices: Devices) -> PlannedVariant:
    """Return the training of some options with values of its own, in the folder that they name.

    Raises:
        UsageError: settings that no run can have, or more devices than there are.
        InputError: the data or the initial weights cannot be read.
    """
    return PlannedVariant(values=values, plan=plan_training(options, devices), run=TrainRun(options.out.resolve()))


def check_comparable(planned: Sequence[PlannedVariant], devices: Devices) -> None:
    """Refuse a comparison of different trainings, with each other or with what lies in their folders.

    Raises:
        UsageError: global batches differ, or a folder holds a run with other settings, data, device or threads.
        SchemaError: what lies there is damaged.
    """
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
                f"--out {folder.parent} is the run directory of one training: give a folder of its own",
            )
        attempts = item.run.attempts()
        differences = _differences(attempts[-1].read_trial(), item, devices.kind) if attempts else []
        if differences:
            raise UsageError(
                "settings-changed",
                f"{folder} holds a training with {'; '.join(differences)}: one comparison has one set of settings and "
                "data; give another --out, or the options of before",
            )


def _differences(before: Trial, item: PlannedVariant, device: str) -> list[str]:
    """What a run that lies there has other than what is planned, in words."""
    settings, old = item.plan.settings.to_json(), dict(before.training)
    names = [name for name in settings if name in old and name not in _FREE_SETTINGS]
    pairs = [(name, old[name], settings[name]) for name in names]
    pairs.append(("implementation", before.implementation, item.plan.implementation))
    pairs.append(("device", before.device, device))
    pairs.append(("threads", before.threads_per_rank, item.plan.options.threads))
    fingerprints = before.data_fingerprint, item.plan.source.fingerprint
    if all(fingerprints):  # data count by what they are, not by where they lie
        pairs.append(("a hash of the data", *fingerprints))
    else:
        pairs.append(("data", before.data, settings["data"]))
    return [f"{name} {was}, not {now}" for name, was, now in pairs if was != now]
