"""`bertbench data download`: download Wikipedia, SQuAD and books by name, with resume and checksums."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.render.tables import Plain
from bench.cli.options import Printed
from bench.cli.progress import note, show_stages, size_of
from bench.cli.result import Result
from bert.data.remote.obtain import CONTACT_VARIABLE, RemoteOptions, base_of, named, obtain
from bert.data.remote.sources import SOURCES, NamedSource
from common.errors import UsageError
from common.flags import Positional

if TYPE_CHECKING:
    from bert.data.remote.obtain import Obtained


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadOptions(Printed):
    """Download data sets by name. The same command resumes, and does nothing when everything is complete.

    Examples:
        bertbench data download --list
        bertbench data download squad
        bertbench data download wikipedia --language simple
    """

    names: Positional[tuple[str, ...]] = ()
    """Data sets to download; --list describes them."""
    out: Path = Path("downloads")
    """Folder for all downloads; each data set gets its own folder in it."""
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    list: bool = False
    """List the data sets with their terms of use, and how to get those that cannot be downloaded here."""


OPTIONS = {"data download": DownloadOptions}


def run(options: DownloadOptions) -> Result:
    """Download the named data, or list what is available."""
    if options.list:
        return _listed()
    names = list(dict.fromkeys(options.names))
    if not names:
        raise UsageError(
            "option-missing",
            f"data download needs a name: {', '.join(name for name in SOURCES if SOURCES[name].plan)}; "
            "--list describes them",
        )
    if options.remote.mirror and len(names) > 1:
        raise UsageError(
            "option-conflict",
            "--mirror replaces the address of a single source: give one name, or set BERTBENCH_NAME_URL for each",
        )
    for source in [named(name) for name in names]:  # all terms before the first download
        base_of(source, options.remote.mirror)
        show_terms(source)
    if not (options.remote.contact or os.environ.get(CONTACT_VARIABLE)) and any("wikipedia" in name for name in names):
        note(
            "Wikimedia may refuse programs without contact information: set "
            f"{CONTACT_VARIABLE} or --contact to an e-mail address or a web page"
        )
    results = [obtain(name, options.out, options.remote, show_stages()) for name in names]
    return Result(
        document=[_plain(result) for result in results],
        blocks=[Plain("\n".join(line for result in results for line in _lines(result)))],
        notes=[
            f"{len(result.unchecked)} file(s), such as {result.unchecked[0]}, have no published checksum: only their "
            "size was checked"
            for result in results
            if result.unchecked
        ],
    )


def show_terms(source: NamedSource) -> None:
    """Print the terms of a source to stderr; call it before any download."""
    print(f"{source.name}: {source.what}", file=sys.stderr)
    for line in source.terms:
        print(f"  {line}", file=sys.stderr)
    sys.stderr.flush()


def _listed() -> Result:
    document = [
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
    lines: list[str] = []
    for source in SOURCES.values():
        lines.append(f"{source.name}{'' if source.plan else '  (not fetched here)'}")
        told = (source.what, source.base, source.needs, *source.terms, *source.instead)
        lines += [f"    {line}" for line in told if line]
        lines.append("")
    return Result(document=document, blocks=[Plain("\n".join(lines))])


def _lines(result: "Obtained") -> list[str]:
    count = len(result.files)
    came = f"{size_of(result.received)} downloaded now" if result.received else "already complete"
    return [
        f"{result.name}: {count:,} file{'s'[: count > 1]}, {size_of(result.size)} ({came}) in {result.folder}",
        f"the list of files is cached; remove {result.plan} to check for newer files",
    ]


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
