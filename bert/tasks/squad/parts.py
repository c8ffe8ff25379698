"""Units of work, and the parts they become: through memory (merge) or through files (spill). Imports no torch."""

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from bert.data.pool import LostWorkerError
from bert.data.tensor_file import Array, map_columns, write_columns
from bert.tasks.squad import handover
from bert.tasks.squad.config import Mode
from bert.tasks.squad.handover import SharedFile
from bert.tasks.squad.reading import RawParagraph
from bert.tasks.squad.unit import Part, Unit, make_part
from common.atomic import storage_errors
from common.errors import StorageError

SHARES = ("reading", "starting", "tokenising", "windowing", "transfer", "writing")
"""Where the time of a preparation goes: of several processes' work, the time divided by their number."""
UNITS_PER_WORKER = 4
LEAST_UNIT_BYTES, MOST_UNIT_BYTES = 2**17, 2**20
"""Bytes of JSON in a unit of work."""
MOST_UNITS = 100
"""Of larger files the units are larger: each keeps a file open until all are written, and 256 may be the limit."""
Place = Path | Literal["memory"] | None
"""Where a part's columns go: into files of a folder, into shared memory, or back with the part."""


@contextmanager
def parts_place(mode: Mode, path: Path, workers: int) -> Iterator[Place]:
    """Yield where parts go; a folder of part files beside `path` exists no longer than needed.

    Raises:
        StorageError: it cannot be made.
    """
    if mode == "merge":
        yield "memory" if workers > 1 and handover.is_possible() else None
        return
    with storage_errors(path):
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}.", suffix=".parts", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_and_keep(unit: Unit, place: Place) -> Part:
    """Make a part, and put its columns where the parent finds them."""
    part = make_part(unit)
    if place is None:
        return part
    assert isinstance(part.columns, dict)
    began = time.monotonic()
    columns = {name: [values] for name, values in part.columns.items()}
    if place == "memory":
        part.columns = _in_memory(columns) or part.columns
        part.seconds["transfer"] = time.monotonic() - began
        return part
    part.columns = path = place / f"{unit.number}.safetensors"
    with storage_errors(path), path.open("wb") as file:
        write_columns(file, columns, {})
    part.seconds["writing"] = time.monotonic() - began
    return part


def _in_memory(columns: Mapping[str, list[Array]]) -> SharedFile | None:
    """None where there is no descriptor or no memory left: then the columns go back with the part."""
    shared = None
    try:
        shared, file = handover.new_file()
        with file:
            write_columns(file, columns, {})
    except OSError:
        if shared is not None:
            os.close(shared.descriptor)
        return None
    return shared


def received(part: Part) -> Part:
    """Return a part with its columns, wherever they were put.

    Raises:
        LostWorkerError: the process that holds them has ended.
        StorageError: this process has no descriptor or no memory left for them.
    """
    if isinstance(part.columns, dict):
        return part
    path = part.columns.path if isinstance(part.columns, SharedFile) else part.columns
    try:
        return dataclasses.replace(part, columns=map_columns(path)[1])
    except OSError as error:
        if isinstance(part.columns, Path):
            raise
        # Of a process that has ended and is not waited for yet others than root are refused, not told that it is gone.
        if isinstance(error, FileNotFoundError) or part.columns.is_lost():
            raise LostWorkerError("a worker ended while it held a part") from error
        raise StorageError(
            "path-unreadable",
            f"cannot take over what a worker made: {error}: use fewer --workers, or raise `ulimit -n`",
        ) from error


def cut(paragraphs: Sequence[RawParagraph], workers: int) -> Iterator[Sequence[RawParagraph]]:
    """Yield runs of paragraphs of about equal size."""
    sizes = [len(memoryview(paragraph.json)) for paragraph in paragraphs]
    size = sum(sizes)
    most = max(min(max(size // (workers * UNITS_PER_WORKER), LEAST_UNIT_BYTES), MOST_UNIT_BYTES), size // MOST_UNITS)
    run: list[RawParagraph] = []
    taken = 0
    for paragraph, own in zip(paragraphs, sizes, strict=True):
        run.append(paragraph)
        taken += own
        if taken >= most:
            yield run
            run, taken = [], 0
    if run:
        yield run


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
