"""The corpus with one sentence per line and a blank line after each document, and its cut into balanced shards."""

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.data.corpus import CorpusReport, read_documents
from common.errors import UsageError


@dataclass(frozen=True, slots=True)
class Span:
    """One document inside the formatted corpus."""

    offset: int
    """First byte."""
    size: int
    """Bytes, the blank line included."""
    sentences: int
    """Lines."""


@dataclass(frozen=True, slots=True)
class Formatted:
    """The formatted corpus."""

    path: Path
    """UTF-8 text."""
    documents: tuple[Span, ...]
    """Its documents in order."""
    fingerprint: str
    """Hash of the text."""


@dataclass(frozen=True, slots=True)
class ShardText:
    """The documents of one shard."""

    path: Path
    """Where their text goes."""
    split: str
    """training or test."""
    index: int
    """Number of the shard in its split."""
    documents: tuple[int, ...]
    """Numbers of the documents, ascending."""


def format_corpus(
    files: list[Path], folder: Path, path: Path, report: CorpusReport, progress: Callable[[str, int, int], None]
) -> Formatted:
    """Write the sentences of `files` to `path`, one file in memory at a time; `report` counts what was met.

    Raises:
        InputError: a file cannot be read or is not text; the message names it.
    """
    digest = hashlib.blake2b(digest_size=16)
    spans: list[Span] = []
    offset = 0
    with path.open("wb") as out:
        for number, file in enumerate(files):
            progress("reading text", number, len(files))
            for document in read_documents([file], folder, report):
                raw = ("\n".join(document.sentences) + "\n\n").encode("utf-8", errors="replace")
                digest.update(raw)
                out.write(raw)
                spans.append(Span(offset, len(raw), len(document.sentences)))
                offset += len(raw)
    progress("reading text", len(files), len(files))
    return Formatted(path, tuple(spans), digest.hexdigest())


def assign(
    formatted: Formatted, shards: int, test_shards: int, test_fraction: float, seed: int, folder: Path
) -> list[ShardText]:
    """Split documents at random into training and test, then give each to the shard with the fewest sentences so far.

    Handing out the longest first keeps the shards within one (short) document of each other; Graham 1969 bounds it.

    Raises:
        UsageError: fewer documents than shards.
    """
    count, wanted = len(formatted.documents), shards + test_shards
    if count < wanted:
        remedy = f"--shards {count - test_shards}" if count > test_shards else "--shards 1 --test-fraction 0"
        raise UsageError(
            f"{count} document(s) cannot fill {wanted} shards ({shards} training, {test_shards} test), each needs one: "
            f"use {remedy}, or more text"
        )
    sentences = [span.sentences for span in formatted.documents]
    order = [int(number) for number in np.random.default_rng([seed, 0x5917]).permutation(count)]
    test: list[int] = []
    goal = test_fraction * sum(sentences)
    while (
        test_shards and len(order) > shards and (len(test) < test_shards or _reaches(sentences, test, order[-1], goal))
    ):
        test.append(order.pop())
    found = []
    for split, documents, number in (("training", order, shards), ("test", test, test_shards)):
        for index, chosen in enumerate(_balance(documents, sentences, number)):
            found.append(ShardText(folder / f"{split}_{index}.txt", split, index, tuple(sorted(chosen))))
    return found


def _reaches(sentences: list[int], test: list[int], candidate: int, goal: float) -> bool:
    """Whether one more document brings the test split nearer to its goal."""
    have = sum(sentences[number] for number in test)
    return have < goal and abs(have + sentences[candidate] - goal) <= goal - have


def _balance(documents: list[int], sentences: list[int], shards: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(shards)]
    loads = [(0, index) for index in range(shards)]
    for number in sorted(documents, key=lambda number: (-sentences[number], number)):
        load, index = heapq.heappop(loads)
        found[index].append(number)
        heapq.heappush(loads, (load + sentences[number], index))
    return found


def write_shard_texts(formatted: Formatted, texts: list[ShardText]) -> None:
    """Copy each shard's documents into its own file."""
    with formatted.path.open("rb") as corpus:
        for text in texts:
            with text.path.open("wb") as out:
                for number in text.documents:
                    span = formatted.documents[number]
                    corpus.seek(span.offset)
                    out.write(corpus.read(span.size))


def read_shard_text(path: Path) -> list[list[str]]:
    """Return the documents of a shard's file, each a list of sentences."""
    blocks = path.read_text(encoding="utf-8").removesuffix("\n\n").split("\n\n")
    return [block.split("\n") for block in blocks]


def sample_lines(path: Path, most_bytes: int) -> list[str]:
    """Return the sentences of the formatted corpus; of a large one every k-th, so that they stay below `most_bytes`."""
    step = -(-path.stat().st_size // most_bytes) or 1
    with path.open(encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\n") for number, line in enumerate(lines) if number % step == 0 and line != "\n"]
