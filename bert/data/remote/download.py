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

    def __init__(self, code: Code, message: str, status: int | None = None) -> None:
        super().__init__(code, message)
        self.status = status


class _Again(Exception):  # noqa: N818 - a turn of the loop, not an error of the program
    """An attempt failed, another one may not; `wait` is what the server asks for, in seconds."""

    def __init__(self, reason: object, wait: str = "") -> None:
        super().__init__(reason)
        self.wait = float(wait) if wait.isdecimal() else None


class _Stopped(Exception):  # noqa: N818 - ends the other transfers when one failed
    """Another transfer failed, or Ctrl-C was pressed."""


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
            with self._opened(address) as answer, _network_errors(address):
                return bytes(answer.read())

        return self._patiently(address, attempt, lambda: 0)

    def fetch(self, file: RemoteFile, path: Path, tell: Callable[[int], None]) -> None:
        """Download a file to `path`; a call after a killed one asks only for the rest.

        `path` gets its name when it is whole and its checksum right; `tell` is called with the bytes of each block.

        Raises:
            DownloadError: the server refuses, stays away, or sends something else.
            StorageError: the file cannot be written; the part is kept.
        """
        part = path.with_name(path.name + PART)
        received, continued = 0, False

        def attempt() -> None:
            nonlocal received, continued
            done = part.stat().st_size if part.exists() else 0
            continued = continued or done > 0
            if done == file.size:  # killed between the last byte and the renaming
                return
            with self._opened(file.address, done) as answer, storage_errors(part):
                done = done if answer.status == http.client.PARTIAL_CONTENT else 0
                with part.open("ab" if done else "wb") as output:
                    while block := self._block(file.address, answer):
                        output.write(block)
                        received += len(block)
                        tell(len(block))
                    output.flush()
                    os.fsync(output.fileno())
            if answer.length:
                raise _Again(f"the connection ended {answer.length:,} bytes too early")

        while True:
            continued = False
            try:
                self._patiently(file.address, attempt, lambda: received)
            except DownloadError as error:
                if error.status != _NOTHING_LEFT:
                    raise
            with storage_errors(part):
                with part.open("rb") as content:
                    digest = hashlib.file_digest(content, _ALGORITHMS[len(file.digest)]).hexdigest()
                if digest == file.digest:
                    part.replace(path)
                    return
                part.unlink()
            if not continued:
                raise DownloadError(
                    "download-mismatch",
                    f"{self.base}/{file.address} has the checksum {digest} instead of {file.digest}: run again, or use "
                    "another --mirror or date",
                )

    @contextmanager
    def _opened(self, address: str, start: int = 0) -> Iterator[Any]:
        url = f"{self.base}/{address}"
        headers = {"User-Agent": self.agent, **({"Range": f"bytes={start}-"} if start else {})}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the base is http or https
        with _network_errors(url):
            answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310  # nosec B310
        with answer:
            yield answer

    def _block(self, address: str, answer: Any) -> bytes:
        if self.stop.is_set():
            raise _Stopped
        with _network_errors(address):
            return bytes(answer.read1(_BLOCK_BYTES))  # not read(): what came before a stall is kept

    def _patiently(self, address: str, attempt: Callable[[], Result], received: Callable[[], int]) -> Result:
        """Return what `attempt` returns; repeat it while waiting may help and not too many in a row bring nothing."""
        failures, before = 0, received()
        while not self.stop.is_set():
            try:
                return attempt()
            except _Again as error:
                failures = 1 if received() > before else failures + 1
                before = received()
                if failures >= ATTEMPTS:
                    raise DownloadError(
                        "download-failed",
                        f"cannot download {self.base}/{address}: {failures} attempts failed ({error}): run again, or "
                        "use a --mirror",
                    ) from error
                # Spread over time: machines that were cut off together do not come back together.
                spread = FIRST_WAIT_SECONDS * 2 ** (failures - 1) * random.uniform(0.5, 1.0)
                wait = min(spread if error.wait is None else error.wait, LONGEST_WAIT_SECONDS)
                _LOG.warning("%s: %s; attempt %d of %d in %.0f s", address, error, failures + 1, ATTEMPTS, wait)
                self.stop.wait(wait)
        raise _Stopped


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    """Turn an error of the network into _Again where waiting may help, else into DownloadError."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _PASSING:
            raise _Again(f"HTTP {error.code}", error.headers.get("Retry-After") or "") from error
        remedy = "check the name, the language and the date, or use another --mirror"
        if error.code == http.client.FORBIDDEN:
            remedy = "set BERTBENCH_CONTACT to your e-mail address or web page, as Wikimedia requires"
        raise DownloadError(
            "download-failed", f"{url} answers HTTP {error.code} {error.reason}: {remedy}", error.code
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
            raise DownloadError(
                "download-failed", f"cannot download {url}: {reason}; check the network and https_proxy"
            ) from error
        raise _Again(reason) from error
