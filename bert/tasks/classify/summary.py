"""Summary of the preparation of a CSV, with notes on suspicious data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bert.data.finished import Counts
from bert.tasks.classify.reading import BROKEN, FEWER, MORE
from bert.tasks.classify.store import TextSource

LEFT_OUT = "left out: "
"""Begin of the names of counts of unusable rows."""
_MOST_LABELS = 4
_MOST_LOST = 0.01
"""Up to this share of rows that do not fit the columns, they are only listed."""


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


def notes(summary: CsvSummary) -> list[str]:
    """Return notes on suspicious data."""
    counts = summary.source.counts
    texts = [] if summary.replaced is None else [f"recreated: the previous file {summary.replaced}"]
    texts += [] if summary.tokenized is None else [summary.tokenized]
    lost = sum(counts.get(f"{LEFT_OUT}{reason}") for reason in (FEWER, MORE, BROKEN))
    if lost > _MOST_LOST * counts.get("rows"):
        texts.append(
            f"{100 * lost / counts.get('rows'):.0f} % of the rows do not fit the columns: look at some of them; give "
            "--delimiter, or --no-quoting if quotes are plain text"
        )
    for split, option in (("validate", "validation"), ("test", "test")):
        if not summary.sizes[split]["texts"] and summary.source.settings[option]:
            texts.append(f"no text for {split}: give a larger --{option}, or more texts")
    return texts


def summary_facts(summary: CsvSummary) -> list[tuple[str, str]]:
    """Return what was made."""
    source = summary.source
    counts, settings, folded = source.counts, source.settings, source.counts.get("folded texts")
    longer = f", {folded:,} texts have several" if folded else ""
    return [
        ("input", source.origin["name"]),
        ("encoding", settings["encoding"].removesuffix("-sig")),
        ("delimiter", f"{settings['delimiter']!r}{'' if settings['quoting'] else ', no quoting'}"),
        ("columns", f"text {settings['text']!r}, label {settings['label']!r}, of {settings['columns']:,}"),
        ("texts", f"{counts.get('texts'):,} of {counts.get('rows'):,} rows"),
        *_rows_by_reason(counts),
        ("labels", f"{len(source.labels):,}: {_label_text(source.labels, source.label_texts)}"),
        ("samples", f"{counts.get('samples'):,} of at most {source.max_seq_length} tokens{longer}"),
        ("tokens", f"{counts.get('word pieces') / counts.get('texts'):.1f} word pieces per text"),
        ("splits", ", ".join(f"{name} {sizes['texts']:,}" for name, sizes in summary.sizes.items()) + " texts"),
        ("time", "finished before" if summary.kept else f"{summary.seconds:.1f} s"),
        ("database", str(source.path)),
    ]


def _rows_by_reason(counts: Counts) -> Iterator[tuple[str, str]]:
    for name, places in counts.names.items():
        count = counts.get(name)
        more = ", ..." if count > len(places) else ""
        title = "left out" if name.startswith(LEFT_OUT) else "odd"
        reason = name.removeprefix(LEFT_OUT)
        yield title, f"{count:,} row{'s' * (count != 1)}: {reason} ({', '.join(places)}{more})"


def _label_text(labels: tuple[str, ...], texts: tuple[int, ...]) -> str:
    order = sorted(range(len(labels)), key=lambda code: (-texts[code], code))
    shown = [f"{labels[code][:40]} {100 * texts[code] / sum(texts):.1f} %" for code in order[:_MOST_LABELS]]
    return ", ".join([*shown, *(["..."] if len(labels) > _MOST_LABELS else [])])
