"""Word pieces: a BERT `vocab.txt`, read or trained, and the tokenizer over it.

Texts become ids by nanotoken where it is installed, else by `tokenizers`. Both give the same ids; nanotoken takes about
a thirtieth of the time.
"""

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64, Ragged, offsets_of
from common.atomic import write_text
from common.errors import InputError, UsageError
from common.reading import decoded, read_content, read_errors

VOCABULARY_FILE = "vocab.txt"
"""Name of a vocabulary beside the data or the weights that were made with it."""
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_CHARACTERS = 1000
"""Different characters a trained vocabulary keeps, the most frequent first (the limit of BERT's own trainer)."""
_REMEDY = "give a BERT vocab.txt, one piece per line"
MOST_CASED = 0.05
"""Share of pieces with capitals from which on a vocabulary is taken for a cased one; BERT's have 0 and 40 %."""

MOST_UNKNOWN = 0.05
"""A larger share of [UNK] tokens is reported."""

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


def installed() -> str:
    """Return the package that encodes texts here."""
    return FAST if importlib.util.find_spec(FAST) else REFERENCE


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


@dataclass(frozen=True)
class Vocabulary:
    """Word pieces in the order of their ids."""

    pieces: tuple[str, ...]
    lower_case: bool
    """Text is lowercased and accents are stripped before it is cut into pieces."""

    def __reduce__(self) -> tuple[Any, tuple[tuple[str, ...], bool]]:
        """Go to other processes without its tokenizers; each has one, which knows the words that it has met."""
        return _shared, (self.pieces, self.lower_case)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return the id of each piece."""
        return {piece: number for number, piece in enumerate(self.pieces)}

    @property
    def pad_id(self) -> int:
        """Return the id of [PAD]."""
        return self.ids["[PAD]"]

    @property
    def cls_id(self) -> int:
        """Return the id of [CLS]."""
        return self.ids["[CLS]"]

    @property
    def sep_id(self) -> int:
        """Return the id of [SEP]."""
        return self.ids["[SEP]"]

    @property
    def mask_id(self) -> int:
        """Return the id of [MASK]."""
        return self.ids["[MASK]"]

    @property
    def fingerprint(self) -> str:
        """Return a hash of the pieces and the casing."""
        content = "\n".join(self.pieces) + f"\n{self.lower_case}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer, models

        return _with_bert_rules(Tokenizer(models.WordPiece(self.ids, unk_token="[UNK]")), self.lower_case)  # noqa: S106

    @cached_property
    def _encode(self) -> Encode:
        return (_by_nanotoken if installed() == FAST else _by_tokenizers)(self._tokenizer)

    def tokens(self, texts: Texts) -> Ragged:
        """Return the ids of each text, without special pieces (a literal "[MASK]" in a text is plain text).

        They are uint16 where the vocabulary fits, else int32. Texts are all str, without halves of surrogate pairs, or
        all bytes in valid UTF-8. Not for several threads at once.
        """
        ids, offsets = self._encode(texts)
        return Ragged(ids.astype("<u2" if len(self.pieces) <= MOST_SHORT_IDS else "<i4"), offsets)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence as `tokens` does, as lists."""
        rows = self.tokens(sentences)
        ids = rows.values.tolist()
        return [ids[begin:end] for begin, end in pairwise(rows.offsets.tolist())]

    def save(self, path: Path) -> None:
        """Write one piece per line. Raises StorageError."""
        write_text(path, "".join(f"{piece}\n" for piece in self.pieces))


@lru_cache(maxsize=1)
def _shared(pieces: tuple[str, ...], lower_case: bool) -> Vocabulary:
    return Vocabulary(pieces, lower_case)


def load_vocabulary(path: Path, lower_case: bool) -> Vocabulary:
    """Read a `vocab.txt`: one piece per line, the line number (from 0) is its id.

    Raises InputError: the file cannot be read, is not UTF-8, repeats a piece, or lacks a special one.
    """
    text = decoded(path, read_content(path, "vocabulary", _REMEDY), "vocabulary", _REMEDY)
    # Only "\n" ends a line: pieces such as U+2028 are line breaks to str.splitlines.
    pieces = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    missing = [piece for piece in SPECIAL_PIECES if piece not in pieces]
    if missing:
        raise InputError("vocabulary-mismatch", f"{path} is no vocabulary: it lacks {' '.join(missing)}; {_REMEDY}")
    counts = Counter(pieces)
    for number, piece in enumerate(pieces, start=1):
        if not piece or counts[piece] > 1:
            problem = f"has {piece!r} twice" if piece else "is empty"
            raise InputError("vocabulary-mismatch", f"line {number} of {path} {problem}: each piece needs one line")
    return Vocabulary(tuple(pieces), lower_case)


