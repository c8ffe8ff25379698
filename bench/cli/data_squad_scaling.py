"""`bertbench data squad-scaling`: time to make SQuAD features by number of workers, in both modes."""

import dataclasses
import hashlib
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.cli.options import Printed, parse, plain_words, run_folder
from bench.cli.result import Result
from bert.tasks.squad.config import MODES, Mode, SquadConfig, cpu_count
from common.atomic import storage_errors, write_json
from common.errors import UsageError

if TYPE_CHECKING:
    from analysis.render.tables import Table

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SquadScalingOptions(Printed):
    """Measure how the preparation of SQuAD features scales with worker processes, in both modes, and plot time over
    workers.

    Examples:
        bertbench data squad-scaling --input train-v1.1.json --vocab vocab.txt --out runs/scaling
    """

    input: Path
    """SQuAD 1.1 or 2.0 file, JSON or .gz."""
    vocab: Path
    """BERT vocab.txt."""
    out: Path
    """Folder for squad-scaling.json, .csv and .png."""
    workers: tuple[int, ...] = ()
    """Numbers of worker processes; default 1 2 ... up to the number of CPUs."""
    rounds: int = 3
    """Interleaved repetitions; the median is reported."""
    split: Literal["training", "evaluation"] | None = None
    """Split to prepare; default from the name of the input."""
    lower_case: bool = True
    """Text is lower-cased, as for bert-*-uncased; --no-lower-case keeps case, for a cased vocabulary."""


OPTIONS = {"data squad-scaling": SquadScalingOptions}


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """The result of one mode with one number of workers."""

    mode: Mode
    workers: int
    """Number of processes; 1 means no worker processes."""
    seconds: float
    """Wall time of the median round (the faster of two in the middle), from reading to the finished file."""
    rounds: tuple[float, ...]
    """Seconds of every round, in order."""
    shares: Mapping[str, float]
    """Seconds of the median round by part (bert.tasks.squad.prepare.SHARES); they add up to `seconds`."""
    speedup: float
    """Time of the mode's first row divided by the time of this row."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """All rows and the data they were measured on."""

    rows: tuple[ScalingRow, ...]
    """Sorted by mode, then by number of workers."""
    questions: int
    windows: int
    file_fingerprint: str
    """Hash of the feature file, identical in all runs."""


def read_words(words: list[str], program: str) -> Any:
    """Parse the command line. Raises UsageError."""
    return parse(SquadScalingOptions, plain_words(words, SquadScalingOptions), program)


def run(options: SquadScalingOptions) -> Result:
    """Measure, write the results and draw the chart."""
    from analysis.render.tables import write_csv
    from bert.tasks.squad.reading import check_there

    check_there(options.input)
    out = run_folder(options.out)
    config = SquadConfig(
        input=(options.input,), vocab=options.vocab, split=options.split, lower_case=options.lower_case
    )
    config.split_of(options.input)
    workers = options.workers or tuple(range(1, cpu_count() + 1))
    found = measure(config, workers, options.rounds, out)
    document = _document(options, found)
    written = [out / f"squad-scaling.{ending}" for ending in ("json", "csv", "png")]
    write_json(written[0], document)
    write_csv(written[1], _plain_rows(found), line_end="\n")
    _draw(options, found, out)
    said = f"{found.questions:,} questions, {found.windows:,} windows, identical files in all runs"
    return Result(document=document, blocks=[_table(found), said], written=written)


def measure(config: SquadConfig, workers: Sequence[int], rounds: int, folder: Path) -> Scaling:
    """Time the features of the first input; each round runs every mode with every number of workers.

    Each measurement starts new workers and includes their start.

    Args:
        config: features to make; its mode, workers and output are ignored.
        workers: numbers of processes.
        rounds: repetitions of all measurements.
        folder: folder for temporary files.

    Raises:
        UsageError: there are fewer CPUs than workers, or two feature files differ.
        InputError, StorageError: as `prepare` does.
    """
    from bert.tasks.squad.prepare import prepare
    from bert.tasks.squad.unit import forget_words

    numbers = sorted(set(workers))
    if not numbers or numbers[0] < 1 or numbers[-1] > cpu_count() or rounds < 1:
        raise UsageError(
            "option-value",
            f"--workers {' '.join(map(str, workers))} with --rounds {rounds}: give 1 to {cpu_count()} workers (one "
            "per CPU) and at least 1 round",
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
            note = f"round {turn + 1}: {mode}, {number} worker(s): {made.seconds:.2f} s"
            print(note, file=sys.stderr, flush=True)
    if len(fingerprints) > 1:
        raise UsageError("data-mismatch", "features depend on the number of workers: this is a bug, please report it")
    rows = tuple(_row(side, seconds[side], shares[side], seconds[side[0], numbers[0]]) for side in sides)
    return Scaling(rows, made.counts.get("questions"), made.counts.get("windows"), fingerprints.pop())


def _row(
    side: tuple[Mode, int], seconds: Sequence[float], shares: Sequence[Mapping[str, float]], first: Sequence[float]
) -> ScalingRow:
    order = sorted(range(len(seconds)), key=seconds.__getitem__)
    middle = order[(len(order) - 1) // 2]
    base = sorted(first)[(len(first) - 1) // 2]
    return ScalingRow(*side, seconds[middle], tuple(seconds), dict(shares[middle]), base / seconds[middle])


def _document(options: SquadScalingOptions, found: Scaling) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "input": str(options.input),
        "machine": platform.machine(),
        "cpus": cpu_count(),
        **dataclasses.asdict(found),
    }


def _plain_rows(found: Scaling) -> list[dict[str, Any]]:
    return [
        {
            "mode": row.mode,
            "workers": row.workers,
            **{name: f"{value:.4f}" for name, value in (("seconds", row.seconds), ("speedup", row.speedup))},
            **{f"{name}_s": f"{value:.4f}" for name, value in row.shares.items()},
        }
        for row in found.rows
    ]


def _draw(options: SquadScalingOptions, found: Scaling, out: Path) -> None:
    from analysis.render.png import write_png
    from analysis.render.task_figures import ScalingPoint, squad_scaling_figure

    points = [ScalingPoint(row.mode, row.workers, row.seconds, row.rounds, row.shares) for row in found.rows]
    title = f"{found.questions:,} questions of {options.input.name}"
    note = (
        f"{cpu_count()} CPUs. Times include the start of the processes. Parallel work is divided by the number of "
        "workers; transfer is the rest: data exchange and waiting."
    )
    write_png(squad_scaling_figure(points, title, note), out)


def _table(found: Scaling) -> "Table":
    from analysis.render.tables import texts

    headings = ("mode", "workers", "seconds", "speed-up", *found.rows[0].shares)
    rows = [
        (row.mode, str(row.workers), f"{row.seconds:.3f}", f"{row.speedup:.2f}",
         *(f"{100 * seconds / row.seconds:.1f} %" for seconds in row.shares.values()))
        for row in found.rows
    ]  # fmt: skip
    return texts("scaling", headings, rows)
