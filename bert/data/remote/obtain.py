"""Download all files of a named source into a folder, in parallel, and resume after an interruption.

The list of files is kept beside them (plan-KEY.json), so that a second call asks for the same files although a newer
dump has come out, and so that a finished download needs no network.
"""

import os
import re
import shutil
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bert.data.pool import Progress
from bert.data.remote.download import Checksum, fetch, is_whole, part_of
from bert.data.remote.sources import SOURCES, Choice, NamedSource, RemoteFile
from bert.data.remote.web import DownloadError, Transfer, WrongFileError, check_address, read_small
from common.atomic import storage_errors, write_json, write_text
from common.errors import InputError, StorageError, UsageError
from common.locks import locked
from common.reading import read_notes
from common.registry import lookup

CONTACT_VARIABLE = "BERTBENCH_CONTACT"
"""Environment variable with the e-mail address or web page that servers may write to."""
TERMS_FILE = "TERMS.md"
VERIFIED_FILE = "verified.json"
_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteOptions(Choice):
    """What to download, and from where."""

    mirror: str = ""
    """Base URL of a mirror; default the original, or an environment variable named after the data set, such as
    BERTBENCH_WIKIPEDIA_URL."""
    contact: str = ""
    """E-mail address or web page for the User-Agent, which Wikimedia requests; default the environment variable
    BERTBENCH_CONTACT."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """A name whose files are all there."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    """Its files, in order."""
    plan: Path
    """The list that a further call follows; without it, a further call looks for newer files."""
    size: int
    """Bytes of all files."""
    received: int
    """Bytes that came over the network in this call."""
    unchecked: tuple[str, ...]
    """Names of files without a published checksum."""


def obtain(
    name: str,
    folder: Path,
    options: RemoteOptions | None = None,
    progress: Progress | None = None,
    transfer: Transfer | None = None,
) -> Obtained:
    """Fetch the files of `name` into `folder`/`name`; finished and begun ones are continued.

    Args:
        name: one of SOURCES.
        folder: folder of all downloads.
        options: language, date and so on.
        progress: called with "download NAME", the bytes there, and the bytes in all (None = not published).
        transfer: patience.

    Raises:
        UsageError: an unknown name, or one that this program does not fetch; the message says how to get it.
        DownloadError: the server refuses or stays away.
        StorageError: the folder cannot be written, or has too little room.
        LockedError: another process fetches into the folder.
    """
    source = named(name)
    options = options or RemoteOptions()
    base = base_of(source, options.mirror)
    transfer = replace(transfer or Transfer(), agent=agent_of(options.contact))
    target = folder / name
    with locked(target, "another download", "wait for it, or give another folder"):
        plan_path = target / f"plan-{source.key(options)}.json"
        files = _read_plan(plan_path)
        if files is None:
            assert source.plan is not None
            files = source.plan(lambda address: read_small(f"{base}/{address}", transfer), options)
            _write_plan(plan_path, source, base, files)
        run = _Run(source, base, target, files, progress or (lambda stage, done, total: None), transfer)
        received = run.all(plan_path)
    paths = tuple(target / file.name for file in files)
    unchecked = tuple(file.name for file in files if file.checksum is None)
    return Obtained(name, target, paths, plan_path, sum(path.stat().st_size for path in paths), received, unchecked)


def named(name: str) -> NamedSource:
    """Return a source that this program fetches. Raises UsageError, which says how to get the others."""
    source = lookup(SOURCES, name, "name of data")
    if source.plan is None:
        raise UsageError(
            "option-choice", f"bertbench does not download {name}. " + "\n".join((*source.instead, *source.terms))
        )
    return source


def base_of(source: NamedSource, mirror: str = "") -> str:
    """Return the address below which the files of a source are. Raises UsageError for an invalid mirror."""
    variable = f"BERTBENCH_{source.name.upper().replace('-', '_')}_URL"
    base = (mirror or os.environ.get(variable) or source.base).rstrip("/")
    check_address(base)
    return base


def agent_of(contact: str = "") -> str:
    """Return the User-Agent, in the form that Wikimedia's policy asks for. Raises UsageError for odd characters."""
    contact = contact or os.environ.get(CONTACT_VARIABLE, "") or "pretraining data for BERT"
    if not re.fullmatch(r"[\x20-\x7e]{1,200}", contact) or set(contact) & set("()"):
        raise UsageError("option-value", f"--contact {contact!r} must be an e-mail address or a web page")
    try:
        own = version("bertbench")
    except PackageNotFoundError:
        own = "0"
    return f"bertbench/{own} ({contact}) Python-urllib/{sys.version_info.major}.{sys.version_info.minor}"


class _Stopped(Exception):  # noqa: N818 - ends the other transfers when one failed
    """Another transfer failed, or Ctrl-C was pressed."""


