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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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
_NOTHING_LEFT = 416
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}
_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


class DownloadError(InputError):
    """A file cannot be downloaded; `status` is the HTTP status, None without an answer."""

    def __init__(
        self, code: Code, message: str, status: int | None = None, *, passing: bool = False, wait: str = ""
    ) -> None:
        super().__init__(code, message)
        self.status = status
        self.passing = passing
        """Another attempt may not fail."""
        self.wait = float(wait) if wait.isdecimal() else None
        """What the server asks for, in seconds."""


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

        def attempt() -> bytes:
            with self._opened(address) as answer:
                return bytes(answer.read())

        return self._patiently(attempt)

    def fetch(self, file: RemoteFile, path: Path, tell: Callable[[int], None]) -> None:
        """Download a file to `path`; a call after a killed one asks only for the rest.

        `path` gets its name when it is whole and its checksum right; `tell` is called with the bytes of each block.

        Raises:
            DownloadError: the server refuses, stays away, or sends something else.
            StorageError: the file cannot be written; the part is kept.
        """
        part = path.with_name(path.name + PART)
        while True:
            start = self._patiently(partial(self._continue, file, part, tell), part)
            with storage_errors(part):
                with part.open("rb") as content:
                    os.fsync(content.fileno())
                    digest = hashlib.file_digest(content, _ALGORITHMS[len(file.digest)]).hexdigest()
                if digest == file.digest:
                    part.replace(path)
                    return
                part.unlink()
            if not start:
                raise DownloadError(
                    "download-mismatch",
                    f"{self.base}/{file.address} has the checksum {digest} instead of {file.digest}: use another "
                    "--mirror or date",
                )

    def _continue(self, file: RemoteFile, part: Path, tell: Callable[[int], None]) -> int:
        """Append to `part` what it lacks, or all where the server cannot continue; return where it was continued."""
        start = size_of(part)
        if start == file.size:  # killed between the last byte and the renaming
            return start
        try:
            with self._opened(file.address, start) as answer, storage_errors(part):
                start = start if answer.status == http.client.PARTIAL_CONTENT else 0
                with part.open("ab" if start else "wb") as output:
                    while block := self._block(file.address, answer):
                        output.write(block)
                        tell(len(block))
                if answer.length:
                    problem = f"{file.address} ended {answer.length:,} bytes early"
                    raise DownloadError("download-failed", problem, passing=True)
        except DownloadError as error:
            if error.status != _NOTHING_LEFT:
                raise
        return start

    @contextmanager
    def _opened(self, address: str, start: int = 0) -> Iterator[Any]:
        url = f"{self.base}/{address}"
        headers = {"User-Agent": self.agent, **({"Range": f"bytes={start}-"} if start else {})}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the base is http or https
        with _network_errors(url), urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  # nosec B310
            yield answer

    def _block(self, address: str, answer: Any) -> bytes:
        if self.stop.is_set():
            raise DownloadError("download-failed", f"{address} was stopped")
        with _network_errors(address):
            return bytes(answer.read1(_BLOCK_BYTES))  # not read(): what came before a stall is kept

    def _patiently(self, attempt: Callable[[], Result], part: Path | None = None) -> Result:
        """Return what `attempt` returns; repeat it while waiting may help and not too many in a row bring nothing."""
        failures, before = 0, size_of(part)
        while True:
            try:
                return attempt()
            except DownloadError as error:
                failures = 1 if size_of(part) > before else failures + 1
                before = size_of(part)
                if not error.passing or failures >= ATTEMPTS or self.stop.is_set():
                    raise
                # Spread over time: machines that were cut off together do not come back together.
                spread = FIRST_WAIT_SECONDS * 2 ** (failures - 1) * random.uniform(0.5, 1.0)
                wait = min(spread if error.wait is None else error.wait, LONGEST_WAIT_SECONDS)
                _LOG.warning("%s; attempt %d of %d in %.0f s", error, failures + 1, ATTEMPTS, wait)
                self.stop.wait(wait)


def size_of(part: Path | None) -> int:
    """Return the bytes of a file, 0 where there is none."""
    return part.stat().st_size if part and part.exists() else 0


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
        wait, passing = error.headers.get("Retry-After") or "", error.code in _PASSING
        raise DownloadError("download-failed", message, error.code, passing=passing, wait=wait) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        unknown_host = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
        message = f"cannot download {url}: {reason}; check the network and https_proxy, or use a --mirror"
        raise DownloadError("download-failed", message, passing=not unknown_host) from error
