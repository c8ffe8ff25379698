"""The files a corpus is made of: found, told apart, and identified by their content."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert.data.json_notes import read_notes
from common.atomic import write_json
from common.errors import InputError, read_code

_DUMP_NAME = re.compile(r"\.xml(-p\d+p\d+)?(\.bz2|\.gz)?$", re.IGNORECASE)
TEXT_SUFFIXES = (".txt",)
"""Books, articles, any plain text."""
PREPARED_PREFIXES = ("hdf5_lower_case_", "sharded_", "extracted", "cleaned", "sentences", "tokens_")
"""Beginnings of the names of folders that `data pretrain` writes: never taken for input."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the input."""

    path: Path
    """Where it is."""
    name: str
    """Its name relative to the input folder, with `/`."""
    digest: str
    """Hash of its bytes."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a folder holds."""

    dumps: tuple[Path, ...]
    """MediaWiki dumps, sorted by relative name."""
    texts: tuple[Path, ...]
    """Text files, sorted by relative name."""


def find_inputs(folder: Path) -> Inputs:
    """Return the dumps and `.txt` files at any depth below `folder`, links to folders followed.

    Folders that `data pretrain` wrote are left out.

    Raises:
        InputError: there is no such folder, or nothing of use in it; the message says what is looked for.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            "path-kind" if folder.exists() else "path-missing",
            f"{folder} {what}: give a folder that holds .txt files or dumps (.xml.bz2, .xml.gz, .xml)",
        )
    dumps: list[Path] = []
    texts: list[Path] = []
    for path in sorted(_files_below(folder), key=lambda path: path.relative_to(folder).as_posix()):
        if not is_dump(path) and not path.name.lower().endswith(TEXT_SUFFIXES):
            continue
        if path.is_symlink() and not path.exists():
            raise InputError("path-missing", f"{path} is a link to a file that is not there: repair it or take it out")
        if path.is_file():
            (dumps if is_dump(path) else texts).append(path)
    if not dumps and not texts:
        raise InputError(
            "data-missing",
            f"{folder} holds neither .txt files nor MediaWiki dumps (.xml.bz2, .xml.gz, .xml): give a folder of plain "
            "text files, one book or article each, or of dumps",
        )
    return Inputs(tuple(dumps), tuple(texts))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all that is no folder, at any depth, links to folders followed once each."""
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        status = Path(place).stat()
        here = (status.st_dev, status.st_ino)
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(name for name in folders if not name.startswith(PREPARED_PREFIXES))
        yield from (Path(place) / name for name in files)


def is_dump(path: Path) -> bool:
    """Return whether a file is named as MediaWiki dumps are, whole (`.xml.bz2`) or in parts (`.xml-p1p41242.bz2`)."""
    return _DUMP_NAME.search(path.name) is not None


def identify(paths: Sequence[Path], folder: Path, memory: Path) -> list[Source]:
    """Return the files with the hashes of their contents; files of unchanged size and time are not read again.

    Args:
        paths: the files.
        folder: what their names are relative to.
        memory: JSON file that keeps the hashes.

    Raises:
        InputError: a file cannot be read; the message names it.
        StorageError: the hashes cannot be kept.
    """
    known = read_notes(memory)
    sources, seen = [], {}
    for path in paths:
        # A name that is not UTF-8 cannot be written into a manifest.
        name = path.relative_to(folder).as_posix().encode("utf-8", "backslashreplace").decode()
        try:
            status = path.stat()
            state = [status.st_size, status.st_mtime_ns]
            entry = known.get(str(path.resolve()))
            digest = entry[2] if isinstance(entry, list) and entry[:2] == state else _digest(path)
        except OSError as error:
            raise InputError(
                read_code(error), f"cannot read {path}: {error.strerror}; check its permissions or take it out"
            ) from error
        seen[str(path.resolve())] = [*state, digest]
        sources.append(Source(path, name, digest))
    if any(known.get(name) != entry for name, entry in seen.items()):
        write_json(memory, {**known, **seen})
    return sources


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