class _Run:
    """All files of one source."""

    def __init__(
        self,
        source: NamedSource,
        base: str,
        target: Path,
        files: Sequence[RemoteFile],
        progress: Progress,
        transfer: Transfer,
    ) -> None:
        self.source, self.base, self.target, self.files, self.progress = source, base, target, files, progress
        self.stop = threading.Event()
        self.transfer = replace(transfer, wait=self._wait)
        self.lock = threading.Lock()
        self.done = [0] * len(files)
        self.sum = 0
        sizes = [file.size for file in files]
        self.total = None if None in sizes else sum(size for size in sizes if size is not None)
        self.verified = read_notes(target / VERIFIED_FILE)

    def all(self, plan_path: Path) -> int:
        """Fetch what is missing; return the bytes that came over the network."""
        before = dict(self.verified)
        try:
            missing = [number for number, file in enumerate(self.files) if not self._is_there(number, file)]
            self._check_room(missing)
            return self._fetch(missing) if missing else 0
        except DownloadError as error:
            if error.status not in (404, 410):
                raise
            raise DownloadError(
                error.code,
                f"{error}\nThe list of files is from an earlier run; to fetch a new list, remove {plan_path}",
                error.status,
            ) from error
        finally:
            if self.verified != before:
                write_json(self.target / VERIFIED_FILE, self.verified)

    def _fetch(self, missing: Sequence[int]) -> int:
        executor = ThreadPoolExecutor(self.source.connections)
        try:
            futures = [executor.submit(self._one, number) for number in missing]
            wait(futures, return_when=FIRST_EXCEPTION)
            error = next(filter(None, (future.exception() for future in futures if future.done())), None)
            if error is None:
                return sum(future.result() for future in futures)
            if isinstance(error, WrongFileError):  # that says nothing against the files on their way
                executor.shutdown(wait=True, cancel_futures=True)
            raise error
        finally:
            self.stop.set()
            executor.shutdown(wait=True, cancel_futures=True)

    def _one(self, number: int) -> int:
        file = self.files[number]
        path = self.target / file.name
        address = f"{self.base}/{file.address}"
        fetched = fetch(
            address,
            path,
            checksum=file.checksum,
            size=file.size,
            progress=lambda done, total: self._tell(number, done),
            transfer=self.transfer,
        )
        self._remember(file, path)
        return fetched.received

    def _is_there(self, number: int, file: RemoteFile) -> bool:
        """Return whether a file is finished; a file of unchanged size and time is not read again."""
        path = self.target / file.name
        try:
            status = path.stat()
        except OSError:
            return False
        known = self.verified.get(file.name) == [status.st_size, status.st_mtime_ns, _sum_of(file)]
        if not known:
            if not is_whole(path, file.checksum, file.size):
                return False
            self._remember(file, path)
        self._tell(number, status.st_size)
        return True

    def _remember(self, file: RemoteFile, path: Path) -> None:
        status = path.stat()
        with self.lock:
            self.verified[file.name] = [status.st_size, status.st_mtime_ns, _sum_of(file)]

    def _check_room(self, missing: Sequence[int]) -> None:
        need = 0
        for number in missing:
            with suppress(OSError):
                need -= part_of(self.target / self.files[number].name).stat().st_size
            need += self.files[number].size or 0
        with storage_errors(self.target):
            free = shutil.disk_usage(self.target).free
        if need > free:
            raise StorageError(
                "disk-full",
                f"{self.source.name} needs {need / 1e9:.1f} GB, {self.target} has {free / 1e9:.1f} GB: free some",
            )

    def _tell(self, number: int, done: int) -> None:
        if self.stop.is_set():
            raise _Stopped
        with self.lock:
            self.sum += done - self.done[number]
            self.done[number] = done
            self.progress(f"download {self.source.name}", self.sum, self.total)

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise _Stopped


def _sum_of(file: RemoteFile) -> str | None:
    return f"{file.checksum.kind}:{file.checksum.digits}" if file.checksum else None


def _write_plan(path: Path, source: NamedSource, base: str, files: Sequence[RemoteFile]) -> None:
    text = "\n".join(f"- {line}" for line in source.terms)
    write_text(path.parent / TERMS_FILE, f"# {source.name}\n\n{source.what}\n\nDownloaded from {base}\n\n{text}\n")
    write_json(path, {"version": _VERSION, "files": [asdict(file) for file in files]})


def _read_plan(path: Path) -> list[RemoteFile] | None:
    """Return the files of an earlier call; None if there was none, or by another version of this program."""
    plan = read_notes(path)
    if plan.get("version") != _VERSION:
        return None
    try:
        return [_file(entry) for entry in plan["files"]]
    except (KeyError, TypeError, AttributeError, ValueError, InputError):
        return None


def _file(entry: dict[str, Any]) -> RemoteFile:
    name, address, size, checksum = entry["name"], entry["address"], entry["size"], entry["checksum"]
    if ".." in name.split("/") or name.startswith("/") or not (size is None or isinstance(size, int)):
        raise ValueError(name)
    return RemoteFile(name, str(address), size, Checksum(**checksum) if checksum else None)
