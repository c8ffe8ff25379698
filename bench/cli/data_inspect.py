"""`bertbench data inspect DIR`: what a folder of HDF5 shards holds, and whether it is what the format says."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from analysis.render.terminal import printable
from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result, terminal_width
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.tasks.pretrain.inspecting.figures import Share, SplitFigures
    from bert.tasks.pretrain.inspecting.inspection import Check, Inspection

_BARS = 16
_WIDE = 80
"""Characters of a line from which columns stand beside each other."""
_LONGEST_NAME = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectOptions(Printed):
    """Say what a folder of HDF5 shards holds, and hold every row against the format; exit code 1 when a check fails.

    DIR is the shards' own folder, or one above several preparations: then each of them.
    """

    dir: tyro.conf.Positional[Path]
    """Folder of shards."""
    out: Path | None = None
    """Folder to write a picture of the lengths into; without it no file is written."""
    samples: int = 3
    """Instances to show as text, chosen at random; a predicted position is [shown:hidden]."""
    seed: int = 0
    """Seed of their choice."""
    split: Literal["training", "test", "both"] = "both"
    """Shards to read."""
    seq_len: int | None = None
    """Only preparations of this length."""
    vocab: Path | None = None
    """vocab.txt of shards that have none beside them."""
    workers: int = 1
    """Processes that share the shards."""

    def __post_init__(self) -> None:
        """Refuse numbers without meaning."""
        for name in ("samples", "seed"):
            if getattr(self, name) < 0:
                raise UsageError("option-value", f"--{name} {getattr(self, name)} must not be negative")
        if self.samples > MOST_SAMPLES:
            raise UsageError(
                "option-value", f"--samples {self.samples} is more than anybody reads: use {MOST_SAMPLES} or fewer"
            )


MOST_SAMPLES = 1000
OPTIONS = {"data inspect DIR": InspectOptions}


def run(options: InspectOptions) -> Result:
    """Inspect each preparation; exit code 1 when a check failed."""
    from analysis.render.tables import Plain
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
        blocks=[Plain(_text(one, terminal_width())) for one in found],
        written=pictures,
        code=0 if passed else 1,
    )


def _draw(found: Sequence["Inspection"], above: Path, out: Path) -> list[Path]:
    """One picture per folder, named by its place below `above`."""
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


def _text(one: "Inspection", width: int) -> str:
    parts = ["\n".join(_wrap(str(one.folder), width))]
    if one.splits:
        parts.append(_figures(one, width))
        for figures in one.splits:
            parts += [_histogram(figures, width), _frequent(figures, width)]
    parts += [_checks(one.checks, width), *_samples(one, width)]
    failed = sum(check.status == "failed" for check in one.checks)
    skipped = sum(check.status == "skipped" for check in one.checks)
    lines = [wrapped for note in one.notes for wrapped in _wrap(f"note: {note}", width)]
    passed = len(one.checks) - failed - skipped
    lines.append(f"{passed} checks passed, {failed} failed, {skipped} skipped")
    return "\n\n".join((*parts, "\n".join(lines)))


def _figures(one: "Inspection", width: int) -> str:
    """One column per split; where the lines are too short for that, one block per split."""
    rows = [(name, [form(figures) for figures in one.splits]) for name, form in _ROWS]
    if one.test_in_training is not None:
        rows.append(("  of them in training, too", ["", f"{one.test_in_training:,}"]))
    headings = [figures.split for figures in one.splits]
    first = max(len(name) for name, _ in rows)
    wide = [max(len(headings[number]), *(len(values[number]) for _, values in rows)) for number in range(len(headings))]
    if first + sum(2 + column for column in wide) > width:
        return "\n".join(
            line
            for number, heading in enumerate(headings)
            for text in (heading, *(f"  {name}: {values[number]}" for name, values in rows if values[number]))
            for line in _wrap(text, width, "      ")
        )
    lines = [
        f"{name:<{first}}" + "".join(f"  {text:>{column}}" for text, column in zip(values, wide, strict=True))
        for name, values in (("", headings), *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _frequent(figures: "SplitFigures", width: int) -> str:
    pieces = "  ".join(f"{name} {100 * count / figures.real_tokens:.1f}%" for name, count in figures.frequent)
    return "\n".join(_wrap(f"{figures.split}: most frequent pieces, of the real tokens: {pieces}", width))


def _chance(share: "Share | None") -> str:
    if share is None or share.interval is None:
        return "–"  # noqa: RUF001  an en dash, as tables have it
    low, high = share.interval
    text = f"{100 * low:.2f}–{100 * high:.2f} %"  # noqa: RUF001
    return f"{text} NO" if share.by_chance is False else text


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"  # noqa: RUF001


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"  # noqa: RUF001


def _size(value: float) -> str:
    from analysis.wording import size

    return size(value)


_ROWS: tuple[tuple[str, Callable[["SplitFigures"], str]], ...] = (
    ("shards", lambda f: f"{f.shards:,}"),
    ("instances", lambda f: f"{f.instances:,}"),
    ("tokens per instance", lambda f: f"{f.seq_len:,}"),
    ("predictions per instance, at most", lambda f: f"{f.max_predictions:,}"),
    ("real tokens", lambda f: f"{f.real_tokens:,}"),
    ("real tokens per instance", lambda f: f"{f.real_tokens / f.instances:.1f}"),
    ("padding efficiency (real / all tokens)", lambda f: _percent(f.padding_efficiency)),
    ("instances shorter than that", lambda f: _percent(f.short / f.instances)),
    ("bins of length", lambda f: f"{f.bins}" if f.bins else "none"),
    ("pieces in segment A", lambda f: f"{f.mean_first:.1f}"),
    ("pieces in segment B", lambda f: f"{f.mean_second:.1f}"),
    ("bytes on disk", lambda f: _size(f.file_bytes)),
    ("bytes per instance", lambda f: f"{f.file_bytes / f.instances:.1f}"),
    ("masked / real tokens", lambda f: _percent(f.mask_rate)),
    ("masked / real tokens without [CLS], [SEP]", lambda f: _percent(f.mask_rate_of_pieces)),
    ("of the masked: [MASK]", lambda f: _percent(f.shown_mask.value if f.shown_mask else None)),
    ("  80 % is meant, chance gives", lambda f: _chance(f.shown_mask)),
    ("of the masked: unchanged", lambda f: _percent(f.shown_same.value if f.shown_same else None)),
    ("  10 % is meant, chance gives", lambda f: _chance(f.shown_same)),
    ("of the masked: another piece", lambda f: _percent(f.shown_random.value if f.shown_random else None)),
    ("  10 % is meant, chance gives", lambda f: _chance(f.shown_random)),
    ("B is random (a half or more)", lambda f: _percent(f.random_second.value)),
    ("  95 % interval", lambda f: _chance(f.random_second)),
    ("[UNK] of the pieces", lambda f: _percent(f.unknown_share)),
    ("instances that equal an earlier one", lambda f: _count(f.duplicates)),
)


def _histogram(figures: "SplitFigures", width: int) -> str:
    """Lengths as bars of #, the fullest as long as the line has place."""
    step = max(1, -(-figures.seq_len // _BARS))
    ends = list(range(figures.seq_len, 0, -step))[::-1]
    rows = []
    for end in ends:
        begin = max(0, end - step + 1)
        count = sum(figures.lengths[begin : end + 1])
        rows.append((f"{begin}-{end}" if step > 1 else str(end), count))
    label = max(len(text) for text, _ in rows)
    number = max(len(f"{count:,}") for _, count in rows)
    most = max(1, max(count for _, count in rows))
    room = max(4, min(60, width - label - number - 14))
    lines = [f"{figures.split}: instances by real tokens"]
    for text, count in rows:
        share = f"{100 * count / figures.instances:.2f} %"
        bar = "#" * (-(-count * room // most))
        lines.append(f"  {text:>{label}} {count:>{number},} {share:>8} {bar}".rstrip())
    return "\n".join(lines)


def _checks(checks: Sequence["Check"], width: int) -> str:
    """A line per check: what holds, or the first violation."""
    name = max(len(check.name) for check in checks) if width >= _WIDE else 0
    lines = []
    for check in checks:
        text = check.says
        if check.status == "failed":
            text = f"{check.violations:,} x, the first: {check.first}; must hold: {check.says}"
        elif check.status == "skipped":
            text = f"{check.skipped}"
        status = "FAILED" if check.status == "failed" else check.status
        lines += _wrap(f"{status:<7}  {check.name:<{name}}  {text}", width, " " * (name + 11))
    return "\n".join(lines)


def _samples(one: "Inspection", width: int) -> list[str]:
    parts = []
    for sample in one.samples:
        label = "1, B is random" if sample.label else "0, B follows A"
        head = f"{sample.shard} row {sample.row}: {sample.tokens} tokens, {sample.masked} masked, label {label}"
        lines = _wrap(head, width)
        for name, text in (("A", sample.first), ("B", sample.second)):
            lines += _wrap(f"  {name}: {text}", width, "     ")
        parts.append("\n".join(lines))
    return parts


def _wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    lines = textwrap.wrap(printable(text), width, subsequent_indent=indent, break_on_hyphens=False)
    return lines or [""]
