"""Summary of the preparation of a CSV, with notes on suspicious data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bert.data.stages import Counts
from bert.tasks.classify.form import REMEDIES, delimiter_name
from bert.tasks.classify.reading import (
    BROKEN,
    FEWER,
    LITERAL_QUOTE,
    MANY_LINES,
    MARKER,
    MORE,
    SEVERAL_LINES,
    SPACED_QUOTE,
)
from bert.tasks.classify.records import MOST_LINES, encoding_name
from bert.tasks.classify.store import COUNTED_FIELDS, DIVIDED_BY_PIECES, MENDED_QUOTES, TextSource

MANY_LABELS = 0.5
"""Labels per text from which on the column is taken for something else."""


@dataclass(frozen=True, slots=True)
class CsvSummary:
    """What a preparation made."""

    source: TextSource
    sizes: Mapping[str, Mapping[str, int]]
    kept: bool
    """Whether an earlier call had finished it."""
    seconds: float
    replaced: str | None = None
    """How the database differed that was there before, in words; None if there was none."""
    tokenized: str | None = None
    """Why this call did not use the fastest tokenizer; None if it did, or tokenized nothing."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        source = self.source
        return {
            "input": source.origin["name"],
            "database": str(source.path),
            "fingerprint": source.fingerprint,
            "kept": self.kept,
            "seconds": self.seconds,
            "settings": dict(source.settings),
            "labels": dict(zip(source.labels, source.label_texts, strict=True)),
            "splits": {name: dict(sizes) for name, sizes in self.sizes.items()},
            "counts": source.counts.numbers,
            "examples": source.counts.names,
        }


_MOST_LABELS = 4


_MOST_UNFITTING = 0.01
"""Up to this share of rows with too few or too many fields, they are only listed."""


_MOST_OFF = 0.02
"""A larger difference between a share and the requested one is reported."""


def notes(summary: CsvSummary) -> list[str]:
    """Return notes on suspicious data."""

    counts, labels = summary.source.counts, summary.source.labels
    texts = counts.get("texts")
    said = [] if summary.replaced is None else [f"recreated: the previous file {summary.replaced}"]
    said += [] if summary.tokenized is None else [summary.tokenized]
    said += _version_notes(summary)
    unfitting = counts.get(f"left out: {MORE}") + counts.get(f"left out: {FEWER}")
    if unfitting > _MOST_UNFITTING * counts.get("rows"):
        said.append(
            f"{100 * unfitting / counts.get('rows'):.0f} % of the rows were left out for too few or too many "
            f"fields: look at some of them; if delimiter or quotes are wrong, give {REMEDIES}"
        )
    if counts.get(SPACED_QUOTE):
        said.append(
            f"{counts.get(SPACED_QUOTE):,} rows have a quote after a space, which is read as text: give "
            "--skip-initial-space if it opens a field"
        )
    broken = f"left out: {BROKEN}"
    for name, what in ((LITERAL_QUOTE, "read line by line"), (broken, "left out")):
        if counts.get(name):
            places = ", ".join(counts.names[name])
            said.append(
                f"quoted fields that close on another line with text behind the quote: {counts.get(name):,} "
                f"{what} ({places}); correct them, or give --no-quoting if quotes are plain text"
            )
    if counts.get(MANY_LINES):
        places = ", ".join(counts.names[MANY_LINES])
        said.append(
            f"rows of more than {MOST_LINES} lines, {counts.get(MANY_LINES):,} of them ({places}): unpaired quotes "
            "may enclose whole rows; correct them, or give --no-quoting"
        )
    if texts > 20 and len(labels) > MANY_LABELS * texts:
        said.append(f"{len(labels):,} different labels for {texts:,} texts: check that --label is the column of labels")
    if counts.get(f"left out: {MARKER}"):
        said.append("the file holds an unresolved merge conflict: rows of both sides are used")
    said += [
        f"no text for {name}: give a larger --{name if name == 'test' else 'validation'}, or more texts"
        for name, sizes in summary.sizes.items()
        if not sizes["texts"] and summary.source.settings.get("validation" if name == "validate" else name)
    ]
    return [*said, *_share_notes(summary)]


