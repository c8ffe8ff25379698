"""Calls of the command line that meet a fault: how they are started, ended, looked after, and what is checked then.

Each call runs at the same path, so that what it leaves can be held byte by byte against what an undisturbed one left.
Its processes are known by an environment variable of their own, FAULT_MARK. With FAULT_OPERATION=<role>:<number> the
process of that role (main, launcher, rank, worker) is killed right before its file operation of that number, with
FAULT_SCOPE=all together with every other process of the call; FAULT_TRACE=<file> lists the operations instead.
"""

import contextlib
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.cli import ROOT, lives

from bench.run.processes import send

SITE = Path(__file__).resolve().parent / "fault_site"
MARK = "FAULT_MARK"
# What a process that is left needs to notice that its parent is gone.
_GRACE_SECONDS = 15.0
_CALL_SECONDS = 240.0


class BrokenError(AssertionError):
    """A fault was not survived; says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A command, and what it must leave behind however it is disturbed."""

    name: str
    """In the table."""
    words: tuple[str, ...]
    """After `bertbench`; "{out}" is the folder it writes to, "{place}" the one that lies in."""
    result: Callable[[Path], dict[str, str]]
    """Of the folder written to: what has to be as an undisturbed call leaves it, by name."""
    kept: Callable[[Path], dict[str, str]]
    """Of the same: digests of what is finished, by name; no later call may change it."""
    readable: Callable[[Path], None]
    """Raises where what is there cannot be read."""
    begin: Callable[[Path], None] = lambda place: None
    """Puts into a new place what the command reads from there."""
    ours: tuple[str, ...] = ()
    """Patterns of names that calls add to and never remove, so that a resumed run has others than a whole one."""
    once: bool = False
    """A call that finds its result there is refused, and changes nothing."""
    waits: bool = False
    """A second call at once waits for the first instead of being refused."""


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: int
    output: str
    errors: str


