"""Synthetic text: pronounceable words under Zipf's law, sentences, paragraphs, documents. Integer draws only."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.atomic import atomic_path
from common.errors import UsageError

SMALLEST_CORPUS = 10_000
"""Bytes below which there are too few documents to draw random second segments from."""
WORDS = 24_000
"""Different words; a text of 200,000 words meets about two thirds of them."""

_ONSETS = [
    "b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br", "ch", "cl", "dr", "fl",
    "gr", "pl", "pr", "sh", "st", "th", "tr",
]  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "o", "ai", "ea", "ou")
_CODAS = ["", "", "", "n", "r", "s", "l", "t", "nd", "st", "m", "ng"]


def generate_corpus(folder: Path, seed: int, size_bytes: int) -> list[Path]:
    """Write a synthetic text corpus of at least `size_bytes` bytes (at most a paragraph more) as `generated-<i>.txt`.

    Words are pronounceable and follow Zipf's law (frequency ~ 1 / (rank + 2)); sentences have 4 to 40 words. All draws
    are integers, so the same seed gives the same bytes on every machine. Older generated files in `folder` are removed.
    """
    if size_bytes < SMALLEST_CORPUS:
        raise UsageError(
            "option-value", f"a corpus of {size_bytes} bytes is too small: ask for {SMALLEST_CORPUS} or more"
        )
    files = []
    for number, text in enumerate(documents(seed, size_bytes)):
        path = folder / f"generated-{number:06d}.txt"
        with atomic_path(path) as temporary:
            temporary.write_bytes(text)
        files.append(path)
    for stale in set(folder.glob("generated-*.txt")) - set(files):
        stale.unlink()
    return files


def documents(seed: int, size_bytes: int) -> Iterator[bytes]:
    """Yield documents (ASCII, one paragraph per line block) until their sizes add up to `size_bytes` or more."""
    rng = np.random.default_rng([seed, 0x7E87])
    words = _lexicon(rng)
    # 1e12 / rank fits into int64 even summed up, and integer sums are the same on every machine.
    cumulative = np.cumsum(10**12 // np.arange(3, WORDS + 3, dtype=np.int64))
    mean_document = min(40_000, max(1_200, size_bytes // 100))
    written = 0
    while written < size_bytes:
        wanted = min(int(rng.integers(mean_document // 2, mean_document * 3 // 2)), size_bytes - written)
        paragraphs: list[str] = []
        size = 0
        while size < wanted:
            paragraphs.append(_paragraph(rng, words, cumulative))
            size += len(paragraphs[-1]) + 2
        text = "\n\n".join(paragraphs) + "\n\n"
        written += len(text)
        yield text.encode("ascii")


def _lexicon(rng: np.random.Generator) -> list[str]:
    """Return distinct words, the most frequent first; frequent words are short, as in natural text."""
    syllables = [onset + vowel + coda for onset in _ONSETS for vowel in _VOWELS for coda in _CODAS]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        # 1 syllable among the first 200 words, 1-2 among the next 2,000, then 2-4.
        low, high = (1, 1) if len(words) < 200 else (1, 2) if len(words) < 2_200 else (2, 4)
        count = int(rng.integers(low, high + 1))
        words["".join(syllables[i] for i in rng.integers(0, len(syllables), count))] = None
    return list(words)


def _paragraph(rng: np.random.Generator, words: list[str], cumulative: np.ndarray) -> str:
    sentences = []
    for _ in range(int(rng.integers(2, 9))):
        # The sum of two draws makes middle lengths the most frequent: 4 to 40 words, 22 on average.
        length = int(rng.integers(2, 21)) + int(rng.integers(2, 21))
        ranks = np.searchsorted(cumulative, rng.integers(0, int(cumulative[-1]), length), side="right")
        chosen = [words[rank] for rank in ranks]
        chosen[0] = chosen[0].capitalize()
        if length > 12:
            chosen[length // 2] += ","
        sentences.append(" ".join(chosen) + ".....?!"[int(rng.integers(0, 7))])
    return " ".join(sentences)
