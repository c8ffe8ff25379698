"""Find the files of a corpus, identify them by content, and decompress and decode them block by block."""

import bz2
import codecs
import gzip
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from common.atomic import write_json
from common.errors import InputError
from common.reading import read_errors, read_notes

_DUMP_NAME = re.compile(r"\.xml(-p\d+p\d+)?(\.bz2|\.gz)?$", re.IGNORECASE)
PREPARED_PREFIXES = ("hdf5_lower_case_", "sharded_", "sentences", "vocabulary")
"""Beginnings of the names of folders that `data pretrain` writes: never taken for input."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the input."""

    path: Path
    name: str
    """Its name relative to the input folder, with `/`."""
    digest: str
    """Hash of its bytes."""


def find_inputs(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the dumps and the `.txt` files at any depth below `folder`, links to folders followed, each sorted by
    relative name.

    Folders that `data pretrain` wrote are left out.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            "path-kind" if folder.exists() else "path-missing",
            f"{folder} {what}: give a folder of .txt files or dumps (.xml.bz2, .xml.gz, .xml)",
        )
    dumps: list[Path] = []
    texts: list[Path] = []
    for path in sorted(_files_below(folder), key=lambda path: path.relative_to(folder).as_posix()):
        if not is_dump(path) and path.suffix.lower() != ".txt":
            continue
        if path.is_symlink() and not path.exists():
            raise InputError("path-missing", f"{path} is a broken symbolic link: repair or remove it")
        if path.is_file():
            (dumps if is_dump(path) else texts).append(path)
    if not dumps and not texts:
        raise InputError(
            "data-missing",
            f"{folder} holds neither .txt files nor dumps (.xml.bz2, .xml.gz, .xml): give a folder with some",
        )
    return dumps, texts


def _files_below(folder: Path) -> Iterator[Path]:
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
    """Return the files, named relative to `folder`, with the hashes of their contents.

    Files of unchanged size and time are not read again: the JSON file `memory` keeps their hashes.
    """
    known = read_notes(memory)
    sources, seen = [], {}
    for path in paths:
        # A name that is not UTF-8 cannot be written into a manifest.
        name = path.relative_to(folder).as_posix().encode("utf-8", "backslashreplace").decode()
        with read_errors(path, "check its permissions or remove it"):
            status = path.stat()
            state = [status.st_size, status.st_mtime_ns]
            entry = known.get(str(path.resolve()))
            digest = entry[2] if isinstance(entry, list) and entry[:2] == state else _digest(path)
        seen[str(path.resolve())] = [*state, digest]
        sources.append(Source(path, name, digest))
    if any(known.get(name) != entry for name, entry in seen.items()):
        write_json(memory, {**known, **seen})
    return sources


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


BLOCK_BYTES = 2**20
"""Bytes read at once."""
_MOST_NUL_SHARE = 0.01
"""A file with a larger share of NUL bytes is not text."""
_MOST_DAMAGE = 0.1
"""Invalid sequences per valid one that a damaged UTF-8 file may have; beyond that it is another encoding."""
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_ASCII = bytes(range(0x80))
_NOT_WINDOWS = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))


def find_encoding(path: Path, raw: bytes) -> tuple[str, str | None]:
    """Return the codec of the text in a file and what such files are counted as, None for UTF-8.

    UTF-8 with or without a byte order mark, UTF-16 and UTF-32 with one. What is not valid UTF-8 is windows-1252, or
    latin-1 where that has none of its extra characters; but a few invalid bytes among much valid UTF-8 are damage.
    """
    for mark, codec in _BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            return codec, f"{codec.upper()} files"
    if raw.count(0) > _MOST_NUL_SHARE * len(raw):
        raise InputError("file-encoding", f"{path} is not text: remove it or convert it to UTF-8")
    try:
        raw.decode("utf-8")
        return "utf-8-sig", None
    except UnicodeDecodeError:
        pass
    text = raw.decode("utf-8", "replace")
    invalid = text.count("\ufffd")
    if invalid <= _MOST_DAMAGE * (len(text) - len(text.encode("ascii", "ignore")) - invalid):
        return "utf-8-sig", "damaged UTF-8 files"
    upper = set(raw.translate(None, _ASCII))
    is_windows = min(upper) < 0xA0 and not upper & _NOT_WINDOWS
    return ("cp1252", "windows-1252 files") if is_windows else ("latin-1", "latin-1 files")


_OTHER_FILES = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first (7z x), or get the .bz2 of the same dump"),
    (b"\xfd7zXZ", "an xz archive: unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first (unzstd)"),
    (b"PK\x03\x04", "a ZIP archive: unpack it first (unzip)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
)


def blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the decompressed bytes of a file (plain, gzip or bz2, by its first bytes), and how far the file was read.

    Raises EOFError (the compressed data end too early), OSError, zlib.error.
    """
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        reader: BinaryIO | bz2.BZ2File | gzip.GzipFile = raw
        if start.startswith(b"BZh"):
            reader = bz2.BZ2File(raw)
        elif start.startswith(b"\x1f\x8b"):
            reader = gzip.GzipFile(fileobj=raw)
        is_first = True
        # read1, because read would lose what came before an error.
        while block := (reader.read(BLOCK_BYTES) if reader is raw else reader.read1(BLOCK_BYTES)):  # type: ignore[union-attr]
            if is_first:
                is_first = False
                block = block.removeprefix(codecs.BOM_UTF8)
            yield block, raw.tell()


def refuse_other_files(path: Path) -> None:
    """Raise InputError, with a remedy, for an empty file and for archives that are not read."""
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise InputError("file-empty", f"{path} is empty: download it again")
    for magic, what in _OTHER_FILES:
        if start.startswith(magic):
            raise InputError("file-format", f"{path} is {what}")
