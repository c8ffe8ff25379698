"""Writes the pages of this folder from the options and the columns: `make docs`. A test checks them."""

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.cli.dispatch import COMMANDS, options_of
from bench.cli.main import USAGE
from bench.cli.parser import application, examples_of
from common.atomic import write_text
from records import schema

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Path(__file__).parent
_SCRIPT_FOLDERS = (".", "bench", "bert", "bert/data", "profiling")

_TABLES = {
    "results.csv: a row per trial": schema.RESULTS,
    "trials/TRIAL/steps-RANK.csv: a row per optimizer step of one rank": schema.STEPS,
    "trials/TRIAL/telemetry-NODE.csv: a row per reading of a sensor": schema.TELEMETRY,
    "curve.csv of `train`: a row per step": schema.CURVE,
    "trials/TRIAL/collectives.csv of `comm`: a row per size, placement and repetition": schema.COLLECTIVES,
    "trials/TRIAL/components-RANK.csv of `speed-of-light`: a row per part and round": schema.COMPONENTS,
    "trainings.csv of `train --vary`, `--seeds` and `--until`: a row per training": schema.TRAININGS,
}


def pages() -> dict[Path, str]:
    """Return the text of every page by its path: its introduction as it is, the headings below anew."""
    made = {REFERENCE / "commands.md": _commands(), REFERENCE / "columns.md": _columns()}
    return {path: path.read_text("utf-8").partition("## ")[0] + "\n".join(lines) for path, lines in made.items()}


def _columns() -> Iterator[str]:
    for title, columns in _TABLES.items():
        yield f"## {title}\n\n| column | type | unit | what it is |\n|---|---|---|---|"
        yield from (f"| `{one.name}` | {one.type.__name__} | {one.unit} | {one.says} |" for one in columns)
        yield ""


def _commands() -> Iterator[str]:
    """An option of several commands with one text stands once, below them."""
    yield f"## bertbench\n\n```\n{USAGE}```\n"
    every = {words: options for name in COMMANDS for words, options in options_of(name).items()}
    docs = [application(options, "bertbench").generate_docs(output_format="markdown") for options in every.values()]
    counts = Counter(line for text in docs for line in dict.fromkeys(text.splitlines()) if line.startswith("* `--"))
    often = [line for line, count in reversed(counts.most_common()) if count > 1]
    shared = {re.findall(r"--[\w-]+", line)[0]: line for line in often}
    for (words, options), text in zip(every.items(), docs, strict=True):
        summary = " ".join((inspect.getdoc(options) or "").partition("\n\n")[0].split())
        examples = "\n".join(examples_of(options))
        lines = text[text.index("\n**") + 1 :].splitlines()
        below = sorted(name for name, line in shared.items() if line in lines)
        own = "\n".join(line for line in lines if line not in shared.values())
        yield f"## bertbench {words}\n\n{summary}\n\n```sh\n{examples}\n```\n"
        yield re.sub(r"\*\*[A-Z][a-z ]+\*\*:\s*(?=\*\*|$)", "", own).replace("<", "&lt;")
        yield f"\n[Shared](#shared-options): `{' '.join(below)}`\n"
    yield "\n".join(["## Shared options\n", *sorted(shared.values()), ""]).replace("<", "&lt;")
    yield "## Scripts\n"
    for path in sorted(path for folder in _SCRIPT_FOLDERS for path in (ROOT / folder).glob("*.sh")):
        _, *lines = path.read_text(encoding="utf-8").splitlines()
        header = itertools.takewhile(lambda line: line.startswith("#"), lines)
        yield f"`{path.relative_to(ROOT)}`\n\n```\n" + "\n".join(line[2:] for line in header) + "\n```\n"


if __name__ == "__main__":
    for path, text in pages().items():
        write_text(path, text)