def either_fingerprint(path: Path) -> set[str]:
    """Return the fingerprints that a `vocab.txt` has with either casing of the text. Raises as load_vocabulary."""
    pieces = load_vocabulary(path, lower_case=True).pieces
    return {Vocabulary(pieces, lower_case).fingerprint for lower_case in (True, False)}


def vocabulary_notes(vocabulary: Vocabulary, counts: Mapping[str, int]) -> list[str]:
    """Return notes on a slow tokenizer, and on a vocabulary that does not fit the casing or, by the counts of tokens,
    the text."""
    share = counts.get("unknown tokens", 0) / max(1, counts.get("tokens", 0))
    unknown = f"{100 * share:.1f} % of the tokens are [UNK]: check that the vocabulary fits the language and casing"
    slow = f"{REFERENCE} encodes text here: install {FAST} for the same ids in less time"
    notes = (_casing_note(vocabulary), slow if installed() != FAST else None, unknown if share > MOST_UNKNOWN else None)
    return [note for note in notes if note]


def _casing_note(vocabulary: Vocabulary) -> str | None:
    capitals = [piece for piece in vocabulary.pieces if piece != piece.lower()]
    cased = sum(piece not in SPECIAL_PIECES and not piece.startswith("[unused") for piece in capitals)
    if vocabulary.lower_case and cased > MOST_CASED * len(vocabulary.pieces):
        return (
            f"{cased:,} pieces of the vocabulary contain capitals, which lowercased text never matches; "
            "consider --no-lower-case"
        )
    if not vocabulary.lower_case and not cased:
        return (
            "no piece of the vocabulary has a capital, so every capitalized word becomes [UNK]: leave out "
            "--no-lower-case"
        )
    return None


def sample_lines(paths: Sequence[Path], most_bytes: int) -> list[str]:
    """Return every k-th line of files of sentence text, at most `most_bytes` of them; empty ones are left out."""
    sample: list[str] = []
    number = taken = 0
    step = max(1, -(-sum(path.stat().st_size for path in paths) // most_bytes))
    for path in paths:
        with read_errors(path, "run the previous stage again"), path.open("rb") as lines:
            for line in lines:
                if line == b"\n":
                    continue
                if number % step == 0 and taken + len(line) <= most_bytes:
                    sample.append(line.decode("utf-8").removesuffix("\n"))
                    taken += len(line)
                number += 1
    return sample


def train_vocabulary(sentences: Sequence[str], size: int, lower_case: bool) -> Vocabulary:
    """Train at most `size` word pieces on `sentences`; the same text gives the same pieces.

    The library numbers continuation characters ("##a") in the order of a hash table, which differs from run to run and
    decides between equally frequent merges. They are therefore given to it in sorted order, ahead of the training.
    """
    from tokenizers import Tokenizer, models, trainers

    tokenizer = _with_bert_rules(Tokenizer(models.WordPiece(unk_token="[UNK]")), lower_case)  # noqa: S106
    alphabet, inner = _alphabet(tokenizer, sentences)
    if not alphabet:
        raise InputError("data-missing", "cannot train a vocabulary on empty text: give a folder with text")
    fixed = [*SPECIAL_PIECES, *(f"##{character}" for character in inner)]
    if size < len(fixed) + len(alphabet):
        least = len(fixed) + len(alphabet)
        raise UsageError("option-value", f"a vocabulary of {size} pieces is too small for this text: ask for {least}")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=fixed,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    ids: dict[str, int] = tokenizer.get_vocab()
    return Vocabulary(tuple(sorted(ids, key=ids.__getitem__)), lower_case)


def _with_bert_rules(tokenizer: Any, lower_case: bool) -> Any:
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _alphabet(tokenizer: Any, sentences: Iterable[str]) -> tuple[list[str], list[str]]:
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence)
    # Normalizing each character alone gives the same alphabet as normalizing the text, in far less time.
    normal: Counter[str] = Counter()
    for character, count in counts.items():
        for part in tokenizer.normalizer.normalize_str(character):
            if not part.isspace():
                normal[part] += count
    kept = sorted(sorted(normal, key=lambda part: (-normal[part], part))[:MOST_CHARACTERS])
    # Punctuation and CJK characters are words of their own and never continue one.
    words = {part: tokenizer.normalizer.normalize_str(f"a{part}") for part in kept}
    inner = [part for part, word in words.items() if len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) == 1]
    return kept, inner
