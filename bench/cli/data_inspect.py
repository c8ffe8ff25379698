"""`bertbench data inspect DIR`: summarize a folder of HDF5 shards and validate it against the format."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from analysis.wording import UNKNOWN, interval, size
from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from common.errors import UsageError

if TYPE_CHECKING:
    from analysis.render.tables import Block, Table
    from bert.tasks.pretrain.inspecting.figures import Share, SplitFigures
    from bert.tasks.pretrain.inspecting.inspection import Check, Inspection

_BARS = 16
_LONGEST_BAR = 40
_LONGEST_NAME = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectOptions(Printed):
    """Show what a folder of HDF5 shards contains and check every row against the format. Exit code 1 if a check fails.

    DIR contains the shards, or the output of several preparations; each is then inspected.

    Examples:
        bertbench data inspect runs/pretrain-data
    """

    dir: tyro.conf.Positional[Path]
    """Folder of shards."""
    out: Path | None = None
    """Folder for a picture of the length distribution; default no picture."""
    samples: int = 3
    """Random instances to show as text. A masked position reads [shown:hidden]."""
    seed: int = 0
    """Seed for choosing the samples."""
    split: Literal["training", "test", "both"] = "both"
    """Shards to read."""
    seq_len: int | None = None
    """Sequence length of the preparations to read; default all."""
    vocab: Path | None = None
    """vocab.txt; default the one beside the shards."""
    workers: int = 1
    """Worker processes."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        for name in ("samples", "seed"):
            if getattr(self, name) < 0:
                raise UsageError("option-value", f"--{name} {getattr(self, name)} must not be negative")
        if self.samples > MOST_SAMPLES:
            raise UsageError("option-value", f"--samples {self.samples} exceeds the limit: use {MOST_SAMPLES} or fewer")


MOST_SAMPLES = 1000
OPTIONS = {"data inspect DIR": InspectOptions}


def run(options: InspectOptions) -> Result:
    """Inspect each data set; return exit code 1 if a check fails."""
    from bert.data.pool import Workers
    from bert.tasks.pretrain.inspecting.inspection import inspect

    with Workers(options.workers) as workers:
        found = inspect(
            options.dir,
            workers,
            split=options.split,
            seq_len=options.seq_len,
            vocab=options.vocab,
            samples=options.samples,
            seed=options.seed,
            progress=show_stages(),
        )
    pictures = [] if options.out is None else _draw(found, options.dir, options.out)
    passed = all(one.passed for one in found)
    inspections = [one.to_json() for one in found]
    return Result(
        document={"passed": passed, "inspections": inspections, "pictures": [str(path) for path in pictures]},
        blocks=[block for one in found for block in _blocks(one)],
        written=pictures,
        code=0 if passed else 1,
    )


def _draw(found: Sequence["Inspection"], above: Path, out: Path) -> list[Path]:
    """Draw one picture per folder, named by its path relative to `above`."""
    from analysis.render.png import write_png
    from analysis.render.task_figures import LengthCounts, lengths_figure

    paths = []
    for one in found:
        if not one.splits:
            continue
        parts = one.folder.relative_to(above).parts
        name = "_".join((*parts, "lengths"))[-_LONGEST_NAME:]
        splits = [LengthCounts(s.split, s.lengths, s.first_lengths, s.second_lengths) for s in one.splits]
        title = f"{one.folder.resolve().name}, {one.splits[0].seq_len} tokens"
        paths.append(write_png(lengths_figure(splits, title, name), out))
    return paths


def _blocks(one: "Inspection") -> "Iterator[Block]":
    from analysis.render.tables import Plain, texts

    yield Plain(str(one.folder))
    if one.splits:
        rows = [(name, *(form(figures) for figures in one.splits)) for name, form in _ROWS]
        if one.test_in_training is not None:
            rows.append(("  also in training", "", f"{one.test_in_training:,}"))
        yield texts("figures", ("", *(figures.split for figures in one.splits)), rows)
    for figures in one.splits:
        yield _histogram(figures)
        pieces = "  ".join(f"{name} {100 * count / figures.real_tokens:.1f} %" for name, count in figures.frequent)
        yield f"{figures.split}: most frequent pieces, share of real tokens: {pieces}"
    yield texts("checks", ("state", "check", "requirement"), map(_check, one.checks), numeric=False)
    for sample in one.samples:
        label = "1, B is random" if sample.label else "0, B follows A"
        yield Plain(f"{sample.shard} row {sample.row}: {sample.tokens} tokens, {sample.masked} masked, label {label}")
        yield f"  A: {sample.first}"
        yield f"  B: {sample.second}"
    states = [check.status for check in one.checks]
    failed, skipped = states.count("failed"), states.count("skipped")
    yield Plain(f"{len(states) - failed - skipped} checks passed, {failed} failed, {skipped} skipped")
    yield from (f"note: {note}" for note in one.notes)


