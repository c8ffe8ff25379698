"""Folders that take no more, or nothing at all."""

import os
import random
import resource
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fault_table import Tally
from support.fault_workloads import WORKLOADS
from support.faults import Bench, BrokenError, Call, digests, without_a_traceback

ALL = list(WORKLOADS)
NEEDS_ROOT = "mounting a small file system needs root"
FULL = ("disk is full", "free some space")
TOO_LARGE = ("File too large",)


@contextmanager
def mounted(bench: Bench) -> Iterator[Callable[[str], None]]:
    """Put the bench's place on a file system of its own, with what the command reads; yields how to remount it."""

    def mount(*words: str) -> None:
        subprocess.run(["mount", *words, str(bench.place)], check=True, capture_output=True)

    bench.fresh()
    mount("-t", "tmpfs", "-o", "size=1g", "tmpfs")
    try:
        (bench.place / "tmp").mkdir()
        bench.workload.begin(bench.place)
        yield lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", str(bench.place)], check=True, capture_output=True)


def needs_mount(tally: Tally, bench: Bench, fault: str) -> None:
    """Skip, and say so in the table, where nothing can be mounted."""
    bench.fresh()
    place = str(bench.place)
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", place], check=True)
        return
    why = NEEDS_ROOT if os.geteuid() else f"cannot mount a tmpfs here: {done.stderr.strip()}"
    tally.skip(bench.workload.name, fault, why)
    pytest.skip(why)


def used(folder: Path) -> int:
    """Bytes that a tmpfs needs for the files of a folder."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(-(-path.stat().st_size // page) * page for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("workload", ALL)
def test_a_full_disk_is_named_and_with_more_space_the_command_goes_on(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, tries: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    needs_mount(tally, bench, "disk full")
    bench.fresh()
    bench.start().ended()
    wanted = used(bench.out)
    checked = "exit code 2 or 3, one message, no temporary file left; readable; more space, same command: as above"
    with tally.row(bench.workload.name, "disk full", checked) as row:
        for number in range(tries):
            share = (number + drawn.random()) / tries
            row.add(bench.tried(_fill, int(share * wanted)))


def _fill(bench: Bench, left: int) -> None:
    with mounted(bench) as remount:
        remount(f"size={used(bench.place) + left}")
        kept = _kept(bench, bench.start(), FULL, "that the disk is full")
        remount("size=1g")
        bench.finish(kept)


@pytest.mark.parametrize("workload", ALL)
def test_a_file_larger_than_allowed_is_named(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally, tries: int, drawn: random.Random
) -> None:
    bench = bench_of(workload)
    checked = "as for a full disk (RLIMIT_FSIZE, which needs no root)"
    with tally.row(bench.workload.name, "file too large", checked) as row:
        for number in range(max(2, tries // 2)):
            limit = int((number + drawn.random()) / max(2, tries // 2) * bench.largest)
            row.add(bench.tried(_limit, limit))


def _limit(bench: Bench, limit: int) -> None:
    bench.fresh()
    call = bench.start({resource.RLIMIT_FSIZE: max(limit, 4096)})
    bench.finish(_kept(bench, call, TOO_LARGE, "that a file grew too large"))


def _kept(bench: Bench, call: Call, said: Sequence[str], what: str) -> Any:
    """What a call leaves that ends where nothing more can be written. Raises BrokenError unless it says `what`."""
    ended = without_a_traceback(call.ended())
    kept = bench.look(call)
    if ended.code not in (0, 2, 3):
        raise BrokenError(f"exit code {ended.code}: {ended.errors[-500:]}")
    if ended.code:
        bench.check_no_left_over()
        if not any(words in ended.errors + ended.output for words in said):
            raise BrokenError(f"{what} is not said: {ended.errors[-800:]}")
    return kept


@pytest.mark.parametrize("workload", ALL)
def test_a_folder_that_cannot_be_written_is_named_and_left_as_it_was(
    workload: str, bench_of: Callable[[str], Bench], tally: Tally
) -> None:
    bench = bench_of(workload)
    needs_mount(tally, bench, "read-only folder")
    checked = "exit code 2, one message (0 where all is done); every file as before; writable again: as above"
    with tally.row(bench.workload.name, "read-only folder", checked) as row:
        row.add(bench.tried(_read_only, False))
        row.add(bench.tried(_read_only, True))


def _read_only(bench: Bench, finished: bool) -> None:
    elsewhere = bench.base / "tmp-elsewhere"
    elsewhere.mkdir(exist_ok=True)
    with mounted(bench) as remount:
        if finished:
            bench.start().ended()
        before = digests(bench.place, without=())
        remount("ro")
        call = bench.start(TMPDIR=str(elsewhere))
        ended = without_a_traceback(call.ended())
        call.check_nothing_left()
        if digests(bench.place, without=()) != before:
            raise BrokenError("files of a read-only folder have changed")
        if list(elsewhere.iterdir()):
            raise BrokenError(f"temporary files are left: {sorted(path.name for path in elsewhere.iterdir())}")
        if ended.code not in ((0, 2) if finished else (2,)):
            raise BrokenError(f"exit code {ended.code}: {ended.errors[-500:]}")
        if ended.code and not any(words in ended.errors for words in ("read-only", "[folder-occupied]")):
            raise BrokenError(f"that the folder is read-only is not said: {ended.errors[-500:]}")
        remount("rw")
        if not finished:
            bench.finish({})
