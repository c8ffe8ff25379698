"""`bertbench data csv`: a CSV of texts with labels to a SQLite file of token ids."""

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.render.terminal import printable
from bench.cli.options import parse, plain_words
from bench.cli.progress import show_stages
from bert.tasks.classify.config import CsvConfig
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.tasks.classify.prepare import CsvSummary

_MOST_LABELS = 4
_MOST_UNFITTING = 0.01
"""Share of rows with too few or too many fields up to which they are listed, and nothing else is said."""
_MOST_OFF = 0.02
"""Difference of a share from the one that was asked for up to which nothing is said."""
DEFAULT_WORDS = ("--header", "--quoting", "--no-skip-initial-space")
"""Options of the form of a CSV that say its default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataCsvOptions:
    """Turn a CSV of texts with labels into a SQLite file to train on; a call with the same options keeps it.

    Encoding and delimiter are found out and said. Rows that cannot be used are left out, counted and listed.
    """

    prepare: Annotated[CsvConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print the summary as JSON, with every line that was left out."""


OPTIONS = {"data csv": DataCsvOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when the database is there."""
    if argv and not argv[0].startswith("-"):
        argv = ["--input", *argv]
    if not argv:
        raise UsageError(
            "option-missing", "bertbench data csv needs a file: bertbench data csv FILE.csv --vocab VOCAB.txt"
        )
    options = parse(DataCsvOptions, plain_words(argv, DEFAULT_WORDS), "bertbench data csv")
    from bert.tasks.classify.prepare import prepare

    summary = prepare(options.prepare, show_stages())
    if options.json:
        from bert.tasks.classify.store import left_out

        lines = [{"line": line, "reason": reason} for line, reason in left_out(summary.source.path)]
        print(json.dumps({**summary.to_json(), "left_out": lines}, indent=2, ensure_ascii=False))
        return 0
    show_summary(summary)
    return 0


def show_summary(summary: "CsvSummary") -> None:
    """Print what was made, and notes to stderr."""
    print("\n".join(summary_lines(summary)))
    for note in notes(summary):
        print(f"note: {printable(note)}", file=sys.stderr)


def notes(summary: "CsvSummary") -> list[str]:
    """Return what should make a user look at the data again."""
    from bert.tasks.classify.form import REMEDIES
    from bert.tasks.classify.prepare import MANY_LABELS
    from bert.tasks.classify.reading import BROKEN, FEWER, LITERAL_QUOTE, MANY_LINES, MARKER, MORE, SPACED_QUOTE
    from bert.tasks.classify.records import MOST_LINES

    counts, labels = summary.source.counts, summary.source.labels
    texts = counts.get("texts")
    said = [] if summary.replaced is None else [f"made anew: the one that was there {summary.replaced}"]
    said += _version_notes(summary)
    unfitting = counts.get(f"left out: {MORE}") + counts.get(f"left out: {FEWER}")
    if unfitting > _MOST_UNFITTING * counts.get("rows"):
        said.append(
            f"{100 * unfitting / counts.get('rows'):.0f} % of the rows were left out for too few or too many "
            f"fields: look at some of them; where delimiter or quotes are wrong, give {REMEDIES}"
        )
    if counts.get(SPACED_QUOTE):
        said.append(
            f"{counts.get(SPACED_QUOTE):,} rows have a quote behind a space, which is plain text: give "
            "--skip-initial-space where it opens a field"
        )
    broken = f"left out: {BROKEN}"
    for name, what in ((LITERAL_QUOTE, "read line by line"), (broken, "left out")):
        if counts.get(name):
            places = ", ".join(counts.names[name])
            said.append(
                f"quotes that open a field and close with text behind them, in other lines: {counts.get(name):,} "
                f"{what} ({places}); put them right, or give --no-quoting where quotes are plain text"
            )
    if counts.get(MANY_LINES):
        places = ", ".join(counts.names[MANY_LINES])
        said.append(
            f"rows of more than {MOST_LINES} lines, {counts.get(MANY_LINES):,} of them ({places}): quotes that "
            "stand alone may hold rows; put them right, or give --no-quoting"
        )
    if texts > 20 and len(labels) > MANY_LABELS * texts:
        said.append(f"{len(labels):,} different labels of {texts:,} texts: is that the column of the labels (--label)?")
    if counts.get(f"left out: {MARKER}"):
        said.append("a merge of two versions of the file is unfinished: the rows of both sides are in it")
    said += [
        f"no text for {name}: give a larger --{name if name == 'test' else 'validation'}, or more texts"
        for name, sizes in summary.sizes.items()
        if not sizes["texts"] and summary.source.settings.get("validation" if name == "validate" else name)
    ]
    return [*said, *_share_notes(summary)]


def _version_notes(summary: "CsvSummary") -> list[str]:
    """Return what a database of an earlier version holds otherwise."""
    from bert.tasks.classify.reading import MANY_LINES, SEVERAL_LINES
    from bert.tasks.classify.store import COUNTED_FIELDS, DIVIDED_BY_PIECES, MENDED_QUOTES

    version, said = summary.source.version, []
    long_rows = sum(summary.source.counts.get(name) for name in (SEVERAL_LINES, MANY_LINES))
    if version < MENDED_QUOTES and long_rows:
        said.append(f"{long_rows:,} rows of several lines may hold others, between quotes that stand alone")
    if version < DIVIDED_BY_PIECES:
        said.append("texts that differ only in capitals, accents or white space may be in different splits")
    if version < COUNTED_FIELDS:
        said.append("spaces behind delimiters are left out, and rows with too few or too many fields may be used")
    return [
        f"an earlier version of bertbench made it: {fact}; remove it and run the same command again to make it anew"
        for fact in said
    ]


def _share_notes(summary: "CsvSummary") -> list[str]:
    """Return of each split that is not as large as it was asked for how large it is."""
    settings, texts = summary.source.settings, summary.source.counts.get("texts")
    said = []
    for split, option in (("validate", "validation"), ("test", "test")):
        wanted, share = float(settings[option]), summary.sizes[split]["texts"] / texts
        if share and abs(share - wanted) > _MOST_OFF:
            said.append(
                f"{split} has {100 * share:.1f} % of the texts, not {100 * wanted:.1f} %: equal texts stay together, "
                "of each label one is trained on, and of labels with few texts there is no such part"
            )
    return said


def summary_lines(summary: "CsvSummary") -> list[str]:
    """Return what was made, in lines."""
    from bert.tasks.classify.form import delimiter_name
    from bert.tasks.classify.records import encoding_name

    source = summary.source
    counts, settings = source.counts, source.settings
    quote = settings.get("quote_char", '"')
    quotes = ", no quoting" if not settings["quoting"] else f", quotes {quote}" if quote != '"' else ""
    of_columns = f", of {settings['columns']:,}" if "columns" in settings else ""
    texts = counts.get("texts")
    folded = counts.get("folded texts")
    longer = f", {folded:,} texts have several" if folded else ""
    rows = [
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
    return [f"{name:<11} {printable(str(text))}" for name, text in rows]


def _by_lines(counts: Any, prefix: str, title: str) -> list[tuple[str, str]]:
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
