"""Texts in, ids of word pieces out as flat arrays: by nanotoken where it is installed, else by `tokenizers`.

Both give the same ids; nanotoken takes about a thirtieth of the time.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64, Ragged, offsets_of

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
Texts = Sequence[str] | Sequence[bytes]
Encode = Callable[[Texts], tuple[npt.NDArray[Any], Int64]]
"""Returns the ids of all texts, and where those of each begin and the last ones end."""
FAST, REFERENCE = "nanotoken", "tokenizers"

MOST_SHORT_IDS = 0xFF00
"""Pieces of the largest vocabulary whose ids take 16 bits."""
CACHE_ENTRIES = 2**18
"""Chunks of text that nanotoken remembers, in each of two caches: up to 33 MiB a process."""
_BATCH = 2**12
"""Texts that `tokenizers` gets at once: it takes many times their memory."""


class Tokenizer:
    """Encodes texts with the rules and the vocabulary of a `tokenizers.Tokenizer`; not for several threads at once."""

    def __init__(self, reference: Any, pieces: Sequence[str]) -> None:
        """Take a `tokenizers.Tokenizer` and the pieces it knows, in the order of their ids."""
        self.dtype = np.dtype("<u2" if len(pieces) <= MOST_SHORT_IDS else "<i4")
        self.package = FAST if importlib.util.find_spec(FAST) else REFERENCE
        self.name = f"{self.package} {version(self.package)}"
        self._encode = (_by_nanotoken if self.package == FAST else _by_tokenizers)(reference)

    @property
    def note(self) -> str | None:
        """Note for the user where `tokenizers` encodes, else None."""
        if self.package == FAST:
            return None
        return f"{self.name} encoded the text: install {FAST} for the same ids in less time"

    def encode(self, texts: Texts) -> Ragged:
        """Return the ids of each text, without special pieces (a literal "[MASK]" in a text is plain text).

        Args:
            texts: all str, or all bytes in valid UTF-8.

        Raises:
            UnicodeEncodeError, TypeError: a str holds half of a surrogate pair.
        """
        ids, offsets = self._encode(texts)
        return Ragged(ids.astype(self.dtype), offsets)


def _by_nanotoken(reference: Any) -> Encode:
    from nanotoken import WordPieceTokenizer, set_cache_entries

    set_cache_entries(CACHE_ENTRIES)
    # On the caller's thread: the processes of a preparation are as many as the user asked for.
    encode = WordPieceTokenizer.from_json(reference.to_str()).encode_batch
    return partial(encode, add_special_tokens=False, parallel=False)


def _by_tokenizers(reference: Any) -> Encode:
    def encode(texts: Texts) -> tuple[npt.NDArray[Any], Int64]:
        ids: list[int] = []
        lengths: list[int] = []
        for first in range(0, len(texts), _BATCH):
            batch = [text if isinstance(text, str) else text.decode() for text in texts[first : first + _BATCH]]
            for encoding in reference.encode_batch_fast(batch, add_special_tokens=False):
                ids += encoding.ids
                lengths.append(len(encoding.ids))
        return np.array(ids, np.uint32), offsets_of(lengths)

    return encode
