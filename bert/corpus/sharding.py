"""Cut sentence text into shards: documents are split at random into training and test, then balanced by sentences.

Of each document only the number of its sentences is kept, so that millions of them fit into memory; the text goes
through in one sequential pass that appends each document to its shard.
"""

import heapq
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from bert.data.finished import Counts, Finished, Stage, make_file
from bert.data.pool import Progress
from common.atomic import storage_errors
from common.errors import UsageError
from common.reading import read_errors

SHARD_BYTES = 32 * 2**20
"""Sentence text per training shard where no number of shards is given."""
FEWEST_SHARDS = 4
"""Training shards where no number is given: fewer would leave workers and ranks without one."""
VERSION = 1
"""Raised when the same input gives other bytes."""
_BLOCK_DOCUMENTS = 2**16

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

    def names(self, dataset: str) -> list[str]:
        """Return the file names: the training shards, then the test shards."""
        counts = (("training", self.training), ("test", self.test))
        return [f"{dataset}_{split}_{index}.txt" for split, count in counts for index in range(count)]


def automatic_shards(bytes_of_text: int) -> int:
    """Return the number of training shards for so much sentence text: one for each 32 MiB, at least 4."""
    return max(FEWEST_SHARDS, -(-bytes_of_text // SHARD_BYTES))


def shard(parts: Sequence[Path], stage: Stage, dataset: str, plan: ShardPlan, progress: Progress) -> Finished:
    """Write `<dataset>_{training|test}_<i>.txt` of parts of sentence text; documents keep their order inside a shard.

    Each part is read twice; a run that was killed begins again. Raises InputError, StorageError.
    """
    sentences = []
    for number, path in enumerate(parts):
        progress("shard", number, 2 * len(parts))
        sentences.append(np.array([text.count(b"\n") + 1 for text in _documents(path)], np.int32))
    per_document = np.concatenate(sentences)
    chosen = assign(per_document, plan)
    names = plan.names(dataset)
    for left in stage.path.glob(".shards-*"):  # of a run that was killed
        shutil.rmtree(left)
    with storage_errors(stage.path), TemporaryDirectory(dir=stage.path, prefix=".shards-", suffix=".tmp") as folder:
        last = 0
        for number, path in enumerate(parts):
            progress("shard", len(parts) + number, 2 * len(parts))
            first, last = last, last + len(sentences[number])
            _hand_out(path, chosen[first:last], Path(folder), names)
        for number, name in enumerate(names):
            mine = per_document[chosen == number]
            split = "training" if number < plan.training else "test"
            counts = Counts({"documents": len(mine), "sentences": int(mine.sum()), f"{split} documents": len(mine)})
            counts.add("shards with one document", int(len(mine) == 1), name)
            make_file(stage.path / name, partial(_moved, Path(folder) / name, counts))
    progress("shard", 2 * len(parts), 2 * len(parts))
    return stage.finish(names)


def _moved(whole: Path, counts: Counts, path: Path) -> Counts:
    whole.replace(path)
    return counts


def _documents(path: Path) -> list[bytes]:
    with read_errors(path, "remove it and run again"):
        return path.read_bytes().split(b"\n\n")[:-1]


def _hand_out(path: Path, chosen: npt.NDArray[np.int32], folder: Path, names: Sequence[str]) -> None:
    texts: dict[int, list[bytes]] = {}
    for text, number in zip(_documents(path), chosen.tolist(), strict=True):
        texts.setdefault(number, []).append(text)
    for number, some in texts.items():
        # Opened anew for each part: there may be more shards than files may be open.
        with (folder / names[number]).open("ab") as file:
            file.write(b"\n\n".join([*some, b""]))


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
    """Return the number of the shard of each document, test shards after the training shards.

    Documents are split at random into training and test, then each goes to the shard with the fewest sentences so far,
    the longest first: the fullest shard has at most its own shortest document more than any other, and at most 4/3 of
    what the fullest has in the best split (Graham 1969, Bounds on Multiprocessing Timing Anomalies). `sentences` are
    those of each document [D], of which there are enough (check_documents).
    """
    order = np.random.default_rng([plan.seed, 0x5917]).permutation(len(sentences))[::-1]
    test_count = _test_documents(sentences[order], plan)
    chosen = np.empty(len(sentences), np.int32)
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