def _chance(share: "Share | None") -> str:
    if share is None or share.interval is None:
        return UNKNOWN
    text = f"{interval(*share.interval, lambda value: f'{100 * value:.2f}')} %"
    return f"{text} NO" if share.by_chance is False else text


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.2f} %"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


_ROWS: tuple[tuple[str, Callable[["SplitFigures"], str]], ...] = (
    ("shards", lambda f: f"{f.shards:,}"),
    ("instances", lambda f: f"{f.instances:,}"),
    ("tokens per instance", lambda f: f"{f.seq_len:,}"),
    ("maximum predictions per instance", lambda f: f"{f.max_predictions:,}"),
    ("real tokens", lambda f: f"{f.real_tokens:,}"),
    ("real tokens per instance", lambda f: f"{f.real_tokens / f.instances:.1f}"),
    ("padding efficiency (real / all tokens)", lambda f: _percent(f.padding_efficiency)),
    ("instances with padding", lambda f: _percent(f.short / f.instances)),
    ("length bins", lambda f: f"{f.bins}" if f.bins else "none"),
    ("pieces in segment A", lambda f: f"{f.mean_first:.1f}"),
    ("pieces in segment B", lambda f: f"{f.mean_second:.1f}"),
    ("bytes on disk", lambda f: size(f.file_bytes)),
    ("bytes per instance", lambda f: f"{f.file_bytes / f.instances:.1f}"),
    ("masked / real tokens", lambda f: _percent(f.mask_rate)),
    ("masked / real tokens without [CLS], [SEP]", lambda f: _percent(f.mask_rate_of_pieces)),
    ("masked tokens shown as [MASK]", lambda f: _percent(f.shown_mask.value if f.shown_mask else None)),
    ("  expected for 80 %", lambda f: _chance(f.shown_mask)),
    ("masked tokens left unchanged", lambda f: _percent(f.shown_same.value if f.shown_same else None)),
    ("  expected for 10 %", lambda f: _chance(f.shown_same)),
    ("masked tokens replaced at random", lambda f: _percent(f.shown_random.value if f.shown_random else None)),
    ("  expected for 10 %", lambda f: _chance(f.shown_random)),
    ("random segment B (50 % or more)", lambda f: _percent(f.random_second.value)),
    ("  95 % interval", lambda f: _chance(f.random_second)),
    ("[UNK] / all pieces", lambda f: _percent(f.unknown_share)),
    ("duplicate instances", lambda f: _count(f.duplicates)),
)


def _histogram(figures: "SplitFigures") -> "Table":
    """Return a histogram of lengths, with bars of # scaled to the largest count."""
    from analysis.render.tables import Cell, Table

    step = max(1, -(-figures.seq_len // _BARS))
    counts = []
    for end in range(figures.seq_len, 0, -step):
        begin = max(0, end - step + 1)
        counts.append((f"{begin}-{end}" if step > 1 else str(end), sum(figures.lengths[begin : end + 1])))
    most = max(1, *(count for _, count in counts))
    rows = tuple(
        (
            Cell(tokens, tokens),
            Cell(f"{count:,}", count),
            Cell(f"{100 * count / figures.instances:.2f} %", count),
            Cell("#" * -(-count * _LONGEST_BAR // most), count),
        )
        for tokens, count in reversed(counts)
    )
    title = f"{figures.split}: instances by real tokens"
    return Table("lengths", ("tokens", "instances", "share", ""), rows, (True, True, True, False), title)


def _check(check: "Check") -> tuple[str, str, str]:
    """Return the state of a check, its name, and its requirement or first violation."""
    violations = f"{check.violations:,} violation{'s'[: check.violations != 1]}"
    says = {
        "failed": f"{violations}, first: {check.first}; required: {check.says}",
        "skipped": f"{check.skipped}",
    }
    return "FAILED" if check.status == "failed" else check.status, check.name, says.get(check.status, check.says)
