"""`bertbench data squad`: SQuAD's JSON to files of features."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from analysis.report.terminal import printable
from bench.cli.options import parse
from bench.cli.preparing import plain_words, show_features, with_casing_note
from bench.cli.progress import show_stages
from bert.tasks.squad.config import SquadConfig

if TYPE_CHECKING:
    from bert.tasks.squad.prepare import SquadSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSquadOptions:
    """Turn SQuAD 1.1 or 2.0 into features for training and evaluation; a call with the same options keeps them."""

    prepare: Annotated[SquadConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"data squad": DataSquadOptions}
_SHOWN = (
    ("contexts", "contexts"),
    ("questions", "questions"),
    ("impossible questions", "impossible"),
    ("windows", "windows"),
)


def run(argv: list[str]) -> int:
    """Run the command; 0 when every input has its features."""
    options = parse(DataSquadOptions, plain_words(argv), "bertbench data squad")
    from bert.tasks.squad.prepare import prepare

    summaries = prepare(options.prepare, show_stages())
    show_features(with_casing_note(summaries, options.prepare), _lines, options.json)
    return 0


def _lines(summary: "SquadSummary") -> list[str]:
    counts, settings = summary.counts, summary.settings
    left_out = sum(count for name, count in counts.numbers.items() if name.startswith("left out"))
    rows = [("input", f"{printable(str(summary.input))}: SQuAD {settings.version}, for {settings.split}")]
    rows += [(title, f"{counts.get(name):,}") for name, title in _SHOWN if counts.get(name) or name == "windows"]
    rows.append(("left out", f"{left_out:,} questions"))
    if settings.split == "training":
        kind = "left out" if settings.drop_unanswerable_windows else "kept, their target is [CLS]"
        rows.append(("no answer", f"{counts.get('windows without the answer'):,} windows, {kind}"))
    windows = max(1, counts.get("windows"))
    mean = counts.get("window tokens") / windows
    rows.append(("tokens", f"{mean:.1f} per window, {settings.max_seq_length} at most"))
    if summary.kept:
        rows.append(("time", "finished before"))
    else:
        workers = f"{summary.workers} process{'es' * (summary.workers > 1)}"
        rows.append(("time", f"{summary.seconds:.1f} s with {workers}, {summary.mode}"))
    rows.append(("features", printable(str(summary.features))))
    return [f"{name:<11} {text}" for name, text in rows]
