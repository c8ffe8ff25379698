"""`bertbench data pretrain|download|check`: convert text to shards, download data sets by name, check prepared data."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

from analysis.render.tables import Block, Facts, Plain, texts
from analysis.wording import traffic
from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from bert.data.sources import SOURCES, RemoteOptions, named, obtain
from bert.tasks.pretrain.prepare import PrepareConfig
from common.errors import UsageError
from common.flags import Positional


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPretrainOptions(Printed):
    """Convert Wikipedia dumps and text to HDF5 shards of pretraining instances. The same command resumes.

    Examples:
        bertbench data pretrain --generate 1000000 --output runs/pretrain-data  # from 1 MB of synthetic text
        bertbench data pretrain --input downloads/wikipedia --output data --seq-lens 128 512 --workers 8
    """

    prepare: PrepareConfig


def run_pretrain(options: DataPretrainOptions) -> Result:
    """Prepare the data."""
    from bert.tasks.pretrain.prepare import prepare

    summary = prepare(options.prepare, show_stages())
    return Result(document=summary, blocks=[Facts(list(_stages(summary)))], notes=summary["notes"])


def _stages(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for stage in summary["stages"]:
        state = "already complete" if stage["kept"] else f"{stage['seconds']:.1f} s"
        yield stage["stage"], f"{state}, {stage['files']:,} file(s): {stage['folder']}"
    yield "documents", f"{summary['documents']:,}"
    yield "sentences", f"{summary['sentences']:,}"
    trained = "trained on this text" if summary["vocab_trained"] else "given"
    yield "vocabulary", f"{summary['vocab_size']:,} word pieces, {trained}: {summary['vocab_path']}"
    for length in summary["lengths"]:
        counts = f"{length['training_instances']:,} training + {length['test_instances']:,} test"
        yield "instances", f"{counts}, {length['seq_len']} tokens, up to {length['max_predictions']} predictions"
        yield "real tokens", f"{100 * length['padding_efficiency']:.1f} %, the rest is padding"
        kept = f", {length['shards_kept']} already complete" if length["shards_kept"] else ""
        yield "shards", f"{length['shards']}{kept}"
        yield "folder", length["folder"]


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


def run_download(options: DownloadOptions) -> Result:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions(Printed):
    """Check prepared data: header, counts, ten decoded rows. Exit code 2 if training refuses them.

    A masked token reads [shown:hidden].

    Examples:
        bertbench data check runs/pretrain-data
    """

    dir: Positional[Path]
    """Folder of HDF5 shards, or of features of SQuAD, GLUE or GAP (header and counts only)."""
    vocab: Path | None = None
    """vocab.txt to decode with; default the one beside the shards."""


def run_check(options: CheckOptions) -> Result:
    """Check the data. Raises InputError where training refuses them."""
    from bert.data.features import SUFFIX, describe
    from bert.tasks.pretrain.shards import check_shards

    files = [options.dir] if options.dir.is_file() else sorted(options.dir.glob(f"*{SUFFIX}"))
    if files:
        headers = [describe(path) for path in files]
        facts = [Facts([(name, str(value)) for name, value in header.items()]) for header in headers]
        return Result(document={"features": headers}, blocks=facts)
    checked = check_shards(options.dir, options.vocab, show_stages())
    sizes = f"{checked['seq_len']} tokens, up to {checked['max_predictions']} predictions"
    header = [("folder", checked["folder"]), ("instances", sizes), *checked["datasets"].items()]
    headings = ("split", "shards", "instances", "real tokens", "masked tokens", "random pairs")
    counts = [(one.pop("split"), *(f"{value:,}" for value in one.values())) for one in map(dict, checked["splits"])]
    blocks: list[Block] = [Facts(header), texts("counts", headings, counts)]
    for one in checked["rows"]:
        label = "B is random" if one["is_random"] else "B follows A"
        blocks.append(Plain(f"{one['shard']} row {one['row']}, {label}: {shorten(' '.join(one['tokens']), 400)}"))
    return Result(document=checked, blocks=blocks)


OPTIONS = {"data pretrain": DataPretrainOptions, "data download": DownloadOptions, "data check DIR": CheckOptions}
