"""What the commands that make data ready have in common."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from analysis.report.terminal import printable


def plain_words(argv: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return the words without those that say the default, --lower-case and `others`: the parser knows only the form
    that changes it.
    """
    return [word for word in argv if word != "--lower-case" and word not in others]


def show_features(summaries: Sequence[Any], lines: Callable[[Any], Sequence[str]], as_json: bool) -> None:
    """Print what was made of each input, and to stderr its notes.

    Args:
        summaries: one of each input, with `notes` and `to_json`.
        lines: of a summary, to print.
        as_json: print all as JSON instead.
    """
    if as_json:
        print(json.dumps([summary.to_json() for summary in summaries], indent=2))
        return
    for number, summary in enumerate(summaries):
        print("\n" * (number > 0) + "\n".join(lines(summary)))
        for note in summary.notes:
            print(f"note: {printable(note)}", file=sys.stderr)


def with_casing_note(summaries: Sequence[Any], config: Any) -> list[Any]:
    """Return the summaries with a note where the vocabulary of `config` and its `lower_case` do not fit."""
    from bert.data.vocabulary import casing_note, load_vocabulary

    casing = casing_note(load_vocabulary(config.vocab, config.lower_case))
    return [summary if casing is None else replace(summary, notes=(*summary.notes, casing)) for summary in summaries]
