"""The stage `extract`: MediaWiki dumps -> part files of paragraph text, in parallel, restartable.

A part holds the pages of consecutive units of one dump, about 16 MiB of XML, so which pages a part holds depends on
the dump alone. Workers take units; this process writes their texts in order, so memory holds a few units, never a part.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from bert.corpus.dumps import Dump
from bert.corpus.files import Source
from bert.corpus.pages import Text, Work, extract_unit
from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.atomic import atomic_path, storage_errors
from common.errors import BertbenchError

STAGE = "extract"
VERSION = 2
"""Raised when the same dump gives other bytes."""
PART_BYTES = 16 * 2**20
"""A part ends with the first unit that reaches this size."""
TRUNCATED = "truncated dumps"
_MEBIBYTE = 2**20


def extract(
    dumps: Sequence[Source],
    folder: StageFolder,
    workers: Workers,
    part: Part,
    progress: Progress,
    keep_truncated: bool = False,
) -> Finished | None:
    """Write the articles of the dumps as paragraph text; return the stage when all its parts are there.

    Args:
        dumps: MediaWiki dumps, in order.
        folder: of the stage, begun.
        workers: they parse; the bytes do not depend on their number.
        part: the share of the part files that this process makes.
        progress: told the MiB of the dump files that are done.
        keep_truncated: use the whole pages of a dump that ends too early; not a setting of the bytes otherwise.

    Raises:
        InputError: a dump is none, is damaged or truncated; parts that were finished are kept.
        StorageError: a part cannot be written.
    """
    found = folder.finished()
    if found is not None:
        return found
    names: list[str] = []
    extra = Counts()
    total = sum(source.path.stat().st_size for source in dumps)
    done = 0
    progress(STAGE, 0, total // _MEBIBYTE)
    for number, source in enumerate(dumps):
        plan = _Plan(number, Dump(source.path, keep_truncated), folder, part, names)
        with _Writer(folder) as writer:
            for text in workers.map(extract_unit, plan.work()):
                writer.add(text)
                progress(STAGE, (done + text.end) // _MEBIBYTE, total // _MEBIBYTE)
            if plan.error is None:
                writer.close()
        if plan.error is not None:
            raise plan.error
        if plan.dump.is_truncated:
            extra.add(TRUNCATED, example=source.name)
        done += source.path.stat().st_size
        progress(STAGE, done // _MEBIBYTE, total // _MEBIBYTE)
    return folder.finish(names, extra)


class _Plan:
    """Which part each unit of a dump goes to."""

    def __init__(self, number: int, dump: Dump, folder: StageFolder, part: Part, names: list[str]) -> None:
        self.dump = dump
        self.error: BertbenchError | None = None
        self._number = number
        self._folder = folder
        self._part = part
        self._names = names

    def work(self) -> Iterator[Work]:
        """Yield the units whose part is to be made here; all part names are noted.

        An error of the dump ends it and is kept, so that what was handed out is finished first.
        """
        size, count, name, is_wanted = PART_BYTES, 0, "", False
        try:
            for unit in self.dump.units():
                if size >= PART_BYTES:
                    name = f"{self._number:03d}-{count:05d}.txt"
                    # Numbered through all dumps, so that many small dumps are shared evenly too.
                    is_wanted = self._part.takes(len(self._names)) and not self._folder.is_done(name)
                    self._names.append(name)
                    size, count = 0, count + 1
                size += unit.size
                if is_wanted:
                    yield Work(name, unit, self.dump.header)
        except BertbenchError as error:
            self.error = error


class _Writer:
    """Writes texts to their parts as they come; a part is renamed into place when the next one begins."""

    def __init__(self, folder: StageFolder) -> None:
        self._folder = folder
        self._name: str | None = None
        self._counts = Counts()
        self._open = ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        """Throw away a part that was not closed."""
        try:
            if self._name is not None:
                self._open.__exit__(_Unfinished, _Unfinished(), None)
        except _Unfinished:
            pass
        self._name = None

    def add(self, text: Text) -> None:
        """Append a text to its part. Raises StorageError."""
        if text.part != self._name:
            self.close()
            self._begin(text.part)
        assert self._file is not None
        with storage_errors(self._path(text.part)):
            self._file.write(text.text)
        self._counts.merge(text.counts)

    def close(self) -> None:
        """Finish the open part: its counts first, then its name. Raises StorageError."""
        if self._name is None:
            return
        self._folder.record(self._name, self._counts)
        with storage_errors(self._path(self._name)):
            self._open.close()
        self._name = None

    def _begin(self, name: str) -> None:
        self._name, self._counts, self._open = name, Counts(), ExitStack()
        temporary = self._open.enter_context(atomic_path(self._path(name)))
        self._file = self._open.enter_context(temporary.open("wb"))

    def _path(self, name: str) -> Path:
        return self._folder.path / name


class _Unfinished(Exception):  # noqa: N818
    """Tells `atomic_path` to remove what was begun."""
