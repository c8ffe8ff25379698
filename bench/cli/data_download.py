"""`bertbench data download`: download Wikipedia, SQuAD and books by name, with resume and checksums."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from analysis.render.tables import Plain
from analysis.wording import traffic
from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from bert.data.sources import SOURCES, RemoteOptions, named, obtain
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
    for source in [named(name) for name in options.names]:
        print(f"{source.name}: {source.what}", *source.terms, sep="\n  ", file=sys.stderr, flush=True)
    document, lines = [], []
    for name in options.names:
        done, received = obtain(name, options.out, options.remote, show_stages())
        size = sum(path.stat().st_size for path in done.files)
        document.append(
            {
                "name": name, "folder": str(done.folder), "files": [str(path) for path in done.files],
                "bytes": size, "bytes_received": received, "terms": list(SOURCES[name].terms),
            }
        )  # fmt: skip
        came = f"{traffic(received)} downloaded now" if received else "already complete"
        files = f"{len(done.files):,} file{'s'[: len(done.files) > 1]}"
        lines.append(f"{name}: {files}, {traffic(size)} ({came}) in {done.folder}")
    return Result(document=document, blocks=[Plain("\n".join(lines))])


def _listed() -> Result:
    document, lines = [], []
    for one in SOURCES.values():
        terms = {"terms": list(one.terms), "instead": one.instead or None}
        document.append({"name": one.name, "fetched": one.plan is not None, "what": one.what, **terms})
        lines.append(f"{one.name}{'' if one.plan else '  (not fetched here)'}")
        lines += [*(f"    {line}" for line in (one.what, *one.terms, one.instead) if line), ""]
    return Result(document=document, blocks=[Plain("\n".join(lines))])
