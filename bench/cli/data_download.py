"""`bertbench data download`: download Wikipedia, SQuAD and books by name, with resume and checksums."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from analysis.render.tables import Plain
from bench.cli.options import Printed
from bench.cli.progress import note, show_stages, size_of
from bench.cli.result import Result
from bert.data.remote.obtain import CONTACT_VARIABLE, RemoteOptions, base_of, named, obtain
from bert.data.remote.sources import SOURCES, NamedSource
from common.errors import UsageError
from common.flags import Positional


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
    if not options.names:
        names = ", ".join(name for name, source in SOURCES.items() if source.plan)
        raise UsageError("option-missing", f"data download needs a name: {names}; --list describes them")
    for name in options.names:  # all terms before the first download
        base_of(named(name), options.remote.mirror)
        show_terms(named(name))
        if "wikipedia" in name and not (options.remote.contact or os.environ.get(CONTACT_VARIABLE)):
            note(f"Wikimedia may refuse programs without contact information: give --contact or {CONTACT_VARIABLE}")
    document, lines, notes = [], [], []
    for name in options.names:
        done = obtain(name, options.out, options.remote, show_stages())
        document.append(
            {
                "name": name, "folder": str(done.folder), "files": [str(path) for path in done.files],
                "bytes": done.size, "bytes_received": done.received, "plan": str(done.plan),
                "without_checksum": list(done.unchecked), "terms": list(SOURCES[name].terms),
            }
        )  # fmt: skip
        count = len(done.files)
        came = f"{size_of(done.received)} downloaded now" if done.received else "already complete"
        lines += [
            f"{name}: {count:,} file{'s'[: count > 1]}, {size_of(done.size)} ({came}) in {done.folder}",
            f"the list of files is cached; remove {done.plan} to check for newer files",
        ]
        if done.unchecked:
            first = done.unchecked[0]
            notes.append(f"{len(done.unchecked)} file(s), such as {first}, have no published checksum: only their size "
                         "was checked")  # fmt: skip
    return Result(document=document, blocks=[Plain("\n".join(lines))], notes=notes)


def show_terms(source: NamedSource) -> None:
    """Print the terms of a source to stderr; call it before any download."""
    lines = (f"{source.name}: {source.what}", *(f"  {line}" for line in source.terms))
    print("\n".join(lines), file=sys.stderr, flush=True)


def _listed() -> Result:
    document, lines = [], []
    for source in SOURCES.values():
        document.append(
            {
                "name": source.name, "what": source.what, "fetched": source.plan is not None,
                "address": source.base or None, "needs": source.needs or None, "terms": list(source.terms),
                "instead": list(source.instead),
            }
        )  # fmt: skip
        lines.append(f"{source.name}{'' if source.plan else '  (not fetched here)'}")
        about = (source.what, source.base, source.needs, *source.terms, *source.instead)
        lines += [*(f"    {line}" for line in about if line), ""]
    return Result(document=document, blocks=[Plain("\n".join(lines))])
