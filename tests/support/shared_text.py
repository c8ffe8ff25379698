"""All lines of the text in a folder of data: books, dumps with their markup, tables and questions."""

from collections.abc import Iterator
from pathlib import Path

from support.shared_files import unpacked

_LATIN_1 = ("1661-8.txt", "sms_spam_latin1.csv", "letters-8.txt", "latin-1.csv")
_SUFFIXES = {".txt", ".tsv", ".csv", ".json", ".bz2", ".gz"}
_FOLDERS = ("csv", "gap", "glue", "pretrain", "squad", "vocab")
MOST_CHARACTERS = 5000
"""Of a line; JSON files are one line, and are cut."""


def lines(folder: Path, step: int = 1) -> Iterator[str]:
    """Yield every `step`-th line."""
    paths = [path for name in _FOLDERS for path in sorted((folder / name).rglob("*"))]
    for path in (path for path in paths if path.suffix in _SUFFIXES):
        text = unpacked(path).decode("latin-1" if path.name in _LATIN_1 else "utf-8", "replace")
        for line in text.split("\n")[::step]:
            for begin in range(0, max(1, len(line)), MOST_CHARACTERS * step):
                yield line[begin : begin + MOST_CHARACTERS]
