"""Prepare feature files for every task: one preparation per folder, atomic files, finished files kept.

A task reads its sources and declares for each what its features depend on (`Source`) and how to make them. Folders,
locks, killed preparations and finished files are handled alike for all tasks. Imports no torch.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from bert.data.columns import Columns
from bert.data.features import SUFFIX, FeatureForm, FeatureSettings
from bert.data.finished import Counts
from bert.data.vocabulary import Vocabulary, casing_note
from common.atomic import remove_left_overs
from common.errors import InputError, UsageError
from common.locks import discard, locked

S = TypeVar("S", bound=FeatureSettings)
PARTS = ".parts"
"""Ending of a folder in which workers of a preparation put what they made."""
MOST_UNKNOWN = 0.05
"""A larger share of [UNK] tokens is reported."""
_MOST_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Source(Generic[S]):
    """Source of one feature file."""

    content: str
    """Hash of it."""
    settings: S
    origin: Mapping[str, Any]
    """Its entry in the JSON file beside the features."""
    make: Callable[[], tuple[Sequence[Columns], Counts]]
    """Makes the parts of the file (bert.data.columns.joined), and counts what is met."""
    beside: str = ""
    """Ending of a further file that is made of the finished features; empty if there is none."""
    make_beside: Callable[[Path], None] = lambda path: None
    """Makes that of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Result for one source."""

    TOLD: ClassVar[tuple[str, ...]]
    """Entries of its JSON in order: fields, and those of _FIELDS."""

    input: Path
    features: Path | None
    """The feature file; None if none was asked for."""
    kept: bool
    """Whether it was finished before."""
    counts: Counts
    seconds: float
    notes: tuple[str, ...]
    """Notes about the data."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: _plain(_FIELDS.get(name, attrgetter(name))(self)) for name in self.TOLD}


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "source": attrgetter("input"),
    "counts": attrgetter("counts.numbers"),
    "examples": attrgetter("counts.names"),
    "left_out": attrgetter("flaws"),
}
"""Fields with other names in the JSON of a summary."""


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return dict(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def keep_or_make(
    form: FeatureForm[S, Any], folder: Path, source: Source[S], vocabulary: Vocabulary, vocab: Path, notes: list[str]
) -> tuple[Path, Counts, bool]:
    """Make the feature file of a source, unless it is finished.

    Args:
        form: of the task.
        folder: where; one preparation at a time is at work in it, others wait.
        source: what to make it of.
        vocabulary: the word pieces.
        vocab: the file they were read from.
        notes: receives the reason why an existing file is created again.

    Returns: the file, its counts, and whether it was finished before.
    """
    path = folder / form.file_name(source.settings, source.content)
    fingerprint = form.fingerprint(source.settings, source.content)
    beside = path.with_suffix(source.beside or SUFFIX)

    with _locked_to_prepare(form.task, folder):
        counts = form.finished(path, fingerprint, notes)
        kept = counts is not None
        if counts is None:
            parts, counts = source.make()
            form.write(path, parts, source.settings, fingerprint, vocabulary, counts)
        if not kept or not beside.is_file():
            source.make_beside(path)
        # What they were made of may lie elsewhere by now.
        form.keep_beside(path, source.origin, vocab, source.settings, counts)
    return path, counts, kept


def check_inputs(inputs: Sequence[Path], split: str | None, what: str) -> None:
    """Refuse no input, and one split for several.

    Args:
        inputs: files, as --input gives them.
        split: as --split gives it.
        what: an --input that is meant, in words.
    """
    if not inputs:
        raise UsageError("option-missing", f"give --input {what}")
    if split is not None and len(inputs) > 1:
        raise UsageError(
            "option-conflict", f"--split {split} needs a single --input, not {len(inputs)}: run them one by one"
        )


def split_by_name(path: Path, splits: Mapping[str, Sequence[str]]) -> str:
    """Return what a file is for by its name.

    Args:
        path: the file.
        splits: the words that tell each of them.
    """
    name = path.name.lower()
    found = [split for split, words in splits.items() if any(word in name for word in words)]
    if len(found) == 1:
        return found[0]
    why = f"it contains {' and '.join(found)}" if found else "it contains no word for a split"
    words = "; ".join(f"{' or '.join(some)} for {split}" for split, some in splits.items())
    raise UsageError(
        "option-missing",
        f"cannot derive the split from the name {path.name}: {why} ({words}); give "
        f"{' or '.join(f'--split {split}' for split in splits)}, or rename the file",
    )


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Remove a folder that a failed preparation created."""
    existed = folder.exists()
    try:
        yield
    except (InputError, UsageError):
        if not existed:
            discard(folder)
        raise


@contextmanager
def _locked_to_prepare(task: str, folder: Path) -> Iterator[None]:
    """Hold a folder while features are made in it, and remove what killed preparations left there; it waits.

    One that cannot be written is read without being held.
    """
    if folder.exists() and not os.access(folder, os.W_OK):
        yield
        return
    with locked(folder, "another preparation", "wait for it, or give another --output", wait=True):
        remove_left_overs(folder)
        for parts in folder.glob(f".{task}-*{PARTS}"):
            shutil.rmtree(parts, ignore_errors=True)
        yield


def other_files(form: FeatureForm[S, Any], path: Path, settings: S) -> list[str]:
    """Return notes on other features of the same split in the folder."""
    group = form.kind(settings)[0] if form.has_groups else None
    others = [other.name for other in form.files_in(path.parent, settings.split, group) if other != path]
    if not others:
        return []
    return [f"{path.parent} also holds other features of this split ({others[0]}): name the file to use"]


def vocabulary_notes(vocabulary: Vocabulary) -> list[str]:
    """Return notes on a vocabulary that does not fit the casing that was asked for, and on a slow tokenizer if used."""
    used = vocabulary.tokenizer.note if "tokenizer" in vars(vocabulary) else None
    return [note for note in (casing_note(vocabulary), used) if note is not None]


def unknown_tokens(counts: Counts, unknown: str, tokens: str, vocab: Path, what: str) -> list[str]:
    """Return notes on text that a vocabulary does not know.

    Args:
        counts: counts by name.
        unknown: the name of its count of [UNK].
        tokens: that of all tokens.
        vocab: the vocabulary's file.
        what: the tokens, in words.
    """
    share = counts.get(unknown) / max(1, counts.get(tokens))
    if share <= MOST_UNKNOWN:
        return []
    return [f"{100 * share:.0f} % of the {what} are [UNK]: check that {vocab} fits the language and casing"]


def examples_of(counts: Counts, name: str) -> Sequence[str]:
    """Return the first few examples of a count."""
    return counts.names.get(name, [])[:_MOST_EXAMPLES]
