"""`bertbench data squad-scaling`: the time to make SQuAD features against the number of workers."""

import csv
import dataclasses
import io
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.cli.options import parse, plain_words, run_folder
from bert.tasks.squad.config import SquadConfig, cpu_count
from common.atomic import write_json, write_text

if TYPE_CHECKING:
    from bert.tasks.squad.scaling import Scaling

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SquadScalingOptions:
    """Make SQuAD features with 1..N worker processes, in both modes, and draw time against workers."""

    input: Path
    """JSON of SQuAD 1.1 or 2.0, plain or .gz."""
    vocab: Path
    """BERT vocab.txt."""
    out: Path
    """Folder for squad-scaling.json, .csv and .png."""
    workers: tuple[int, ...] = ()
    """Numbers of processes; default 1 2 ... CPUs."""
    rounds: int = 3
    """Turns; the middle one counts."""
    split: Literal["training", "evaluation"] | None = None
    """What the features are for; default by the input's name."""
    lower_case: bool = True
    """Text is lower-cased; --no-lower-case for a cased vocabulary."""
    json: bool = False
    """Print the result as JSON."""


OPTIONS = {"data squad-scaling": SquadScalingOptions}


def main(argv: list[str]) -> int:
    """Run the command."""
    options = parse(SquadScalingOptions, plain_words(argv), "bertbench data squad-scaling")
    from bert.tasks.squad.reading import check_there
    from bert.tasks.squad.scaling import measure

    check_there(options.input)
    out = run_folder(options.out)
    config = SquadConfig(
        input=(options.input,), vocab=options.vocab, split=options.split, lower_case=options.lower_case
    )
    config.split_of(options.input)
    workers = options.workers or tuple(range(1, cpu_count() + 1))
    found = measure(config, workers, options.rounds, out, _tell)
    document = _document(options, found)
    write_json(out / "squad-scaling.json", document)
    write_text(out / "squad-scaling.csv", _table(found))
    _draw(options, found, out / "squad-scaling.png")
    print(json.dumps(document, indent=2) if options.json else _text(found, out))
    return 0


def _tell(mode: str, workers: int, turn: int, seconds: float) -> None:
    print(f"round {turn}: {mode}, {workers} worker(s): {seconds:.2f} s", file=sys.stderr, flush=True)


def _document(options: SquadScalingOptions, found: "Scaling") -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "input": str(options.input),
        "machine": platform.machine(),
        "cpus": cpu_count(),
        **dataclasses.asdict(found),
    }


def _table(found: "Scaling") -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    shares = list(found.rows[0].shares)
    table.writerow(["mode", "workers", "seconds", "speedup", *(f"{name}_s" for name in shares)])
    for row in found.rows:
        values = (row.seconds, row.speedup, *row.shares.values())
        table.writerow([row.mode, row.workers, *(f"{value:.4f}" for value in values)])
    return text.getvalue()


def _draw(options: SquadScalingOptions, found: "Scaling", path: Path) -> None:
    from analysis.render.squad_scaling_figures import ScalingPoint, draw_scaling

    points = [ScalingPoint(row.mode, row.workers, row.seconds, row.rounds, row.shares) for row in found.rows]
    title = f"{found.questions:,} questions of {options.input.name}"
    note = (
        f"{cpu_count()} CPUs. The start of the processes is part of the time. Work of several counts divided by their "
        "number; transfer: what is left, which is handing over and waiting."
    )
    draw_scaling(path, points, title, note)


def _text(found: "Scaling", out: Path) -> str:
    shares = list(found.rows[0].shares)
    lines = [f"{'mode':<6} {'workers':>7} {'seconds':>8} {'speed-up':>8}" + "".join(f" {name:>11}" for name in shares)]
    for row in found.rows:
        parts = "".join(f" {100 * seconds / row.seconds:>9.1f} %" for seconds in row.shares.values())
        lines.append(f"{row.mode:<6} {row.workers:>7} {row.seconds:>8.3f} {row.speedup:>8.2f}{parts}")
    lines.append(f"{found.questions:,} questions, {found.windows:,} windows, the same file every time")
    lines.append(f"written to {out}: squad-scaling.json, squad-scaling.csv, squad-scaling.png")
    return "\n".join(lines)
