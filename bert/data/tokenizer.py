"""Texts in, ids of word pieces out as flat arrays: by nanotoken where it gives the ids of `tokenizers`, else by that.

Both are exact; nanotoken takes about a thirtieth of the time. It is used where it is installed, loads the tokenizer at
hand, and passes a check: the ids of a fixed hard text and of pieces of the vocabulary equal those of `tokenizers`.
"""

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
_CHECKED_PIECES = 150
"""Pieces of the vocabulary that the check encodes, alone and within other words."""
# fmt: off
_HARD = (
    "", " ", "\t a\r\n", "The quick brown fox, unaffable (don't!): 3.14159 $5 a_b ##a #a",
    "[MASK] [CLS]a[SEP] [unused1] [mask]",
    "\u00c9cole na\u00efve fa\u00e7ade \u0130stanbul \u03a3\u03a3 stra\u00dfe \u01c5 \ufb01 \u212b \u1e9e \u00bd",
    "e\u0301 \u0301 \u0301a =\u0338 a\u0345 \u1100\u1161 \u0e01\u0e33 \u0915\u094d\u0937 \u05e9\u05c1",
    "\u4e2d\u6587a\u65e5\u672c\u3042\u30a2 \uac00 \uff21\uff01 \u3000\u3001 \u2e80 \U00020000x\U0002f800 \uf900",
    "\u2018a\u2019 \u201cb\u201d \u2014 \u2026 \u2212 \u20ac \u00d7 \u00a0a\u00a0b \u2028 \u2009c\u202fd",
    "a\x00b \x01 a\x0bb a\x0cb a\x1cb \x7f a\u0085b \u00ad \u200b a\u200db \ufeff \ufffd \ue000 \U000e0001 \u0600",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "x" * 100, "x" * 101, "\u00e9" * 50, "\u00e9" * 100, "e\u0301" * 50, "\u0130" * 60, "a" * 99 + "!" + "b" * 101,
)
# fmt: on


class Tokenizer:
    """Encodes texts with the rules and the vocabulary of a `tokenizers.Tokenizer`; not for several threads at once."""

    def __init__(self, reference: Any, pieces: Sequence[str]) -> None:
        """Take a `tokenizers.Tokenizer` and the pieces it knows, in the order of their ids."""
        self.dtype = np.dtype("<u2" if len(pieces) <= MOST_SHORT_IDS else "<i4")
        self._reference = reference
        self._fast: Any = None
        self.reason: str | None = None
        """Why nanotoken is not used; None where it is."""
        try:
            self._fast = _loaded(reference)
            found = _by_fast(self._fast, texts := _check_texts(pieces))
            if not _equal(found, _by_reference(reference, texts)):
                self._give_up("it does not give the ids of tokenizers with this vocabulary")
        except ImportError as error:
            self._give_up("it is not installed" if isinstance(error, ModuleNotFoundError) else f"{error}")
        except BaseException as error:
            self._give_up(_failure(error))

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
        if self.reason is None:
            return None
        return f"{self.name} encoded the text, as nanotoken cannot be used here ({self.reason}): same ids, but slower"

    def encode(self, texts: Texts) -> Ragged:
        """Return the ids of each text, without special pieces (a literal "[MASK]" in a text is plain text).

        Args:
            texts: all str, or all bytes in valid UTF-8.

        Raises:
            UnicodeEncodeError, TypeError: a str holds half of a surrogate pair.
        """
        found = None
        if self._fast is not None:
            try:
                found = _by_fast(self._fast, texts)
            except BaseException as error:
                reason = _failure(error)
                found = _by_reference(self._reference, texts)  # raises where the text is at fault
                self._give_up(reason)
        ids, offsets = _by_reference(self._reference, texts) if found is None else found
        return Ragged(ids.astype(self.dtype), offsets)

    def _give_up(self, reason: str) -> None:
        self._fast, self.reason = None, reason


def _failure(error: BaseException) -> str:
    """Return a failure of nanotoken in words; raise what is none."""
    # A panic of Rust is no Exception.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return f"{type(error).__name__}: {error}"


def _loaded(reference: Any) -> Any:
    """Return nanotoken's tokenizer with the same rules. Raises ImportError, and whatever nanotoken raises."""
    from nanotoken import WordPieceTokenizer, set_cache_entries

    set_cache_entries(CACHE_ENTRIES)
    return WordPieceTokenizer.from_json(reference.to_str())


def _check_texts(pieces: Sequence[str]) -> list[str]:
    """Return the hard texts, and pieces of the vocabulary in several surroundings."""
    chosen = [piece.removeprefix("##") for piece in pieces[:: -(-len(pieces) // _CHECKED_PIECES) or 1]]
    return [*_HARD, " ".join(chosen), "".join(chosen), *(f"{piece}{piece.upper()},{piece}s" for piece in chosen)]


Flat = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


def _equal(one: Flat, other: Flat) -> bool:
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def _by_fast(tokenizer: Any, texts: Texts) -> Flat:
    # On the caller's thread: the processes of a preparation are as many as the user asked for.
    ids, offsets = tokenizer.encode_batch(texts, add_special_tokens=False, parallel=False)
    return ids, offsets


def _by_reference(tokenizer: Any, texts: Texts) -> Flat:
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
