"""Calls of the command line that meet a fault: how they are started and ended, and what must hold afterwards.

Each call runs at the same path, so that what it leaves can be compared byte by byte with what an undisturbed one left.
Its processes are known by an environment variable of their own, FAULT_MARK. With FAULT_OPERATION=<role>:<number> the
process of that role (main, launcher, rank, worker) is killed right before its file operation of that number, with
FAULT_SCOPE=all together with every other process of the call; FAULT_TRACE=<file> lists the operations instead.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from support.cli import ROOT

SITE = Path(__file__).resolve().parent / "fault_site"
MARK = "FAULT_MARK"
# What a process that is left needs to notice that its parent is gone.
_GRACE_SECONDS = 15.0
_CALL_SECONDS = 240.0
_TEMPORARY = (".tmp", ".parts", ".new", ".old")
Digests = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A command, and what it must leave behind however it is disturbed."""

    words: tuple[str, ...]
    """After `bertbench`; "{out}" is the folder it writes to."""
    result: Callable[[Path], Digests]
    """Of the folder written to: what has to be as an undisturbed call leaves it, by name."""
    finished: Callable[[Path], Digests]
    """Of the same: digests of what is finished, by name; no later call may change it."""
    readable: Callable[[Path], None]
    """Raises where what is there cannot be read."""
    more_each_time: tuple[str, ...] = ()
    """Patterns of names that calls add to and never remove, so that a resumed run has others than a whole one."""
    once: bool = False
    """A call that finds its result there is refused, and changes nothing."""
    waits: bool = False
    """A second call at once waits for the first instead of being refused."""


@dataclass
class Call:
    """A running command."""

    process: "subprocess.Popen[bytes]"
    mark: str
    output: Path
    began: float = field(default_factory=time.monotonic)

    def processes(self) -> list[psutil.Process]:
        """Processes of the call that still live."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def send(self, number: int, everything: bool) -> None:
        """Send a signal to the command alone, or to all of its processes."""
        self.process.send_signal(number)
        for process in self.processes() if everything else ():
            with suppress(psutil.Error):
                process.send_signal(number)

    def ended(self, seconds: float = _CALL_SECONDS) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL, everything=True)
            raise AssertionError(f"no end after {seconds:g} s: {self.text()[-500:]}") from None

    def ended_in_words(self, seconds: float = _CALL_SECONDS) -> int:
        """Wait for an end that shows no traceback and, by an error, a message; return the exit code."""
        code = self.ended(seconds)
        assert "Traceback" not in self.text(), self.text()[-1500:]
        assert code <= 0 or self.text().strip(), f"exit code {code} without a word"
        return code

    def check_nothing_left(self) -> None:
        """Wait until every process of the call is gone, by itself."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while left := self.processes():
            if time.monotonic() > deadline:
                words = [" ".join(process.cmdline())[:120] for process in left if process.is_running()]
                self.send(signal.SIGKILL, everything=True)
                raise AssertionError(f"{len(left)} process(es) outlive the call: {words}")
            time.sleep(0.02)

    def text(self) -> str:
        """Return what it has printed."""
        return self.output.read_text(encoding="utf-8", errors="replace")


