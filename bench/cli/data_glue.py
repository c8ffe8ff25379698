"""`bertbench data glue`: GLUE's tables to files of features, and to text for pretraining."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from analysis.report.terminal import printable
from bench.cli.options import in_plural, parse
from bench.cli.preparing import plain_words
from bench.cli.progress import show_stages
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.tasks import TASKS, TRAIN

if TYPE_CHECKING:
    from bert.tasks.glue.prepare import GlueSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class DataGlueOptions:
    """Turn GLUE's tables into features for training, evaluation and prediction, their text into text for pretraining;
    a call with the same options keeps what is finished.
    """

    prepare: Annotated[GlueConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"data glue": DataGlueOptions}
_ROW = "{:<6} {:<16} {:>9} {:>9} {:>7} {:>7}  {}"


def run(argv: list[str]) -> int:
    """Run the command; 0 when every table has its features."""
    options = parse(DataGlueOptions, in_plural(plain_words(argv), {"--task": "--tasks"}), "bertbench data glue")
    from bert.tasks.glue.prepare import prepare

    summaries = prepare(options.prepare, show_stages())
    if options.json:
        print(json.dumps([summary.to_json() for summary in summaries], indent=2))
        return 0
    print("\n".join(_lines(summaries)))
    for note in dict.fromkeys(note for summary in summaries for note in summary.notes):
        print(f"note: {printable(note)}", file=sys.stderr)
    following = _next(options.prepare, summaries)
    if following is not None:
        print(f"\nnext: {shlex.join(['bertbench', *following])}")
    return 0


def _lines(summaries: Sequence["GlueSummary"]) -> list[str]:
    """One line for each table."""
    lines = [_ROW.format("task", "split", "rows", "left out", "tokens", "cut", "file")]
    for summary in summaries:
        numbers = summary.counts
        rows = numbers.get("rows")
        left_out = sum(count for name, count in numbers.numbers.items() if name.startswith("left out"))
        is_made = summary.features is not None
        tokens = f"{numbers.get('tokens') / max(1, rows):.1f}" if is_made else "-"
        cut = f"{numbers.get('rows cut to the sequence length'):,}" if is_made else "-"
        time = "finished before" if summary.kept else f"{summary.seconds:.1f} s"
        file = summary.features or summary.text
        named = "nothing" if file is None else f"{printable(str(file))} ({time})"
        lines.append(_ROW.format(summary.task, summary.split, f"{rows:,}", f"{left_out:,}", tokens, cut, named))
        if summary.text is not None and is_made:
            lines.append(f"{'':<23} text: {printable(str(summary.text))}")
    return [line.rstrip() for line in lines]


def _next(config: GlueConfig, summaries: Sequence["GlueSummary"]) -> list[str] | None:
    """Return the words of a command that runs on what is there; None where there is none."""
    if config.vocab is None:
        is_text = any(summary.text is not None for summary in summaries)
        return ["data", "pretrain", "--input", str(config.text)] if is_text else None
    made: dict[str, dict[str, GlueSummary]] = {}
    for summary in summaries:
        made.setdefault(summary.task, {})[summary.split] = summary
    trained = {task: tables for task, tables in made.items() if TRAIN in tables}
    judged = {task: tables for task, tables in trained.items() if set(TASKS[task].evaluations) & tables.keys()}
    for task, tables in (judged or trained).items():
        split = next((split for split in TASKS[task].evaluations if split in tables), None)
        evaluated = ["--eval-every", "0"] if split is None else ["--eval-data", _named(config, tables[split])]
        return ["train", "glue", "--task", task, "--data", _named(config, tables[TRAIN]), *evaluated]
    return None


def _named(config: GlueConfig, summary: "GlueSummary") -> str:
    """The folder, or the file where others of the same table lie beside it."""
    from bert.data.feature_files import files_in

    several = len(files_in(config.output, f"glue-{summary.task}-{summary.split}")) > 1
    return str(summary.features if several else config.output)
