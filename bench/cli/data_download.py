"""`bertbench data download`: download Wikipedia, SQuAD and books by name, with resume and checksums."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from analysis.render.tables import Plain
from bench.cli.options import Printed
from bench.cli.progress import show_stages, size_of
from bench.cli.result import Result
from bert.data.remote.obtain import RemoteOptions, named, obtain
from bert.data.remote.sources import SOURCES
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
    show_terms(options.names)
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
        notes += [f"only the size of {one} was checked: it has no published checksum" for one in done.unchecked[:1]]
    return Result(document=document, blocks=[Plain("\n".join(lines))], notes=notes)


def show_terms(names: Iterable[str]) -> None:
    """Print the terms of all named sources to stderr. Raises UsageError for one that is not fetched."""
    for source in [named(name) for name in names]:
        lines = (f"{source.name}: {source.what}", *(f"  {line}" for line in source.terms))
        print("\n".join(lines), file=sys.stderr, flush=True)


def _listed() -> Result:
    document, lines = [], []
    for one in SOURCES.values():
        about = {"what": one.what, "address": one.base or None, "needs": one.needs or None}
        texts = {"terms": list(one.terms), "instead": list(one.instead)}
        document.append({"name": one.name, "fetched": one.plan is not None, **about, **texts})
        lines.append(f"{one.name}{'' if one.plan else '  (not fetched here)'}")
        lines += [*(f"    {line}" for line in (*about.values(), *one.terms, *one.instead) if line), ""]
    return Result(document=document, blocks=[Plain("\n".join(lines))])
