"""One tar of what `make gpu-acceptance` has so far, small enough to be carried away in one piece."""

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 16 * 2**20
"""Bytes of the tar."""
ARCHIVE = "acceptance.tar.gz"
LEFT_OUT = "left-out.txt"
_MOST_LOG = 512 * 2**10
_MOST_READ = 128 * 2**20
_LOGS = frozenset({".out", ".err", ".txt"})
# An .nsys-rep holds the environment of the run; the export beside it does not.
_NEVER = frozenset({".nsys-rep", ".pt", ".safetensors"})
_SPARE = 2**16  # the end of the tar, and the list of what was left out


def pack(out: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Write <out>/acceptance.tar.gz anew, whole or not at all; return "PATH: why" of what is not in it or was cut.

    What is worth most goes in first: the record, logs, records of trials, the report, then profiles, the small ones
    first. Long logs are cut to their ends. The same list is in the tar as left-out.txt.

    Raises:
        OSError: it cannot be written; an earlier one is as it was.
    """
    said: list[str] = []
    temporary = out / f".{ARCHIVE}.{os.getpid()}"
    try:
        with (
            temporary.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, filename="", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for path in _in_order_of_worth(out):
                packed.flush()
                name = str(path.relative_to(out))
                why = _add(tar, path, name, most_bytes - _SPARE - file.tell())
                said += [f"{name}: {why}"] if why else []
            _add_bytes(tar, LEFT_OUT, "".join(f"{line}\n" for line in said[:200]).encode())
        temporary.replace(out / ARCHIVE)
    finally:
        temporary.unlink(missing_ok=True)
    return said


def _in_order_of_worth(out: Path) -> Iterator[Path]:
    files = [
        path for path in out.rglob("*") if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    ]

    def worth(path: Path) -> tuple[int, int, str]:
        parts = path.relative_to(out).parts
        size = path.stat().st_size
        kind = 4 if "profile" in parts else 3 if "report" in parts else 2 if parts[0] == "run" else int(len(parts) > 1)
        return kind, size if kind == 4 else 0, str(path)

    yield from sorted((path for path in files if path.name != ARCHIVE and path.suffix not in _NEVER), key=worth)


def _add(tar: tarfile.TarFile, path: Path, name: str, room: int) -> str:
    """Add a file if it fits into `room` bytes; return why it is not in the tar as it is, "" where it is."""
    size = path.stat().st_size
    if path.suffix in _LOGS and size > _MOST_LOG:
        with path.open("rb") as file:
            file.seek(-_MOST_LOG, io.SEEK_END)
            end = file.read(_MOST_LOG)
        if _packed_size(end) > room:
            return f"left out, {_mib(size)} do not fit"
        _add_bytes(tar, name, end)
        return f"its last {_mib(len(end))} of {_mib(size)}"
    if size > _MOST_READ:
        return f"left out, {_mib(size)} do not fit"
    content = path.read_bytes()  # at once: a log may grow meanwhile
    if len(content) + 2048 > room and _packed_size(content) > room:
        return f"left out, {_mib(size)} do not fit"
    _add_bytes(tar, name, content)
    return ""


def _packed_size(content: bytes) -> int:
    """Bytes that the tar grows by, the header and what a block is filled up with included."""
    return len(zlib.compress(content, 1)) + 2048


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