class Bench:
    """One workload with an undisturbed call to compare everything with; use `fresh` for each try."""

    def __init__(self, workload: Workload, base: Path) -> None:
        self.workload = workload
        self.base = base
        self.place = base / "place"
        self.out = self.place / "out"
        trace = base / "operations.txt"
        self.fresh()
        call = self.start(FAULT_TRACE=str(trace))
        assert call.ended() == 0, call.text()[-2000:]
        self.life = time.monotonic() - call.began
        call.check_nothing_left()
        self.operations = sorted(set(trace.read_text().split()))
        self.expected = workload.result(self.out)
        self.names = self._names()
        assert self.expected and self.operations

    def fresh(self) -> None:
        """Make an empty place."""
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "tmp").mkdir(parents=True)

    def start(self, *more: str, **variables: str) -> Call:
        """Start the command with further words and environment variables."""
        mark = uuid.uuid4().hex
        words = [word.format(out=self.out) for word in (*self.workload.words, *more)]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SITE, ROOT))), "TMPDIR": str(self.place / "tmp"),
            "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", MARK: mark,
            "FAULT_FOLDER": str(self.place), **variables,
        }  # fmt: skip
        output = self.base / f"call-{mark}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.cli.main", *words], cwd=self.base, env=environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        return Call(process, mark, output)

    def look(self, call: Call, by_itself: bool = False) -> Digests:
        """Check what a disturbed call left; return the digests of what is finished.

        Args:
            call: has ended.
            by_itself: it was not killed, so it must have removed its temporary files.
        """
        call.check_nothing_left()
        if by_itself:
            left = sorted(name for name in self._names() if name.endswith(_TEMPORARY))
            assert not left, f"temporary files are left: {left[:5]}"
        if not self.out.exists():
            return {}
        self.workload.readable(self.out)
        return self.workload.finished(self.out)

    def finish(self, finished: Digests, *more: str) -> None:
        """Run the command undisturbed to its end, with further words, and check everything."""
        is_there = self.workload.once and self.out.exists()
        call = self.start(*more)
        code = call.ended_in_words()
        assert code == (2 if is_there else 0), call.text()[-800:]
        assert not is_there or "[folder-occupied]" in call.text(), call.text()[-800:]
        call.check_nothing_left()
        after = self.workload.finished(self.out)
        lost = sorted(name for name, digest in finished.items() if after.get(name) != digest)
        assert not lost, f"{len(lost)} finished file(s) were lost or changed by the re-run: {lost[:5]}"
        self.check_as_undisturbed({"sweep.json"} if more else set())

    def check_as_undisturbed(self, without: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """Hold the result, some names left out, and the names of all files to be those of an undisturbed call."""
        found = self.workload.result(self.out)
        names = (found.keys() | self.expected.keys()) - without
        other = sorted(name for name in names if found.get(name) != self.expected.get(name))
        assert not other, f"the result differs from an undisturbed one: {other[:5]}"
        assert self._names() == self.names, f"other files than an undisturbed call leaves: {self._names() ^ self.names}"

    def _names(self) -> set[str]:
        """Every file and folder that was written, but for what each call adds anew."""
        found = {path.relative_to(self.place) for path in self.out.rglob("*")}
        return {
            str(path) for path in found
            if path.name.endswith(_TEMPORARY) or not any(map(path.match, self.workload.more_each_time))
        }  # fmt: skip


def digests(folder: Path, *patterns: str, without: tuple[str, ...] = (".lock",)) -> Digests:
    """SHA-256 of the files that match, by name; temporary ones left out."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in patterns or ("**/*",)
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.name not in without
        and not any(part.endswith(_TEMPORARY) for part in path.relative_to(folder).parts)
    }  # fmt: skip


def kills(bench: Bench, count: int, drawn: random.Random) -> Iterator[int]:
    """Kill -9 calls at `count` random points; yield how many for each folder brought to its end.

    Half of the points are moments of an undisturbed call's life, half its file operations. Every other re-run is killed
    as well.
    """
    made = 0
    while made < count:
        bench.fresh()
        finished: Digests = {}
        before = made
        while made < count and (call := _start_and_kill(bench, drawn)) is not None:
            made += 1
            after = bench.look(call)
            lost = sorted(name for name, digest in finished.items() if after.get(name) != digest)
            assert not lost, f"{len(lost)} finished file(s) were lost or changed: {lost[:5]}"
            finished = after
            if drawn.random() < 0.5:
                break
        bench.finish(finished)
        yield made - before


def _start_and_kill(bench: Bench, drawn: random.Random) -> Call | None:
    """Start the command and kill it at a random point; None where it had ended before."""
    scope = drawn.choice(("main", "all"))
    if drawn.random() < 0.5:
        call = bench.start()
        try:
            call.process.wait(timeout=drawn.uniform(0.0, bench.life))
        except subprocess.TimeoutExpired:
            call.send(signal.SIGKILL, everything=scope == "all")
            call.process.wait()
            return call
        return None
    operation = drawn.choice(bench.operations)
    scope = scope if operation.startswith("main:") else "all"
    call = bench.start(FAULT_OPERATION=operation, FAULT_SCOPE=scope)
    return call if call.ended() == -signal.SIGKILL else None
