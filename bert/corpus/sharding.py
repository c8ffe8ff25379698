"""Cut sentence text into shards: documents are split at random into training and test, then balanced by sentences.

Of each document only three numbers are kept, in NumPy arrays, so that millions of them fit into memory; the text goes
through in one sequential pass that appends each document to its shard.
"""

import heapq
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from bert.data.pool import Progress
from bert.data.stages import Counts, Finished, StageFolder
from common.atomic import storage_errors
from common.errors import InputError, UsageError
from common.reading import read_errors

SHARD_BYTES = 32 * 2**20
"""Sentence text per training shard where no number of shards is given."""
FEWEST_SHARDS = 4
"""Training shards where no number is given: fewer would leave workers and ranks without one."""
VERSION = 1
"""Raised when the same input gives other bytes."""
_BLOCK_BYTES = 8 * 2**20
_BLOCK_DOCUMENTS = 2**16
_SPARE_FILES = 64
_NEWLINE = 10
_NO_SHARD = -1

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    """How the documents are handed out."""

    training: int
    test: int
    """Test shards; 0 for none."""
    test_fraction: float
    """Share of the sentences that goes to the test shards."""
    seed: int

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be followed."""
        if self.training < 1 or self.test < 0:
            raise UsageError(
                "option-value", f"{self.training} training and {self.test} test shards: ask for at least 1 and 0"
            )
        if not 0.0 <= self.test_fraction < 1.0:
            raise UsageError("option-value", f"--test-fraction {self.test_fraction} must be in [0, 1)")

    def names(self, dataset: str) -> list[str]:
        """Return the file names: the training shards, then the test shards."""
        counts = (("training", self.training), ("test", self.test))
        return [f"{dataset}_{split}_{index}.txt" for split, count in counts for index in range(count)]


@dataclass(frozen=True, slots=True)
class Documents:
    """All documents of the parts in their order."""

    sizes: Numbers
    """[D] bytes, the empty line included."""
    sentences: npt.NDArray[np.int32]
    """[D] lines with text."""
    counts: tuple[int, ...]


def automatic_shards(bytes_of_text: int) -> int:
    """Return the number of training shards for so much sentence text: one for each 32 MiB, at least 4."""
    return max(FEWEST_SHARDS, -(-bytes_of_text // SHARD_BYTES))


def shard(
    parts: Sequence[Path], folder: StageFolder, dataset: str, plan: ShardPlan, progress: Progress
) -> Finished | None:
    """Write `<dataset>_{training|test}_<i>.txt` to `folder`; documents keep their order inside a shard.

    Args:
        parts: sentence text, in the order it is to have.
        folder: where the shards go; those that are finished are kept.
        dataset: first part of the names.
        plan: numbers of shards, test fraction, seed.
        progress: called with the parts read so far; each is read twice.

    Returns:
        The stage.

    Raises:
        UsageError: fewer documents than shards; the message says what to ask for.
        InputError: a part cannot be read or is no sentence text.
        StorageError: the folder cannot be written.
    """
    done = folder.finished()
    if done is not None:
        return done
    names = plan.names(dataset)
    missing = [number for number, name in enumerate(names) if not folder.is_done(name)]
    documents = scan(parts, lambda number: progress("shard", number, 2 * len(parts)))
    chosen = assign(documents.sentences, plan)
    counts = _count(documents, chosen, plan, names)
    if missing:
        shards = {number: names[number] for number in missing}
        _allow_open_files(len(shards))
        _write_shards(
            parts,
            documents,
            chosen,
            shards,
            folder,
            counts,
            lambda number: progress("shard", len(parts) + number, 2 * len(parts)),
        )
    extra = Counts()
    extra.add("empty documents", int(np.count_nonzero(chosen == _NO_SHARD)))
    return folder.finish(names, extra)


def scan(parts: Sequence[Path], progress: Callable[[int], None] = lambda number: None) -> Documents:
    """Return the size and the number of sentences of every document; parts are read in blocks."""
    sizes: list[Numbers] = [np.zeros(0, np.int64)]
    sentences: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    counts = []
    for number, path in enumerate(parts):
        progress(number)
        before = len(sizes)
        for block_sizes, block_sentences in _scan_part(path):
            sizes.append(block_sizes)
            sentences.append(block_sentences)
        counts.append(sum(map(len, sizes[before:])))
    progress(len(parts))
    return Documents(np.concatenate(sizes), np.concatenate(sentences), tuple(counts))


def _scan_part(path: Path) -> Iterator[tuple[Numbers, npt.NDArray[np.int32]]]:
    position = lines = begin = begin_lines = 0
    ends_line = True  # an empty line at the very beginning ends an empty document
    with read_errors(path, "run the stage sentences again"), path.open("rb") as file:
        while raw := file.read(_BLOCK_BYTES):
            ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == _NEWLINE)
            before = np.empty_like(ends)
            before[1:] = ends[:-1]
            before[:1] = -1 if ends_line else -2
            last_lines = np.flatnonzero(before == ends - 1)
            bounds = ends[last_lines] + 1 + position
            line_numbers = last_lines + 1 + lines
            yield (
                np.diff(bounds, prepend=begin),
                (np.diff(line_numbers, prepend=begin_lines) - 1).astype(np.int32),
            )
            if len(bounds):
                begin, begin_lines = int(bounds[-1]), int(line_numbers[-1])
            position += len(raw)
            lines += len(ends)
            ends_line = raw[-1] == _NEWLINE
    if begin != position:
        raise InputError(
            "file-truncated", f"{path} does not end with an empty line: remove it and run the stage sentences again"
        )


def check_documents(count: int, plan: ShardPlan) -> None:
    """Raise UsageError if there are fewer documents than shards; the message says what fits."""
    wanted = plan.training + plan.test
    if count < wanted:
        remedy = f"--shards {count - plan.test}" if count > plan.test else "--shards 1 --test-fraction 0"
        raise UsageError(
            "data-too-small",
            f"{count} document(s) cannot fill {wanted} shards, {plan.training} training, {plan.test} test: {remedy}",
        )


def assign(sentences: npt.NDArray[np.int32], plan: ShardPlan) -> npt.NDArray[np.int32]:
    """Return the number of the shard of each document, test shards after the training shards; -1 for empty ones.

    Documents are split at random into training and test, then each goes to the shard with the fewest sentences so far,
    the longest first: the fullest shard has at most its own shortest document more than any other, and at most 4/3 of
    what the fullest has in the best split (Graham 1969, Bounds on Multiprocessing Timing Anomalies).

    Args:
        sentences: [D] sentences of each document.
        plan: numbers of shards, test fraction, seed.

    Raises:
        UsageError: fewer documents than shards.
    """
    filled = np.flatnonzero(sentences)
    check_documents(len(filled), plan)
    order = filled[np.random.default_rng([plan.seed, 0x5917]).permutation(len(filled))][::-1]
    test_count = _test_documents(sentences[order], plan)
    chosen = np.full(len(sentences), _NO_SHARD, np.int32)
    _balance(np.sort(order[:test_count]), sentences, plan.test, plan.training, chosen)
    _balance(np.sort(order[test_count:]), sentences, plan.training, 0, chosen)
    return chosen


def _test_documents(sentences: npt.NDArray[np.int32], plan: ShardPlan) -> int:
    """Return how many documents, in the drawn order, bring the test split nearest to its share."""
    if not plan.test:
        return 0
    have = np.cumsum(sentences, dtype=np.int64) - sentences
    goal = plan.test_fraction * float(have[-1] + sentences[-1])
    # One more document is taken while that brings the sum nearer to the goal.
    stops = np.flatnonzero((have >= goal) | (sentences > 2 * (goal - have)))
    enough = stops[np.searchsorted(stops, plan.test) :]
    return int(min(enough[0] if len(enough) else len(sentences), len(sentences) - plan.training))


def _balance(
    documents: Numbers, sentences: npt.NDArray[np.int32], shards: int, first: int, chosen: npt.NDArray[np.int32]
) -> None:
    """Hand the documents out to `shards` shards, numbered from `first`, by writing their numbers to `chosen`."""
    order = documents[np.argsort(-sentences[documents], kind="stable")]
    # Load and number in one integer: the least load comes first, of equal loads the lowest number.
    loads = list(range(shards))
    for begin in range(0, len(order), _BLOCK_DOCUMENTS):
        block = order[begin : begin + _BLOCK_DOCUMENTS]
        found = []
        for count in (sentences[block].astype(np.int64) * shards).tolist():
            found.append(loads[0] % shards)
            heapq.heapreplace(loads, loads[0] + count)
        chosen[block] = np.asarray(found, np.int32) + first


def _count(
    documents: Documents, chosen: npt.NDArray[np.int32], plan: ShardPlan, names: Sequence[str]
) -> dict[str, Counts]:
    filled = chosen != _NO_SHARD
    per_shard = np.bincount(chosen[filled], minlength=len(names))
    sentences = np.bincount(chosen[filled], documents.sentences[filled], len(names))
    found = {}
    for number, name in enumerate(names):
        counts = found[name] = Counts()
        for split in ("", "training " if number < plan.training else "test "):
            counts.add(f"{split}documents", int(per_shard[number]))
            counts.add(f"{split}sentences", int(sentences[number]))
        counts.add("shards with one document", int(per_shard[number] == 1), name)
    return found


def _allow_open_files(count: int) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _SPARE_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        needed = needed if most == resource.RLIM_INFINITY else min(needed, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def _write_shards(
    parts: Sequence[Path],
    documents: Documents,
    chosen: npt.NDArray[np.int32],
    names: dict[int, str],
    folder: StageFolder,
    counts: dict[str, Counts],
    progress: Callable[[int], None],
) -> None:
    """Go through the parts once and append the documents of the named shards; rename the files when all are whole."""
    temporary = {number: folder.path / f".{name}.tmp" for number, name in names.items()}
    try:
        with storage_errors(folder.path), ExitStack() as stack:
            files = {number: stack.enter_context(path.open("wb")) for number, path in temporary.items()}
            first = 0
            for number, path in enumerate(parts):
                progress(number)
                last = first + documents.counts[number]
                _hand_out(path, documents.sizes[first:last], chosen[first:last], files)
                first = last
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        for number, name in names.items():
            folder.record(name, counts[name])
            with storage_errors(folder.path / name):
                temporary[number].replace(folder.path / name)
    except BaseException:
        for path in temporary.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    progress(len(parts))


def _hand_out(path: Path, sizes: Numbers, chosen: npt.NDArray[np.int32], files: Mapping[int, BinaryIO]) -> None:
    ends = np.cumsum(sizes)
    begin = first = 0
    with path.open("rb") as source:
        while first < len(sizes):
            last = max(first + 1, int(np.searchsorted(ends, begin + _BLOCK_BYTES, side="right")))
            raw = source.read(int(ends[last - 1]) - begin)
            bounds = [0, *(ends[first:last] - begin).tolist()]
            texts: dict[int, list[bytes]] = {}
            for index, number in enumerate(chosen[first:last].tolist()):
                if number in files:
                    texts.setdefault(number, []).append(raw[bounds[index] : bounds[index + 1]])
            for number, found in texts.items():
                files[number].write(b"".join(found))
            begin, first = int(ends[last - 1]), last
