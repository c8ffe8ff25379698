"""All lines of real text that lie beside the checkout: books, dumps with their markup, tables and questions."""

import bz2
import gzip
from collections.abc import Iterator

from support.shared_files import DATA

_UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress}
_LATIN_1 = ("1661-8.txt", "sms_spam_latin1.csv")
MOST_CHARACTERS = 5000
"""Of a line; JSON files are one line, and are cut."""


def lines(step: int = 1) -> Iterator[str]:
    """Yield every `step`-th line."""
    for path in sorted(path for path in DATA.rglob("*") if path.suffix in {".txt", ".tsv", ".csv", ".gz", ".bz2"}):
        content = _UNPACK.get(path.suffix, bytes)(path.read_bytes())
        text = content.decode("latin-1" if path.name in _LATIN_1 else "utf-8", "replace")
        for line in text.split("\n")[::step]:
            for begin in range(0, max(1, len(line)), MOST_CHARACTERS * step):
                yield line[begin : begin + MOST_CHARACTERS]
