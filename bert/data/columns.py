"""Safetensors files of columns: declared, written part by part, read by memory mapping. Imports no torch.

The format: 8 bytes with the header's size, the header (JSON: name -> dtype, shape, place), then the columns without
gaps (https://huggingface.co/docs/safetensors). The library itself wants each column in one piece in memory to write it,
and copies it to read it.

A file may have a checksum: the CRC-32 of its header, without the checksum, and its columns.
"""

import json
import mmap
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from common.errors import Code, SchemaError, read_code

_TYPES = {"U8": "|u1", "U16": "<u2", "I32": "<i4", "I64": "<i8", "F32": "<f4", "BOOL": "|b1"}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_MOST_HEADER_BYTES = 2**24
_ALIGNMENT = 8
CHECKSUM = "crc32"
"""Name of the checksum among the metadata."""
_CHUNK_BYTES = 4 * 2**20
Array = npt.NDArray[Any]
Columns = Mapping[str, Array]


class NotWholeError(Exception):
    """The file is truncated, damaged, or something else; code and text say which."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code: Code = code

    def __str__(self) -> str:
        return str(self.args[1])


def damage_code(error: Exception) -> Code:
    """Return the code of a file of columns that could not be read, by what reading it raised."""
    if isinstance(error, NotWholeError | SchemaError):
        return error.code
    return read_code(error) if isinstance(error, OSError) else "file-damaged"


def write_columns(
    file: BinaryIO, columns: Mapping[str, Sequence[Array]], metadata: Mapping[str, str], checksum: bool = False
) -> None:
    """Write columns, each of them given as parts that follow one another; the same content gives the same bytes.

    Args:
        file: open for writing, empty.
        columns: name -> one or more arrays of one dimension and the same type.
        metadata: texts to keep in the header.
        checksum: whether to keep one there, too, for `check_content`.
    """
    # Wide types first, so that every column begins at a multiple of its own width.
    names = sorted(columns, key=lambda name: (-columns[name][0].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    place = 0
    for name in names:
        rows = sum(map(len, columns[name]))
        end = place + rows * columns[name][0].itemsize
        header[name] = {"dtype": _NAMES[columns[name][0].dtype], "shape": [rows], "data_offsets": [place, end]}
        place = end
    parts = [np.ascontiguousarray(part).data for name in names for part in columns[name] if len(part)]
    if not checksum:
        file.write(_header(header))
        file.writelines(parts)
        return
    # Of the same length with any checksum, which is computed while the columns are written.
    file.write(_header(header, 0))
    with ThreadPoolExecutor(1) as beside:
        crc = beside.submit(_crc32, header, parts)
        file.writelines(parts)
        file.seek(0)
        file.write(_header(header, crc.result()))


def _header(header: Mapping[str, Any], crc: int | None = None) -> bytes:
    if crc is not None:
        header = {**header, "__metadata__": {**header.get("__metadata__", {}), CHECKSUM: f"{crc:08x}"}}
    content = _json(header)
    content += b" " * (-len(content) % _ALIGNMENT)
    return len(content).to_bytes(8, "little") + content


def _crc32(header: Mapping[str, Any], parts: Sequence[memoryview]) -> int:
    crc = _crc32_of_header(header)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def read_header(path: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """Return a file's metadata, the description of its columns, and where these begin."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise NotWholeError("file-truncated", "it is truncated or not a safetensors file")
        content = file.read(length)
    try:
        header = json.loads(content)
        metadata = header.pop("__metadata__", {})
        columns = {name: (_TYPES[one["dtype"]], *one["shape"], *one["data_offsets"]) for name, one in header.items()}
        whole = all(isinstance(number, int) and number >= 0 for _, *numbers in columns.values() for number in numbers)
        fits = whole and all(
            begin + rows * np.dtype(kind).itemsize == end for kind, rows, begin, end in columns.values()
        )
        texts = all(isinstance(value, str) for value in metadata.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        code: Code = "file-damaged" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else "file-format"
        raise NotWholeError(code, "it is not a safetensors file of columns") from error
    if not (fits and texts):
        raise NotWholeError("file-damaged", "its header is inconsistent")
    needed = 8 + length + max((end for *_, end in columns.values()), default=0)
    if needed != size:
        raise NotWholeError(
            "file-truncated" if size < needed else "file-damaged",
            f"it has {size:,} bytes instead of {needed:,}" + (": it is truncated" * (size < needed)),
        )
    return metadata, columns, 8 + length


def check_content(path: Path) -> None:
    """Read a whole file and check it against its checksum; one without a checksum passes."""
    begin = read_header(path)[2]
    with path.open("rb") as file:
        header = json.loads(file.read(begin)[8:])
        noted = header.get("__metadata__", {}).pop(CHECKSUM, None)
        if noted is None:
            return
        crc = _crc32_of_header(header)
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    if f"{crc:08x}" != noted:
        raise NotWholeError("file-damaged", "its checksum is wrong: the file was changed on disk or by a copy")


def _crc32_of_header(header: Mapping[str, Any]) -> int:
    return zlib.crc32(_json({"__metadata__": {}} | dict(header)))


def _json(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def map_columns(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """Return a file's metadata and its columns, read-only, in memory that the system reads from the file as needed."""
    metadata, described, begin = read_header(path)
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    columns = {
        name: np.frombuffer(content, kind, rows, begin + place) for name, (kind, rows, place, _) in described.items()
    }
    return metadata, columns


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its values for each item of one axis (questions, windows, rows)."""

    axis: str
    types: tuple[str, ...]
    """NumPy types that it may have."""
    kind: Literal["values", "ragged", "ends"] = "values"
    """values: `width` values each. ragged: a row of any length each, in a file NAME.values and NAME.offsets. ends:
    where the things of the axis `of` that belong to each begin, and the end of the last."""
    of: str = ""
    """Of values: the axis whose things they number. Of a ragged column: the axis its values lie on, where columns of
    that have one for each of them."""
    width: int = 1
    optional: bool = False
    """Whether it may be empty."""

    def stored(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the stored columns that hold it, with their types."""
        if self.kind == "ragged":
            return {f"{name}.values": self.types, f"{name}.offsets": ("<i8",)}
        return {name: self.types}

    def count(self, name: str, part: Columns) -> int:
        """Return the number of items of its axis in a part."""
        return len(part[f"{name}.rows" if self.kind == "ragged" else name]) // self.width


IDS = ("<u2", "<i4")
"""Types of word pieces: the narrow one where the vocabulary allows it."""
TEXT = ("|u1",)
"""Type of texts as UTF-8 bytes."""


def check_columns(columns: Columns, declared: Mapping[str, Column]) -> None:
    """Raise ValueError if columns are missing, of another type, or do not fit together."""
    for name, column in declared.items():
        for stored, types in column.stored(name).items():
            if stored not in columns or columns[stored].dtype not in [np.dtype(kind) for kind in types]:
                raise ValueError(f"the column {stored} is missing or has another type")
    sizes: dict[str, int] = {}
    for name, column in declared.items():
        if column.kind == "ragged":
            values, ends = columns[f"{name}.values"], columns[f"{name}.offsets"]
            _check_ends(name, ends, len(values))
            found = {column.axis: len(ends) - 1, **({column.of: len(values)} if column.of else {})}
        elif column.kind == "ends":
            found = {column.axis: len(columns[name]) - 1}
        elif column.optional and not len(columns[name]):
            continue
        else:
            if len(columns[name]) % column.width:
                raise ValueError(f"the column {name} does not have {column.width} values for each {column.axis}")
            found = {column.axis: len(columns[name]) // column.width}
        if any(sizes.setdefault(axis, size) != size for axis, size in found.items()):
            raise ValueError("its columns differ in length")
    for name, column in declared.items():
        values = columns.get(name, np.empty(0))
        if column.kind == "ends":
            _check_ends(name, values, sizes[column.of])
        elif column.kind == "values" and column.of and not _numbers(values, sizes[column.of]):
            raise ValueError(f"{name} has an index out of range")


def _numbers(values: Array, count: int) -> bool:
    return not len(values) or 0 <= int(values.min()) <= int(values.max()) < count


def _check_ends(name: str, ends: Array, last: int) -> None:
    if not len(ends) or ends[0] != 0 or ends[-1] != last or (np.diff(ends) < 0).any():
        raise ValueError(f"the offsets of {name} are inconsistent")


def joined(parts: Sequence[Columns], declared: Mapping[str, Column]) -> dict[str, list[Array]]:
    """Return the columns of a file, each as the parts it consists of.

    Args:
        parts: at least one, in order. Ragged columns are NAME.values and NAME.rows (lengths), those of the kind `ends`
            are how many there are, and numbers count from 0 in each part.
        declared: the columns.
    """
    found: dict[str, list[Array]] = {}
    for name, column in declared.items():
        if column.kind == "ragged":
            found[f"{name}.values"] = [part[f"{name}.values"] for part in parts]
            found[f"{name}.offsets"] = [offsets([part[f"{name}.rows"] for part in parts])]
        elif column.kind == "ends":
            found[name] = [offsets([part[name] for part in parts])]
        elif column.of:
            numbered = next(other for other in declared if declared[other].axis == column.of)
            before = np.cumsum([0, *(declared[numbered].count(numbered, part) for part in parts)])
            found[name] = [part[name] + np.int32(begin) for part, begin in zip(parts, before[:-1], strict=True)]
        else:
            found[name] = [part[name] for part in parts]
    return found


def offsets(lengths: Sequence[Array]) -> npt.NDArray[np.int64]:
    """Return where rows of these lengths begin, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
