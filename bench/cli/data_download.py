"""`bertbench data download`: Wikipedia, SQuAD and books by name, resumable and checked."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.render.tables import Plain
from bench.cli.options import Printed
from bench.cli.progress import note, show_download, size_of
from bench.cli.result import Result
from bert.data.remote.obtain import CONTACT_VARIABLE, RemoteOptions, base_of, named, obtain
from bert.data.remote.sources import SOURCES, NamedSource
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.data.remote.obtain import Obtained


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadOptions(Printed):
    """Fetch data by name. A call with the same options continues, and does nothing when everything is there."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to fetch: wikipedia, wikipedia-exports, squad or pg19; --list says more."""
    out: Path = Path("downloads")
    """Folder of all downloads; each name gets a folder of its own in it."""
    remote: Annotated[RemoteOptions, tyro.conf.arg(name="")]
    list: bool = False
    """Show what can be had, on which terms, and how to get what is not fetched here."""


OPTIONS = {"data download": DownloadOptions}


def run(options: DownloadOptions) -> Result:
    """Fetch what is named, or list what can be had."""
    if options.list:
        return _listed()
    names = list(dict.fromkeys(options.names))
    if not names:
        raise UsageError(
            "option-missing",
            f"bertbench data download needs a name: {', '.join(name for name in SOURCES if SOURCES[name].plan)}; "
            "--list says more",
        )
    if options.remote.mirror and len(names) > 1:
        raise UsageError(
            "option-conflict",
            "--mirror takes the place of one source's address: give one name, or use BERTBENCH_NAME_URL",
        )
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
    return Result(
        document=[_plain(result) for result in results],
        blocks=[Plain("\n".join(line for result in results for line in _lines(result)))],
        notes=[
            f"no checksum is published for {len(result.unchecked)} file(s), such as {result.unchecked[0]}: only the "
            "size was checked"
            for result in results
            if result.unchecked
        ],
    )


def show_terms(source: NamedSource) -> None:
    """Say on stderr on which terms a source is to be had; call it before anything is fetched."""
    print(f"{source.name}: {source.what}", file=sys.stderr)
    for line in source.terms:
        print(f"  {line}", file=sys.stderr)
    sys.stderr.flush()


def _listed() -> Result:
    """What can be had by name."""
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
    came = f"{size_of(result.received)} came now" if result.received else "all of it was there before"
    return [
        f"{result.name}: {count:,} file{'s'[: count > 1]}, {size_of(result.size)} ({came}) in {result.folder}",
        f"the list of files is kept: remove {result.plan} to look for newer ones",
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
