"""Units of work, and the parts they become: through memory (merge) or through files (spill). Imports no torch."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bert.data.squad.config import Mode
from bert.data.squad.reading import RawParagraph
from bert.data.squad.tensor_file import map_columns, write_columns
from bert.data.squad.unit import Columns, Part, Unit, make_part
from common.atomic import storage_errors

SHARES = ("reading", "starting", "tokenising", "windowing", "transfer", "writing")
"""Where the time of a preparation goes: of several processes' work, the time divided by their number."""
UNITS_PER_WORKER = 4
LEAST_UNIT_BYTES, MOST_UNIT_BYTES = 2**17, 2**20
"""Bytes of JSON in a unit of work."""


@contextmanager
def parts_folder(mode: Mode, path: Path) -> Iterator[Path | None]:
    """Yield a folder beside `path` for part files that exists no longer than needed; None for the mode merge.

    Raises:
        StorageError: it cannot be made.
    """
    if mode == "merge":
        yield None
        return
    with storage_errors(path):
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}.", suffix=".parts", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_and_keep(unit: Unit, folder: Path | None) -> Part:
    """Make a part, and write it into `folder` where there is one."""
    part = make_part(unit)
    if folder is None:
        return part
    assert part.columns is not None
    began = time.monotonic()
    path = _part_file(folder, unit.number)
    with storage_errors(path), path.open("wb") as file:
        write_columns(file, {name: [values] for name, values in part.columns.items()}, {})
    part.columns = None
    part.seconds["writing"] = time.monotonic() - began
    return part


def _part_file(folder: Path, number: int) -> Path:
    return folder / f"{number}.safetensors"


def columns_of(part: Part, folder: Path | None) -> Columns:
    """Return the columns of a part, wherever they are."""
    if part.columns is not None:
        return part.columns
    assert folder is not None
    return map_columns(_part_file(folder, part.number))[1]


def cut(paragraphs: Sequence[RawParagraph], workers: int) -> Iterator[tuple[RawParagraph, ...]]:
    """Yield runs of paragraphs of about equal size."""
    size = sum(len(paragraph.json) for paragraph in paragraphs)
    most = min(max(size // (workers * UNITS_PER_WORKER), LEAST_UNIT_BYTES), MOST_UNIT_BYTES)
    run: list[RawParagraph] = []
    taken = 0
    for paragraph in paragraphs:
        run.append(paragraph)
        taken += len(paragraph.json)
        if taken >= most:
            yield tuple(run)
            run, taken = [], 0
    if run:
        yield tuple(run)


def shares_of(parts: Sequence[Part], workers: int, began: float, made: float) -> dict[str, float]:
    """Return where the time since `began` went; what was found by `made` was made by workers at the same time."""
    shares = dict.fromkeys(SHARES, 0.0)
    for part in parts:
        for name, seconds in part.seconds.items():
            shares[name] += seconds / workers
    if workers > 1:
        first: dict[int, float] = {}
        for part in parts:
            first[part.process] = min(part.began, first.get(part.process, part.began))
        # A process that got nothing to do was starting all the time.
        idle = (workers - len(first)) * (made - began)
        shares["starting"] = (sum(max(0.0, start - began) for start in first.values()) + idle) / workers
    shares["transfer"] = max(0.0, made - began - sum(shares.values()))
    shares["writing"] += time.monotonic() - made
    return shares
