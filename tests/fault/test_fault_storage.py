"""A disk that is full, and two calls that want the same folder."""

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.faults import Bench


@contextmanager
def mounted(bench: Bench) -> Iterator[Callable[[str], None]]:
    """Put the bench's place on a file system of its own; yields how to resize it."""

    def mount(*words: str) -> None:
        subprocess.run(["mount", *words, str(bench.place)], check=True, capture_output=True)

    bench.fresh()
    mount("-t", "tmpfs", "-o", "size=1g", "tmpfs")
    try:
        (bench.place / "tmp").mkdir()
        yield lambda size: mount("-o", f"remount,size={size}")
    finally:
        subprocess.run(["umount", "-l", str(bench.place)], check=True, capture_output=True)


def used(folder: Path) -> int:
    """Bytes that a tmpfs needs for the files of a folder."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(-(-path.stat().st_size // page) * page for path in folder.rglob("*") if path.is_file())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_named_and_with_more_space_the_command_goes_on(
    bench: Bench, tries: int, drawn: random.Random
) -> None:
    bench.fresh()
    assert bench.start().ended() == 0
    wanted = used(bench.out)
    for number in range(tries):
        with mounted(bench) as resize:
            resize(str(used(bench.place) + int((number + drawn.random()) / tries * wanted)))
            call = bench.start()
            code = call.ended_in_words()
            finished = bench.look(call, by_itself=bool(code))
            assert code in (0, 2, 3), call.text()[-500:]
            assert code == 0 or "disk is full" in call.text() or "free some space" in call.text(), call.text()[-800:]
            resize("1g")
            bench.finish(finished)


def test_of_two_calls_at_once_one_is_refused_by_name_or_waits_and_the_other_is_unharmed(
    bench: Bench, tries: int
) -> None:
    for _ in range(max(2, tries // 2)):
        bench.fresh()
        calls = [bench.start(), bench.start()]
        codes = [call.ended_in_words() for call in calls]
        for call in calls:
            call.check_nothing_left()
        assert sorted(codes) == ([0, 0] if bench.workload.waits else [0, 2]), [call.text()[-300:] for call in calls]
        refused = "".join(call.text() for call, code in zip(calls, codes, strict=True) if code)
        assert not refused or "[folder-locked]" in refused or "[folder-occupied]" in refused, refused[-500:]
        bench.check_as_undisturbed()
