"""`bertbench data download`: Wikipedia, SQuAD and books by name, resumable and checked."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bench.cli.options import parse
from bench.cli.progress import note
from bert.data.remote.obtain import CONTACT_VARIABLE, RemoteOptions, base_of, named, obtain
from bert.data.remote.sources import SOURCES, NamedSource
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.data.pool import Progress
    from bert.data.remote.obtain import Obtained

_WINDOW_SECONDS = 20.0
_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadOptions:
    """Fetch data by name. A call with the same options continues, and does nothing when everything is there."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to fetch: wikipedia, wikipedia-exports, squad or pg19; --list says more."""
    out: Path = Path("downloads")
    """Folder of all downloads; each name gets a folder of its own in it."""
    remote: Annotated[RemoteOptions, tyro.conf.arg(name="")]
    list: bool = False
    """Show what can be had, on which terms, and how to get what is not fetched here."""
    json: bool = False
    """Print the result as JSON."""


OPTIONS = {"data download": DownloadOptions}


def run(argv: Sequence[str]) -> int:
    """Run the command; 0 when every file is there and right."""
    options = parse(DownloadOptions, list(argv), "bertbench data download")
    if options.list:
        _print_list(options.json)
        return 0
    names = list(dict.fromkeys(options.names))
    if not names:
        raise UsageError(
            f"bertbench data download needs a name: {', '.join(name for name in SOURCES if SOURCES[name].plan)}; "
            "--list says more"
        )
    if options.remote.mirror and len(names) > 1:
        raise UsageError("--mirror takes the place of one source's address: give one name, or use BERTBENCH_NAME_URL")
    for source in [named(name) for name in names]:  # all of them before the first byte
        base_of(source, options.remote.mirror)
        show_terms(source)
    if not (options.remote.contact or os.environ.get(CONTACT_VARIABLE)) and any("wikipedia" in name for name in names):
        note(
            "Wikimedia asks programs for a way to reach who runs them, and may refuse those without: set "
            f"{CONTACT_VARIABLE}, or give --contact, an e-mail address or a web page"
        )
    results = []
    for name in names:
        progress = show_download()
        try:
            results.append(obtain(name, options.out, options.remote, progress))
        finally:
            progress("", 0, None)
        if not options.json:
            _print_result(results[-1])
    if options.json:
        print(json.dumps([_plain(result) for result in results], indent=2))
    return 0


def show_terms(source: NamedSource) -> None:
    """Say on stderr on which terms a source is to be had; call it before anything is fetched."""
    print(f"{source.name}: {source.what}", file=sys.stderr)
    for line in source.terms:
        print(f"  {line}", file=sys.stderr)
    sys.stderr.flush()


def show_download(clock: Callable[[], float] = time.monotonic) -> "Progress":
    """Return a callback that shows bytes, rate and time left on stderr: a line on a terminal, one a minute in a log.

    A call with an empty stage ends the line.
    """
    terminal = sys.stderr.isatty()
    marks: deque[tuple[float, int]] = deque()
    shown = [float("-inf") if terminal else clock(), 0.0]

    def progress(stage: str, done: int, total: int | None) -> None:
        if not stage:
            if terminal and shown[1]:
                print(file=sys.stderr, flush=True)
            return
        now = clock()
        if now - shown[0] < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS) and done != total:
            return
        if done == total and not terminal:
            return
        shown[:] = [now, 1.0]
        marks.append((now, done))
        while len(marks) > 2 and now - marks[0][0] > max(_WINDOW_SECONDS, 2 * _LOG_SECONDS * (not terminal)):
            marks.popleft()
        line = f"{stage} {describe_bytes(done, total, marks[0], marks[-1])}"
        print(f"\r{line}\033[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return progress


def describe_bytes(done: int, total: int | None, first: tuple[float, int], last: tuple[float, int]) -> str:
    """Return bytes, rate and time left in words.

    Args:
        done: bytes there.
        total: bytes in all.
        first: an earlier time in seconds, and the bytes there then.
        last: now, and the bytes there now.
    """
    words = size_of(done) if total is None else f"{size_of(done)} of {size_of(total)}"
    seconds, moved = last[0] - first[0], last[1] - first[1]
    if seconds <= 0 or moved <= 0:
        return words
    rate = moved / seconds
    words += f", {size_of(rate)}/s"
    if total is None or total <= done:
        return words
    left = round((total - done) / rate)
    hours, minutes = left // 3600, left % 3600 // 60
    return words + f", {f'{hours} h {minutes} min' if hours else f'{minutes} min {left % 60} s'} left"


def size_of(count: float) -> str:
    """Return bytes in the unit that fits: kB, MB, GB, as powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


def _print_list(as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": source.name,
                "what": source.what,
                "fetched": source.plan is not None,
                "address": source.base or None,
                "needs": source.needs or None,
                "terms": list(source.terms),
                "instead": list(source.instead),
            }
            for source in SOURCES.values()
        ]
        print(json.dumps(rows, indent=2))
        return
    for source in SOURCES.values():
        print(f"{source.name}{'' if source.plan else '  (not fetched here)'}")
        for line in (source.what, source.base, source.needs, *source.terms, *source.instead):
            if line:
                print(f"    {line}")
        print()


def _print_result(result: "Obtained") -> None:
    count = len(result.files)
    came = f"{size_of(result.received)} came now" if result.received else "all of it was there before"
    print(f"{result.name}: {count:,} file{'s'[: count > 1]}, {size_of(result.size)} ({came}) in {result.folder}")
    print(f"the list of files is kept: remove {result.plan} to look for newer ones")
    if result.unchecked:
        missing, example = len(result.unchecked), result.unchecked[0]
        note(f"no checksum is published for {missing} file(s), such as {example}: only the size was checked")


def _plain(result: "Obtained") -> dict[str, Any]:
    return {
        "name": result.name,
        "folder": str(result.folder),
        "files": [str(path) for path in result.files],
        "bytes": result.size,
        "bytes_received": result.received,
        "plan": str(result.plan),
        "without_checksum": list(result.unchecked),
        "terms": list(SOURCES[result.name].terms),
    }
