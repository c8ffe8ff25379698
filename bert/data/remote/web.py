"""HTTP and HTTPS requests: user agent, timeouts, retries and allowed redirects."""

import http.client
import logging
import random
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from common.errors import Code, InputError, UsageError

BLOCK_BYTES = 2**18
"""Bytes that are read at a time."""
_LOG = logging.getLogger(__name__)
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Transient status codes, which are retried."""
_REMEDIES = {
    401: "it requires a password, which is not supported: download the file by hand",
    403: "it refuses this program, as Wikimedia does without contact details: set BERTBENCH_CONTACT to your e-mail "
    "address or web page (or give --contact), or use a --mirror",
    404: "the file does not exist: check the name, the language and the date, or use another --mirror",
    410: "the file was removed: choose another date, or use another --mirror",
}
Result = TypeVar("Result")


class DownloadError(InputError):
    """A file cannot be downloaded; `status` is the HTTP status, None without an answer."""

    def __init__(self, code: Code, message: str, status: int | None = None) -> None:
        super().__init__(code, message)
        self.status = status


class WrongFileError(DownloadError):
    """A file came whole and is not what its checksum says."""


class Again(Exception):  # noqa: N818 - a turn of the loop, not an error of the program
    """This attempt failed, another one may not; `after` is what the server asks to wait, in seconds."""

    def __init__(self, reason: str, after: float | None = None, status: int | None = None) -> None:
        super().__init__(reason)
        self.after = after
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Timeouts, retries and user agent."""

    attempts: int = 8
    """Attempts in a row that bring not a byte before giving up."""
    timeout_seconds: float = 60.0
    """Seconds without a byte before an attempt counts as failed."""
    first_wait_seconds: float = 1.0
    """Seconds before the second attempt; doubled for each further one."""
    longest_wait_seconds: float = 300.0
    """Seconds to wait at most, also where the server asks for more."""
    agent: str = "bertbench"
    wait: Callable[[float], object] = time.sleep
    """Waits for some seconds."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https, and none from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request. Raises DownloadError for any other kind of address."""
        _refuse(req.full_url, newurl, code)
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any) -> Any:
        """Follow the redirect; the base class has an error of its own for `file:`, which names no way out."""
        _refuse(req.full_url, headers.get("Location") or req.full_url, code)
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _refuse(url: str, target: str, code: int) -> None:
    before, after = urlsplit(url).scheme, urlsplit(target).scheme or urlsplit(url).scheme
    if after not in ("http", "https") or (before == "https" and after == "http"):
        raise DownloadError(
            "download-failed",
            f"{url} redirects to {target}, outside {before}: download it by hand, or use a --mirror",
            code,
        )


def check_address(url: str) -> None:
    """Raise UsageError if `url` is no http or https address."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        good = good and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or re.search(r"[\x00-\x20\x7f-\uffff]", url):
        raise UsageError(
            "option-value", f"{url!r} must be an http:// or https:// address in ASCII without user name or spaces"
        )


@contextmanager
def opened(url: str, headers: dict[str, str], transfer: Transfer) -> Iterator[Any]:
    """Yield the answer (200 or 206) to one request.

    Raises:
        Again: waiting may help.
        DownloadError: it does not.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    opener.addheaders = []
    plain = {"User-Agent": transfer.agent, "Accept-Encoding": "identity", **headers}
    request = urllib.request.Request(url, headers=plain)  # noqa: S310 - the opener knows only http and https
    try:
        answer = opener.open(request, timeout=transfer.timeout_seconds)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in PASSING:
            raise Again(f"HTTP {error.code} {error.reason}", _retry_after(error.headers), error.code) from error
        remedy = _REMEDIES.get(error.code, "check that address, or use another --mirror")
        raise DownloadError(
            "download-failed", f"{url} answers HTTP {error.code} {error.reason}: {remedy}", error.code
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
            raise DownloadError(
                "download-failed",
                f"cannot download {url}: {reason.strerror}; check the network and https_proxy, or use a --mirror",
            ) from error
        raise Again(_words(error)) from error
    if answer is None:
        raise DownloadError("download-failed", f"{url} is not a valid address: use another --mirror")
    with answer:
        if (answer.headers.get("Content-Encoding") or "identity").lower() != "identity":
            raise DownloadError("download-mismatch", f"the server compresses {url}: use another --mirror")
        yield answer


def patiently(url: str, attempt: Callable[[], Result], transfer: Transfer, received: Callable[[], int]) -> Result:
    """Return what `attempt` returns; repeat it while it raises Again.

    Args:
        url: for the message.
        attempt: called until it returns.
        transfer: patience.
        received: bytes so far; attempts that brought some do not count as failed.
    """
    failures, before = 0, received()
    while True:
        try:
            return attempt()
        except Again as error:
            failures = 1 if received() > before else failures + 1
            before = received()
            if failures >= transfer.attempts:
                raise DownloadError(
                    "download-failed",
                    f"cannot download {url}: {failures} attempts failed ({error}): run again, or use a --mirror",
                    error.status,
                ) from error
            longest = transfer.longest_wait_seconds
            wait = min(transfer.first_wait_seconds * 2.0 ** min(failures - 1, 30), longest)
            # Spread over time: many machines that were cut off together do not come back together.
            wait = wait * random.uniform(0.5, 1.0) if error.after is None else min(error.after, longest)
            _LOG.warning("%s: %s; attempt %d of %d in %.0f s", url, error, failures + 1, transfer.attempts, wait)
            transfer.wait(wait)


def read_block(answer: Any) -> bytes:
    """Return the next bytes of an answer, empty at its end. Raises Again where the connection is lost."""
    try:
        return bytes(answer.read1(BLOCK_BYTES))  # not read(): what came before a stall is kept
    except (OSError, http.client.HTTPException) as error:
        raise Again(_words(error)) from error


def read_small(url: str, transfer: Transfer | None = None, limit: int = 64 * 2**20) -> bytes:
    """Return what `url` holds, at most `limit` bytes. Raises UsageError, DownloadError."""
    check_address(url)
    transfer = transfer or Transfer()

    def attempt() -> bytes:
        with opened(url, {}, transfer) as answer:
            content = b""
            while len(content) <= limit and (block := read_block(answer)):
                content += block
            _, total = range_of(answer)
        if len(content) > limit:
            raise DownloadError("download-mismatch", f"{url} holds more than {limit:,} bytes: use another --mirror")
        if total is not None and len(content) < total:
            raise Again(f"the connection ended after {len(content):,} of {total:,} bytes")
        return content

    return patiently(url, attempt, transfer, lambda: 0)


def range_of(answer: Any) -> tuple[int, int | None]:
    """Return where the bytes of an answer begin, and the bytes of the whole file (None = unknown)."""
    if answer.status != 206:
        length = answer.headers.get("Content-Length") or ""
        return 0, int(length) if re.fullmatch("[0-9]{1,18}", length) else None
    told = (answer.headers.get("Content-Range") or "").strip()
    found = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18}|\*)", told)
    if found is None:
        raise Again("the server sent a part without its range")
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _retry_after(headers: Any) -> float | None:
    """Return the seconds of Retry-After, which is a number or a date."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _words(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason) or type(error).__name__
