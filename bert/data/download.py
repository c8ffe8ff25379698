"""One server over HTTP: files are continued where they stopped, retried while waiting may help, and checked.

What has come so far is beside the target as NAME.part. It is continued whatever the server says of its version: the
checksum of the whole file decides, and a part that does not fit is fetched again from the start.
"""

import hashlib
import http.client
import logging
import os
import random
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.atomic import storage_errors
from common.errors import Code, InputError

PART = ".part"
ATTEMPTS = 8
"""Attempts in a row that bring not a byte before giving up."""
TIMEOUT_SECONDS = 60.0
FIRST_WAIT_SECONDS = 1.0
"""Doubled for each further attempt."""
LONGEST_WAIT_SECONDS = 300.0
_BLOCK_BYTES = 2**18
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}
_LOG = logging.getLogger(__name__)


class DownloadError(InputError):
    """A file cannot be downloaded."""

    def __init__(self, code: Code, message: str, status: int | None = None, wait: float | None = None) -> None:
        super().__init__(code, message)
        self.status = status
        """Of HTTP; None without an answer."""
        self.wait = wait
        """Seconds before another attempt may succeed, 0 if the server names none; None if none will."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a server."""

    address: str
    """Relative to the server's base."""
    size: int | None
    digest: str
    """md5, sha1 or sha256 in lower-case hexadecimal."""

    @property
    def name(self) -> str:
        """Name of the file here."""
        return self.address.rpartition("/")[2]


class Server:
    """A server or a mirror of it; setting `stop` ends all transfers."""

    def __init__(self, base: str, agent: str) -> None:
        self.base, self.agent = base, agent
        self.stop = threading.Event()

    def read(self, address: str) -> bytes:
        """Return what an address below the base holds. Raises DownloadError."""
        content = bytearray()
        for start, block in self._blocks(address):
            content[start:] = block
        return bytes(content)

    def fetch(self, file: RemoteFile, path: Path, tell: Callable[[int], None]) -> None:
        """Download a file to `path`; a call after a killed one asks only for the rest.

        `path` gets its name when it is whole and its checksum right; `tell` is called with the bytes of each block.

        Raises DownloadError (the server refuses, stays away, or sends something else), StorageError; the part is kept.
        """
        part = path.with_name(path.name + PART)
        while True:
            begin = size_of(part)
            with storage_errors(part), part.open("ab") as output:
                # A whole part is there if a call was killed between the last byte and the renaming.
                for start, block in self._blocks(file.address, begin) if begin != file.size else ():
                    if not block:
                        begin = output.truncate(start)
                    output.write(block)
                    tell(len(block))
            with storage_errors(part), part.open("rb") as content:
                os.fsync(content.fileno())
                digest = hashlib.file_digest(content, _ALGORITHMS[len(file.digest)]).hexdigest()
            if digest == file.digest:
                part.replace(path)
                return
            part.unlink()
            if not begin:
                raise DownloadError(
                    "download-mismatch",
                    f"{self.base}/{file.address} has the checksum {digest} instead of {file.digest}: use another "
                    "--mirror or date",
                )

    def _blocks(self, address: str, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the content from `start` on, or all where the server cannot continue: where a block begins, the block.

        The first block of each answer is empty. What fails is repeated while waiting may help and not too many attempts
        in a row bring nothing.
        """
        url, failures = f"{self.base}/{address}", 0
        while True:
            headers = {"User-Agent": self.agent, **({"Range": f"bytes={start}-"} if start else {})}
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the base is http or https
            try:
                with _network_errors(url), urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  # nosec B310
                    start = start if answer.status == http.client.PARTIAL_CONTENT else 0
                    yield start, b""
                    while block := answer.read1(_BLOCK_BYTES):  # not read(): what came before a stall is kept
                        if self.stop.is_set():
                            raise DownloadError("download-failed", f"{url} was stopped")
                        yield start, block
                        start, failures = start + len(block), 0
                    if answer.length:
                        raise http.client.IncompleteRead(b"", answer.length)
                return
            except DownloadError as error:
                if error.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return  # nothing is left
                failures += 1
                if error.wait is None or failures >= ATTEMPTS or self.stop.is_set():
                    raise
                # Spread over time: machines that were cut off together do not come back together.
                spread = FIRST_WAIT_SECONDS * 2 ** (failures - 1) * random.uniform(0.5, 1.0)
                wait = min(error.wait or spread, LONGEST_WAIT_SECONDS)
                _LOG.warning("%s; attempt %d of %d in %.0f s", error, failures + 1, ATTEMPTS, wait)
                self.stop.wait(wait)


def size_of(part: Path) -> int:
    """Return the bytes of a file, 0 where there is none."""
    return part.stat().st_size if part.exists() else 0


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    """Turn an error of the network into DownloadError."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        remedy = "check the name, the language and the date, or use another --mirror"
        if error.code == http.client.FORBIDDEN:
            remedy = "set BERTBENCH_CONTACT to your e-mail address or web page, as Wikimedia requires"
        message = f"{url} answers HTTP {error.code} {error.reason}: {remedy}"
        after = error.headers.get("Retry-After") or ""
        wait = (float(after) if after.isdecimal() else 0) if error.code in _PASSING else None
        raise DownloadError("download-failed", message, error.code, wait) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        unknown_host = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
        message = f"cannot download {url}: {reason}; check the network and https_proxy, or use a --mirror"
        raise DownloadError("download-failed", message, wait=None if unknown_host else 0) from error
