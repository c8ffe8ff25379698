"""`bertbench data gap`: GAP's TSVs to files of features."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from analysis.report.terminal import printable
from bench.cli.options import parse
from bench.cli.preparing import plain_words, show_features, with_casing_note
from bench.cli.progress import show_stages
from bert.tasks.gap.config import GapConfig

if TYPE_CHECKING:
    from bert.tasks.gap.prepare import GapSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class DataGapOptions:
    """Turn TSVs of GAP into features to train on, to validate with and to predict; a call with the same options keeps
    them. Rows that cannot be used are named by their lines.
    """

    prepare: Annotated[GapConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"data gap": DataGapOptions}


def run(argv: list[str]) -> int:
    """Run the command; 0 when every input has its features."""
    options = parse(DataGapOptions, plain_words(argv), "bertbench data gap")
    from bert.tasks.gap.prepare import prepare

    summaries = prepare(options.prepare, show_stages())
    show_features(with_casing_note(summaries, options.prepare), _lines, options.json)
    return 0


def _lines(summary: "GapSummary") -> list[str]:
    counts, settings = summary.counts, summary.settings
    features = counts.get("features")
    rows = [
        ("input", f"{printable(str(summary.input))}, for {settings.split}"),
        ("rows", f"{counts.get('rows'):,}, {features:,} of them used, {counts.get('left out'):,} left out"),
        (
            "pronouns",
            f"{counts.get('pronouns: masculine'):,} masculine, {counts.get('pronouns: feminine'):,} feminine",
        ),
        (
            "tokens",
            f"{counts.get('tokens') / max(1, features):.1f} per text, {settings.max_seq_length - 2} at most; "
            f"{counts.get('windowed'):,} texts were cut around their mentions",
        ),
        ("time", "finished before" if summary.kept else f"{summary.seconds:.1f} s"),
        ("features", printable(str(summary.features))),
        ("readable", printable(str(summary.features.with_suffix(".tsv")))),
    ]
    return [f"{name:<11} {text}" for name, text in rows]
