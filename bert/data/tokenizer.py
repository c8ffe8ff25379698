"""Texts in, ids of word pieces out as flat arrays: by nanotoken where it is installed, else by `tokenizers`.

Both give the same ids; nanotoken takes about a thirtieth of the time.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.rows import Ragged

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
Texts = Sequence[str] | Sequence[bytes]
FAST, REFERENCE = "nanotoken", "tokenizers"

MOST_SHORT_IDS = 0xFF00
"""Pieces of the largest vocabulary whose ids take 16 bits."""
CACHE_ENTRIES = 2**18
"""Chunks of text that nanotoken remembers, in each of two caches: up to 33 MiB a process."""
_BATCH = 2**18
"""Characters that `tokenizers` gets at once: it takes many times the memory of its text."""


class Tokenizer:
    """Encodes texts with the rules and the vocabulary of a `tokenizers.Tokenizer`; not for several threads at once."""

    def __init__(self, reference: Any, pieces: Sequence[str]) -> None:
        """Take a `tokenizers.Tokenizer` and the pieces it knows, in the order of their ids."""
        self.dtype = np.dtype("<u2" if len(pieces) <= MOST_SHORT_IDS else "<i4")
        self._reference = reference
        self._fast = _loaded(reference) if importlib.util.find_spec(FAST) else None

    @property
    def package(self) -> str:
        """Name of the package that encodes."""
        return REFERENCE if self._fast is None else FAST

    @property
    def name(self) -> str:
        """Name and version of the package that encodes."""
        return f"{self.package} {version(self.package)}"

    @property
    def note(self) -> str | None:
        """Note for the user where `tokenizers` encodes, else None."""
        if self._fast is not None:
            return None
        return f"{self.name} encoded the text: install {FAST} for the same ids in less time"

    def encode(self, texts: Texts) -> Ragged:
        """Return the ids of each text, without special pieces (a literal "[MASK]" in a text is plain text).

        Args:
            texts: all str, or all bytes in valid UTF-8.

        Raises:
            UnicodeEncodeError, TypeError: a str holds half of a surrogate pair.
        """
        if self._fast is None:
            ids, offsets = _by_reference(self._reference, texts)
        else:
            # On the caller's thread: the processes of a preparation are as many as the user asked for.
            ids, offsets = self._fast.encode_batch(texts, add_special_tokens=False, parallel=False)
        return Ragged(ids.astype(self.dtype), offsets)


def _loaded(reference: Any) -> Any:
    from nanotoken import WordPieceTokenizer, set_cache_entries

    set_cache_entries(CACHE_ENTRIES)
    return WordPieceTokenizer.from_json(reference.to_str())


def _by_reference(tokenizer: Any, texts: Texts) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    different: list[Any] = list(dict.fromkeys(texts))
    if 2 * len(different) < len(texts):  # words: most of them come again
        numbers = {text: number for number, text in enumerate(different)}
        ids, offsets = _by_reference(tokenizer, different)
        chosen = np.fromiter(map(numbers.__getitem__, texts), np.int64, len(texts))
        lengths = np.diff(offsets)[chosen]
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) + np.repeat(offsets[chosen] - ends + lengths, lengths)
        return ids[places], np.concatenate([[0], ends])
    flat, lengths_of = [np.empty(0, np.uint32)], [np.zeros(1, np.int64)]
    for batch in _batches(texts):
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        found = [encoding.ids for encoding in encodings]
        flat.append(np.fromiter(chain.from_iterable(found), np.uint32))
        lengths_of.append(np.fromiter(map(len, found), np.int64, len(found)))
    return np.concatenate(flat), np.cumsum(np.concatenate(lengths_of))


def _batches(texts: Texts) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text if isinstance(text, str) else text.decode())
        size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
