"""One file over HTTP or HTTPS: continued where it stopped, retried, checked, and renamed into place when it is whole.

What has come so far is beside the target as NAME.part; NAME.part.json says which version of the file it belongs to
(RFC 9110, section 13: the entity tag or the date goes back in If-Range, so that a file that changed meanwhile comes
again and never as halves of two versions).
"""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.remote.web import (
    Again,
    DownloadError,
    Transfer,
    WrongFileError,
    check_address,
    opened,
    patiently,
    range_of,
    read_block,
)
from common.atomic import storage_errors, write_json
from common.errors import InputError
from common.reading import read_notes

CHECKSUMS = {"md5": 32, "sha1": 40, "sha256": 64}
"""Checksums that can be checked, and their hexadecimal digits."""
Tell = Callable[[int, int | None], None]
"""Called with the bytes that are on the disk, and the bytes in all (None = the server does not say)."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Expected checksum of a file."""

    kind: str
    """md5, sha1 or sha256."""
    digits: str
    """Hexadecimal, lower case."""

    def __post_init__(self) -> None:
        """Refuse an invalid checksum."""
        if len(self.digits) != CHECKSUMS.get(self.kind) or not re.fullmatch("[0-9a-f]+", self.digits):
            raise InputError(
                "option-value", f"{self.kind}:{self.digits} is no checksum: give {', '.join(CHECKSUMS)} in hexadecimal"
            )


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is whole."""

    path: Path
    """Where it is."""
    size: int
    """Bytes."""
    received: int
    """Bytes that came over the network in this call; 0 if it was there before."""


def fetch(
    url: str,
    path: Path,
    *,
    checksum: Checksum | None = None,
    size: int | None = None,
    progress: Tell | None = None,
    transfer: Transfer | None = None,
) -> Fetched:
    """Fetch `url` to `path`; a call after a killed one asks only for the rest.

    A file that is there and right is not fetched again. After Ctrl-C, a full disk or a lost connection the part is
    kept. Two processes must not fetch the same file at a time.

    Args:
        url: http or https.
        path: the file; its folder is made.
        checksum: of the whole file. Without it, only the size is checked.
        size: bytes of the whole file, where known.
        progress: called often; what it raises ends the call.
        transfer: patience and User-Agent.

    Raises:
        UsageError: `url` is neither http nor https.
        DownloadError: the server refuses, stays away, or sends something else; the message says what to do.
        StorageError: the file cannot be written; the part is kept.
    """
    check_address(url)
    tell = progress or (lambda done, total: None)
    if is_whole(path, checksum, size):
        there = path.stat().st_size
        tell(there, there)
        return Fetched(path, there, 0)
    return _Fetch(url, path, checksum, size, tell, transfer or Transfer()).run()


def is_whole(path: Path, checksum: Checksum | None, size: int | None) -> bool:
    """Return whether `path` is there with this size and checksum. Raises StorageError if it cannot be read."""
    with storage_errors(path):
        if not path.is_file() or (size is not None and path.stat().st_size != size):
            return False
        return checksum is None or _hash(path, checksum.kind).hexdigest() == checksum.digits


def part_of(path: Path) -> Path:
    """Return where the bytes of an unfinished file are."""
    return path.with_name(path.name + ".part")


class _Fetch:
    """One file on its way."""

    def __init__(
        self, url: str, path: Path, checksum: Checksum | None, size: int | None, tell: Tell, transfer: Transfer
    ) -> None:
        self.url, self.path, self.checksum, self.size = url, path, checksum, size
        self.tell, self.transfer = tell, transfer
        self.part = part_of(path)
        self.state = self.part.with_name(self.part.name + ".json")
        self.received = 0
        self.continued = False
        self.hash = hashlib.sha1(usedforsecurity=False)

    def run(self) -> Fetched:
        """Attempt until the file is whole and right."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        patiently(self.url, self._attempt, self.transfer, lambda: self.received)
        if not self._is_right():
            # The part was damaged or of another version: start over before blaming the server.
            patiently(self.url, self._attempt, self.transfer, lambda: self.received)
            self._is_right()
        with storage_errors(self.path):
            with self.part.open("rb") as file:
                os.fsync(file.fileno())
            self.part.replace(self.path)
            self.state.unlink(missing_ok=True)
        return Fetched(self.path, self.path.stat().st_size, self.received)

    def _is_right(self) -> bool:
        """Return whether the sum is right; where it is not, remove the part."""
        if self.checksum is None:
            return True
        found = self.hash.hexdigest()
        if found == self.checksum.digits:
            return True
        if self.continued:
            self._drop()
            return False
        aside = self.path.with_name(self.path.name + ".wrong")
        with storage_errors(aside):
            self.state.unlink(missing_ok=True)
            self.part.replace(aside)
        raise WrongFileError(
            "download-mismatch",
            f"{self.url} has the {self.checksum.kind} checksum {found} instead of {self.checksum.digits}; it is kept "
            f"as {aside}. Run again; if the checksum stays wrong, use another --mirror or another date",
        )

    def _attempt(self) -> None:
        known = read_notes(self.state)
        total = self.size if self.size is not None else known.get("size")
        have = self._usable(known, total)
        if have and have == total:  # killed between the last byte and the renaming
            self._begin(have)
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        validator = self._validator(known)
        if have and validator:
            headers["If-Range"] = validator
        try:
            with opened(self.url, headers, self.transfer) as answer:
                self._receive(answer, have)
        except DownloadError as error:
            if error.status not in (412, 416) or not have:
                raise
            self._drop()
            raise Again("the file on the server has changed", 0.0, error.status) from error

    def _usable(self, known: dict[str, Any], total: Any) -> int:
        """Return how many bytes of the part can be continued."""
        try:
            have = self.part.stat().st_size
        except OSError:
            return 0
        if isinstance(total, int) and have > total:
            return 0
        if self.checksum is not None and known.get("checksum") == self.checksum.digits:
            return have  # from any address: the sum tells in the end
        return have if self._validator(known) else 0

    def _validator(self, known: dict[str, Any]) -> str | None:
        """Return what If-Range takes: a strong entity tag or a date, of this address only."""
        if known.get("url") != self.url:
            return None
        tag, date = known.get("etag"), known.get("last_modified")
        if isinstance(tag, str) and tag.startswith('"'):
            return tag
        return date if isinstance(date, str) and date else None

    def _drop(self) -> None:
        self.continued = False
        with storage_errors(self.part):
            self.part.unlink(missing_ok=True)
            self.state.unlink(missing_ok=True)

    def _begin(self, have: int) -> None:
        """Let the part end after `have` bytes, and hash those."""
        with storage_errors(self.part):
            with self.part.open("ab") as file:
                file.truncate(have)
            self.hash = _hash(self.part, self.checksum.kind if self.checksum else "sha1")
        self.continued = have > 0

    def _receive(self, answer: Any, have: int) -> None:
        start, total = range_of(answer)
        if start != (have if answer.status == 206 else 0):
            self._drop()
            raise Again("the server sent a different part than requested")
        if self.size is not None and total is not None and total != self.size:
            raise DownloadError(
                "download-mismatch", f"{self.url} has {total:,} bytes instead of {self.size:,}: use another --mirror"
            )
        self._begin(start)
        if start == 0:
            state = {
                "url": self.url,
                "etag": answer.headers.get("ETag"),
                "last_modified": answer.headers.get("Last-Modified"),
                "size": total,
                "checksum": self.checksum.digits if self.checksum else None,
            }
            with storage_errors(self.state):
                write_json(self.state, state)
        self._copy(answer, start, total if total is not None else self.size)

    def _copy(self, answer: Any, done: int, total: int | None) -> None:
        self.tell(done, total)
        with storage_errors(self.part), self.part.open("ab", buffering=0) as file:
            while block := read_block(answer):
                left = memoryview(block)
                while left:  # an unbuffered write may be a short one
                    left = left[file.write(left) :]
                self.hash.update(block)
                done += len(block)
                self.received += len(block)
                self.tell(done, total)
                if total is not None and done > total:
                    break
        if total is not None and done > total:
            self._drop()
            raise DownloadError(
                "download-mismatch", f"{self.url} sends more than its {total:,} bytes: use another --mirror"
            )
        if total is not None and done != total:
            raise Again(f"the connection ended after {done:,} of {total:,} bytes")


def _hash(path: Path, kind: str) -> Any:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
