"""Find the files of a corpus, identify them by content, and decompress and decode them block by block."""

import bz2
import codecs
import gzip
import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from common.atomic import write_json
from common.errors import InputError
from common.reading import read_errors, read_notes

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
    """Dumps and text files of a folder."""

    dumps: tuple[Path, ...]
    """MediaWiki dumps, sorted by relative name."""
    texts: tuple[Path, ...]
    """Text files, sorted by relative name."""


def find_inputs(folder: Path) -> Inputs:
    """Return the dumps and `.txt` files at any depth below `folder`, links to folders followed.

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
        if not is_dump(path) and not path.name.lower().endswith(TEXT_SUFFIXES):
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
    return Inputs(tuple(dumps), tuple(texts))


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
    """Return the files with the hashes of their contents; files of unchanged size and time are not read again.

    Args:
        paths: the files.
        folder: what their names are relative to.
        memory: JSON file that keeps the hashes.
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
"""Bytes read and decoded at once."""
MOST_NUL_SHARE = 0.01
"""A file with a larger share of NUL bytes is not text."""
MOST_CONTROL_SHARE = 0.01
"""A file that is not UTF-8 and has a larger share of control characters is not text."""
MOST_DAMAGE = 0.1
"""Invalid sequences per valid one that a damaged UTF-8 file may have; beyond that it is another encoding."""

# Bytes no text has, apart from tab, line feed, form feed and carriage return.
_CONTROLS = bytes(code for code in range(1, 32) if code not in (9, 10, 12, 13))
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32 files"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32 files"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16 files"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16 files"),
)
_ASCII = bytes(range(0x80))
_WINDOWS_ONLY = frozenset(range(0x80, 0xA0))
_NOT_WINDOWS = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
# Control characters other than whitespace. In single-byte encodings they are removed from the bytes: ten times faster.
_REMOVED = bytes((*range(9), *range(14, 28), 0x7F))
_REMOVED_LATIN1 = _REMOVED + bytes((*range(0x80, 0x85), *range(0x86, 0xA0)))
_REMOVED_UTF8 = re.compile(b"\xc2[\x80-\x84\x86-\x9f]")
_REMOVED_TEXT = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file is to be decoded."""

    codec: str
    """Python's name of it."""
    count_name: str | None
    """What such files are counted as; None for UTF-8."""
    nul_bytes: int = 0
    """NUL bytes that are taken out."""

    @property
    def is_wide(self) -> bool:
        """Whether a character takes two or four bytes."""
        return self.codec in ("utf-16", "utf-32")


@dataclass(slots=True)
class TextBlocks:
    r"""The text of one file in blocks, with `\n` for each line ending; iterate once.

    Raises (while iterating):
        InputError: the file cannot be read.
    """

    source: Source
    encoding: Encoding
    consumed_bytes: int = field(default=0, init=False)
    """Bytes read so far."""

    def __iter__(self) -> Iterator[str]:
        inner = codecs.getincrementaldecoder(self.encoding.codec)("replace")
        decoder = io.IncrementalNewlineDecoder(inner, translate=True)
        held = b""
        for raw in _read(self.source.path):
            self.consumed_bytes += len(raw)
            if self.encoding.is_wide:
                yield _REMOVED_TEXT.sub("", decoder.decode(raw))
                continue
            both = held + raw
            # The first half of a two-byte control character waits for the second.
            held = both[-1:] if both.endswith(b"\xc2") else b""
            yield decoder.decode(self._without_controls(both[: len(both) - len(held)]))
        yield decoder.decode(held, final=True)

    def _without_controls(self, raw: bytes) -> bytes:
        if self.encoding.codec == "latin-1":
            return raw.translate(None, _REMOVED_LATIN1)
        raw = raw.translate(None, _REMOVED)
        return raw if self.encoding.codec == "cp1252" else _REMOVED_UTF8.sub(b"", raw)


def find_encoding(source: Source) -> Encoding:
    """Read a file once to find out its encoding.

    UTF-8 with or without a byte order mark, UTF-16 and UTF-32 with one. What is not valid UTF-8 is windows-1252 where
    it uses that encoding's extra characters, else latin-1; but a few invalid bytes among much valid UTF-8 are damage.
    """
    strict = codecs.getincrementaldecoder("utf-8")("strict")
    size = nul_bytes = controls = 0
    is_utf8 = True
    for raw in _read(source.path):
        if size == 0:
            for mark, codec, count_name in _BYTE_ORDER_MARKS:
                if raw.startswith(mark):
                    return Encoding(codec, count_name)
        size += len(raw)
        nul_bytes += raw.count(0)
        controls += len(raw) - len(raw.translate(None, _CONTROLS))
        if is_utf8:
            try:
                strict.decode(raw)
            except UnicodeDecodeError:
                is_utf8 = False
    if is_utf8:
        is_utf8 = not strict.getstate()[0]  # a character that the end of the file cuts is invalid too
    _refuse_binary(source.path, "NUL", nul_bytes, size, MOST_NUL_SHARE)
    if is_utf8:
        return Encoding("utf-8-sig", None, nul_bytes)
    _refuse_binary(source.path, "control characters", controls, size, MOST_CONTROL_SHARE)
    return _other_encoding(source.path, nul_bytes)


def _refuse_binary(path: Path, what: str, count: int, size: int, most: float) -> None:
    if count > most * size:
        raise InputError(
            "file-encoding",
            f"{path} is not text ({count} of its {size} bytes are {what}): remove it or convert it to UTF-8",
        )


def _other_encoding(path: Path, nul_bytes: int) -> Encoding:
    """Tell damaged UTF-8, windows-1252 and latin-1 apart."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    valid = invalid = 0
    upper: set[int] = set()
    for raw in _read(path):
        text = decoder.decode(raw)
        replaced = text.count("\ufffd")
        valid += len(text) - len(text.encode("ascii", "ignore")) - replaced
        invalid += replaced
        upper.update(raw.translate(None, _ASCII))
    invalid += bool(decoder.getstate()[0])
    if invalid <= MOST_DAMAGE * valid:
        return Encoding("utf-8-sig", "damaged UTF-8 files", nul_bytes)
    if upper & _WINDOWS_ONLY and not upper & _NOT_WINDOWS:
        return Encoding("cp1252", "windows-1252 files", nul_bytes)
    return Encoding("latin-1", "latin-1 files", nul_bytes)


def _read(path: Path) -> Iterator[bytes]:
    with read_errors(path, "check its permissions or remove it"), path.open("rb") as file:
        while raw := file.read(BLOCK_BYTES):
            yield raw


_OTHER_FILES = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first (7z x), or get the .bz2 of the same dump"),
    (b"\xfd7zXZ", "an xz archive: unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first (unzstd)"),
    (b"PK\x03\x04", "a ZIP archive: unpack it first (unzip)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
)


def blocks(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield the decompressed bytes of a file, and how far the file was read, block by block.

    Args:
        path: plain, gzip or bz2 (recognized by its first bytes), in UTF-8.
        offset: where to begin: 0, or the start of a bz2 stream.

    Raises:
        EOFError: the compressed data end too early.
        OSError, zlib.error: they are damaged, or the file cannot be read.
    """
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(offset)
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
