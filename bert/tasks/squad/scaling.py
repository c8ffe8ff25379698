"""How the time to make SQuAD features falls with the number of worker processes, in both modes. Imports no torch."""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert.tasks.squad.config import MODES, Mode, SquadConfig, cpu_count
from bert.tasks.squad.prepare import prepare
from bert.tasks.squad.unit import forget_words
from common.atomic import storage_errors
from common.errors import UsageError

Tell = Callable[[Mode, int, int, float], None]
"""Called with mode, workers, round (from 1) and its seconds."""


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One mode with one number of workers."""

    mode: Mode
    workers: int
    """Processes; with one, this process does everything."""
    seconds: float
    """Of the middle round (the faster of the two in the middle), from reading to the finished file."""
    rounds: tuple[float, ...]
    """Seconds of every round, in order."""
    shares: Mapping[str, float]
    """Where the middle round's time went (bert.tasks.squad.prepare.SHARES); they add up to `seconds`."""
    speedup: float
    """Time of the first row of the mode over this one's."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """All rows, and what they were measured on."""

    rows: tuple[ScalingRow, ...]
    """Mode by mode, in ascending number of workers."""
    questions: int
    windows: int
    file_fingerprint: str
    """Hash of the file of features, the same every time."""


def measure(config: SquadConfig, workers: Sequence[int], rounds: int, folder: Path, tell: Tell) -> Scaling:
    """Make the features of the first input again and again, all modes and numbers of workers in turns.

    Workers are started anew each time, and what that takes is part of the time.

    Args:
        config: what to make; its mode, workers and output do not matter.
        workers: numbers of processes.
        rounds: turns.
        folder: where the files are made, and removed again.
        tell: told about each of them.

    Raises:
        UsageError: there are fewer CPUs than workers, or two files of features differ.
        InputError, StorageError: as `prepare` does.
    """
    numbers = sorted(set(workers))
    if not numbers or numbers[0] < 1 or numbers[-1] > cpu_count() or rounds < 1:
        raise UsageError(
            "option-value",
            f"--workers {' '.join(map(str, workers))} with --rounds {rounds}: give 1 to {cpu_count()} workers (the "
            "CPUs there are) and 1 round or more",
        )
    sides = [(mode, number) for mode in MODES for number in numbers]
    seconds: dict[tuple[Mode, int], list[float]] = {side: [] for side in sides}
    shares: dict[tuple[Mode, int], list[Mapping[str, float]]] = {side: [] for side in sides}
    fingerprints: set[str] = set()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for turn in range(rounds):
        for mode, number in sides:
            with tempfile.TemporaryDirectory(prefix=".scaling-", dir=folder) as name:
                forget_words()
                one = dataclasses.replace(config, input=config.input[:1], mode=mode, workers=number, output=Path(name))
                (made,) = prepare(one, lambda stage, done, total: None)
                fingerprints.add(hashlib.blake2b(made.features.read_bytes(), digest_size=16).hexdigest())
            seconds[mode, number].append(made.seconds)
            shares[mode, number].append(made.shares)
            tell(mode, number, turn + 1, made.seconds)
    if len(fingerprints) > 1:
        raise UsageError("data-mismatch", "workers made different features: this must not be, please report it")
    rows = tuple(_row(side, seconds[side], shares[side], seconds[side[0], numbers[0]]) for side in sides)
    return Scaling(rows, made.counts.get("questions"), made.counts.get("windows"), fingerprints.pop())


def _row(
    side: tuple[Mode, int], seconds: Sequence[float], shares: Sequence[Mapping[str, float]], first: Sequence[float]
) -> ScalingRow:
    order = sorted(range(len(seconds)), key=seconds.__getitem__)
    middle = order[(len(order) - 1) // 2]
    base = sorted(first)[(len(first) - 1) // 2]
    return ScalingRow(*side, seconds[middle], tuple(seconds), dict(shares[middle]), base / seconds[middle])