def _version_notes(summary: CsvSummary) -> list[str]:
    """Return what a database of an earlier version holds otherwise."""

    version, said = summary.source.version, []
    long_rows = sum(summary.source.counts.get(name) for name in (SEVERAL_LINES, MANY_LINES))
    if version < MENDED_QUOTES and long_rows:
        said.append(f"{long_rows:,} rows of several lines may hold other rows between unpaired quotes")
    if version < DIVIDED_BY_PIECES:
        said.append("texts that differ only in capitals, accents or white space may be in different splits")
    if version < COUNTED_FIELDS:
        said.append("spaces behind delimiters are left out, and rows with too few or too many fields may be used")
    return [
        f"an earlier version of bertbench created the file: {fact}; remove it and run the same command again"
        for fact in said
    ]


def _share_notes(summary: CsvSummary) -> list[str]:
    """Return of each split that is not as large as it was asked for how large it is."""
    settings, texts = summary.source.settings, summary.source.counts.get("texts")
    said = []
    for split, option in (("validate", "validation"), ("test", "test")):
        wanted, share = float(settings[option]), summary.sizes[split]["texts"] / texts
        if share and abs(share - wanted) > _MOST_OFF:
            said.append(
                f"{split} has {100 * share:.1f} % of the texts, not {100 * wanted:.1f} %: equal texts stay together, "
                "each label keeps one text for training, and rare labels have too few texts to split"
            )
    return said


def summary_facts(summary: CsvSummary) -> list[tuple[str, str]]:
    """Return what was made."""
    source = summary.source
    counts, settings = source.counts, source.settings
    quote = settings.get("quote_char", '"')
    quotes = ", no quoting" if not settings["quoting"] else f", quotes {quote}" if quote != '"' else ""
    of_columns = f", of {settings['columns']:,}" if "columns" in settings else ""
    texts = counts.get("texts")
    folded = counts.get("folded texts")
    longer = f", {folded:,} texts have several" if folded else ""
    return [
        ("input", source.origin["name"]),
        ("encoding", f"{encoding_name(settings['encoding'])} ({settings['encoding_from']})"),
        ("delimiter", f"{delimiter_name(settings['delimiter'])} ({settings['delimiter_from']}){quotes}"),
        ("columns", f"text {settings['text']!r}, label {settings['label']!r}{of_columns}"),
        ("texts", f"{texts:,} of {counts.get('rows'):,} rows"),
        *_by_lines(counts, "left out: ", "left out"),
        *_by_lines(counts, "", "odd"),
        ("labels", f"{len(source.labels):,}: {_label_text(source.labels, source.label_texts)}"),
        ("samples", f"{counts.get('samples'):,} of at most {source.max_seq_length} tokens{longer}"),
        ("tokens", f"{counts.get('word pieces') / texts:.1f} word pieces per text"),
        ("splits", ", ".join(f"{name} {sizes['texts']:,}" for name, sizes in summary.sizes.items()) + " texts"),
        ("time", "finished before" if summary.kept else f"{summary.seconds:.1f} s"),
        ("database", str(source.path)),
    ]


def _by_lines(counts: Counts, prefix: str, title: str) -> list[tuple[str, str]]:
    """Return what was counted at lines of the CSV, one row each."""
    found = []
    for name, examples in counts.names.items():
        if bool(prefix) == name.startswith("left out: "):
            count = counts.get(name)
            more = ", ..." if count > len(examples) else ""
            found.append(
                (title, f"{count:,} row{'s' * (count != 1)}: {name.removeprefix(prefix)} ({', '.join(examples)}{more})")
            )
    return found


def _label_text(labels: tuple[str, ...], texts: tuple[int, ...]) -> str:
    order = sorted(range(len(labels)), key=lambda code: (-texts[code], code))
    total = sum(texts)
    shown = [f"{labels[code][:40]} {100 * texts[code] / total:.1f} %" for code in order[:_MOST_LABELS]]
    return ", ".join([*shown, *(["..."] if len(labels) > _MOST_LABELS else [])])