@dataclass
class Call:
    """A running command."""

    process: "subprocess.Popen[bytes]"
    mark: str
    said: Path
    began: float = field(default_factory=time.monotonic)

    def left(self) -> list[int]:
        """Process ids of the call that still live."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0") and lives(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def kill(self, everything: bool) -> None:
        """Kill -9 the command alone, or all of its processes."""
        send([self.process.pid], signal.SIGKILL)
        if everything:
            send(self.left(), signal.SIGKILL)
        self.process.wait()

    def ended(self, seconds: float = _CALL_SECONDS) -> Ended:
        """Wait for the end; raise BrokenError where there is none."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill(everything=True)
            raise BrokenError(f"no end after {seconds:g} s: {self._text('err')[-500:]}") from None
        return Ended(code, self._text("out"), self._text("err"))

    def check_nothing_left(self) -> None:
        """Wait until every process of the call is gone, by itself."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while found := self.left():
            if time.monotonic() > deadline:
                words = [" ".join(psutil.Process(pid).cmdline())[:120] for pid in found if psutil.pid_exists(pid)]
                send(found, signal.SIGKILL)
                raise BrokenError(f"{len(found)} process(es) outlive the call: {words}")
            time.sleep(0.02)

    def _text(self, ending: str) -> str:
        return self.said.with_suffix(f".{ending}").read_text(encoding="utf-8", errors="replace")


def _shared_memory() -> set[str]:
    """Names of blocks of memory, which outlive the processes that made them; without the semaphores of queues.

    Python's resource tracker removes those, unless it is killed too.
    """
    return {path.name for path in Path("/dev/shm").glob("*") if not path.name.startswith("sem.")}


class Bench:
    """One workload with an undisturbed call to hold everything against; use `fresh` for each try."""

    def __init__(self, workload: Workload, base: Path) -> None:
        self.workload = workload
        self.base = base
        self.place = base / "place"
        self.out = self.place / "out"
        self.shared_memory = _shared_memory()
        trace = base / "operations.txt"
        self.fresh()
        call = self.start(FAULT_TRACE=str(trace))
        ended = call.ended()
        self.life = time.monotonic() - call.began
        assert ended.code == 0, f"the undisturbed {workload.name} ended with {ended.code}: {ended.errors[-2000:]}"
        call.check_nothing_left()
        self.operations = sorted(set(trace.read_text().split()))
        self.expected = workload.result(self.out)
        self.names = self._names()
        self.size = sum(path.stat().st_size for path in self.out.rglob("*") if path.is_file())
        self.largest = max(path.stat().st_size for path in self.out.rglob("*") if path.is_file())
        assert self.expected and self.operations

    def fresh(self) -> None:
        """Make an empty place, with what the command reads."""
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "tmp").mkdir(parents=True)
        self.workload.begin(self.place)

    def argv(self, more: tuple[str, ...] = ()) -> list[str]:
        words = [word.format(out=self.out, place=self.place) for word in (*self.workload.words, *more)]
        return [sys.executable, "-m", "bench.cli.main", *words]

    def start(self, limits: dict[int, int] | None = None, more: tuple[str, ...] = (), **variables: str) -> Call:
        """Start the command with resource limits and further environment variables."""
        mark = uuid.uuid4().hex
        path = [str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "TMPDIR": str(self.place / "tmp"),
            "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", MARK: mark,
            "FAULT_FOLDER": str(self.place), "RUST_BACKTRACE": "0", **variables,
        }  # fmt: skip  # Rust waits for ever where it has no memory to print a backtrace

        def limit() -> None:
            for kind, value in (limits or {}).items():
                resource.setrlimit(kind, (value, value))

        said = self.base / f"call-{mark}"
        with said.with_suffix(".out").open("wb") as out, said.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                self.argv(more), cwd=self.base, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                start_new_session=True, preexec_fn=limit if limits else None,
            )  # fmt: skip
        return Call(process, mark, said)

    def look(self, call: Call) -> dict[str, str]:
        """Check what a disturbed call left; return the digests of what is finished."""
        call.check_nothing_left()
        if left := sorted(_shared_memory() - self.shared_memory):
            raise BrokenError(f"left in shared memory: {left[:5]}")
        if not self.out.exists():
            return {}
        self.workload.readable(self.out)
        return self.workload.kept(self.out)

    def check_no_left_over(self) -> None:
        """Raise where a call that ended by itself left a temporary file."""
        extra = sorted(name for name in self._names() - self.names if _is_temporary(name))
        if extra:
            raise BrokenError(f"temporary files are left: {extra[:5]}")

    def tried(self, fault: Callable[..., None], *arguments: Any) -> str:
        """Do something to this bench that may raise; return what is wrong, or nothing."""
        try:
            fault(self, *arguments)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def finish(self, kept: dict[str, str], code: int = 0, more: tuple[str, ...] = ()) -> None:
        """Run the command undisturbed to its end, with further words, and check everything."""
        is_there = self.workload.once and self.out.exists()
        call = self.start(more=more)
        ended = call.ended()
        if is_there and (ended.code, "[folder-occupied]" in ended.errors) != (2, True):
            raise BrokenError(f"a folder that is there was not refused: {ended.code}, {ended.errors[-800:]}")
        if ended.code != code and not is_there:
            raise BrokenError(f"the re-run ended with {ended.code}: {ended.errors[-800:]}")
        if "Traceback" in ended.errors:
            raise BrokenError(f"the re-run shows a traceback: {ended.errors[-800:]}")
        call.check_nothing_left()
        after = self.workload.kept(self.out)
        lost = sorted(name for name, digest in kept.items() if after.get(name) != digest)
        if lost:
            raise BrokenError(f"{len(lost)} finished file(s) were lost or changed by the re-run: {lost[:5]}")
        self.check_as_undisturbed(but_for={"sweep.json"} if more else set())

    def check_as_undisturbed(self, but_for: Collection[str] = ()) -> None:
        """Raise where result, some names left out, or names are not those that an undisturbed call leaves."""
        found = self.workload.result(self.out)
        names = (found.keys() | self.expected.keys()) - set(but_for)
        other = sorted(name for name in names if found.get(name) != self.expected.get(name))
        if other:
            raise BrokenError(f"the re-run's result differs from an undisturbed one: {other[:5]}")
        names = self._names()
        gone, extra = sorted(self.names - names), sorted(names - self.names)
        if gone or extra:
            raise BrokenError(
                f"the folder is not that of an undisturbed call: lacks {gone[:5]}, has besides {extra[:5]}"
            )

    def _names(self) -> set[str]:
        """Every file and folder of the place, but for what each call adds anew."""
        found = {path.relative_to(self.place).as_posix() for path in self.place.rglob("*")}
        return {name for name in found if not self._is_ours(name) or _is_temporary(name)} - self._tried()

    def _tried(self) -> set[str]:
        """Files with which Python tries whether a folder takes temporary ones, left where it was killed right then."""
        files = [
            path for path in (self.place / "tmp").iterdir() if path.is_file() and re.fullmatch(r"\w{8}", path.name)
        ]
        return {path.relative_to(self.place).as_posix() for path in files if path.read_bytes() in (b"", b"blat")}

    def _is_ours(self, name: str) -> bool:
        return any(Path(name).match(pattern) for pattern in self.workload.ours)


def without_a_traceback(ended: Ended) -> Ended:
    """Raise where a call that ended shows a traceback or, ended by an error, says nothing."""
    if "Traceback" in ended.errors + ended.output:
        raise BrokenError(f"a traceback is shown: {ended.errors[-1500:]}")
    if ended.code > 0 and not ended.errors.strip():
        raise BrokenError(f"exit code {ended.code} without a word")
    return ended


def _is_temporary(name: str) -> bool:
    return name.endswith((".tmp", ".parts", ".new", ".old")) or name.startswith("tmp/")


def digests(folder: Path, *patterns: str, without: tuple[str, ...] = (".lock",)) -> dict[str, str]:
    """SHA-256 of the files that match, by name; temporary ones left out."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in patterns or ("**/*",)
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.name not in without and not any(map(_is_temporary, path.relative_to(folder).parts))
    }


def kills(bench: Bench, count: int, drawn: random.Random) -> Iterator[tuple[int, str]]:
    """Kill -9 calls at `count` random points; yield (kills, what is wrong or "") for each folder brought to its end.

    Half of the points are moments of an undisturbed call's life, half its file operations. Every other re-run is killed
    as well.
    """
    made = 0
    while made < count:
        bench.fresh()
        own, wrong = 0, ""
        try:
            kept: dict[str, str] = {}
            while made + own < count:
                call = start_and_kill(bench, drawn)
                own += call is not None
                if call is None:
                    break
                after = bench.look(call)
                lost = sorted(name for name, digest in kept.items() if after.get(name) != digest)
                if lost:
                    raise BrokenError(f"{len(lost)} finished file(s) were lost or changed: {lost[:5]}")
                kept = after
                if drawn.random() < 0.5:
                    break
            bench.finish(kept)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        made += own
        if own:
            yield own, wrong


def start_and_kill(bench: Bench, drawn: random.Random) -> Call | None:
    """Start the command and kill it at a random point; None where it had ended before."""
    scope = drawn.choice(("main", "all"))
    if drawn.random() < 0.5:
        call = bench.start()
        point = drawn.uniform(0.0, bench.life)
        try:
            call.process.wait(timeout=point)
        except subprocess.TimeoutExpired:
            call.kill(everything=scope == "all")
            return call
        return None
    operation = drawn.choice(bench.operations)
    scope = scope if operation.startswith("main:") else "all"
    call = bench.start(FAULT_OPERATION=operation, FAULT_SCOPE=scope)
    return call if call.ended().code == -signal.SIGKILL else None
