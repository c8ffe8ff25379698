"""A folder of HDF5 shards inspected: every invariant of the format checked, its statistics, a few decoded instances.

The work is done shard by shard, in blocks of rows and in several processes: memory does not grow with the data, and
the result does not depend on the number of processes.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert.data.pool import Progress, Workers
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary
from bert.tasks.pretrain.folder import Block, ShardGroup, read_metadata, shard_groups, split_of
from bert.tasks.pretrain.inspecting.figures import SplitFigures, Tally, figures_of
from bert.tasks.pretrain.inspecting.rows import (
    FILE_CHECKS,
    NEEDS_BINS,
    NEEDS_SIZE,
    NEEDS_SPECIALS,
    ROW_CHECKS,
    Integers,
    Rules,
    ShardFindings,
    ShardWork,
    Specials,
    Violations,
    inspect_shard,
    layout_of,
    specials_of_data,
)
from bert.tasks.pretrain.shards import COLUMNS, METADATA_FILE, opened
from common.errors import InputError, UsageError

_USUAL_PROBABILITY = 0.15
_NAMED_PROBABILITY = re.compile(r"masked_lm_prob_(\d*\.?\d+)")
FOLDER_CHECKS = {
    "names": "every HDF5 file is named <dataset>_{training|test}_<number>.hdf5, as loaders expect",
    "same_widths": "all shards have the same L and P",
    "vocabulary": "vocab.txt is complete and has the size and content recorded in the metadata",
    "metadata": "metadata.json is intact and marks the shards as complete",
    "metadata_lists_shards": "the folder has exactly the shards that metadata.json lists",
    "metadata_counts": "each shard has the number of instances in metadata.json",
    "metadata_widths": "L and P are those in metadata.json",
    "same_settings": "every shard was made with the settings in metadata.json",
}
"""Name -> what must hold."""
_OF_METADATA = ("metadata", "metadata_lists_shards", "metadata_counts", "metadata_widths", "same_settings")


@dataclass(slots=True)
class FolderContext:
    """What is known of a folder before its rows are read."""

    metadata: dict[str, Any] | None = None
    """What metadata.json says; None = there is none, or it is damaged."""
    vocabulary: Vocabulary | None = None
    """The given vocabulary, or the one beside the shards."""
    rules: Rules = field(
        default_factory=lambda: Rules(
            specials=None, vocab_size=None, masked_lm_prob=_USUAL_PROBABILITY, exact_count=False
        )
    )
    violations: Violations = field(default_factory=Violations)
    """Violations of the folder's checks so far."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Check -> why it cannot be made."""
    notes: list[str] = field(default_factory=list)
    """Notes on the sources of assumptions."""


def context_of(group: ShardGroup, vocab: Path | None) -> FolderContext:
    """Read what is beside the shards, and decide what their rows are checked against.

    Raises:
        InputError: `vocab` is given and is not a vocabulary.
    """
    context = FolderContext()
    for path in group.others:
        context.violations.add("names", path.name)
    try:
        context.metadata = read_metadata(group.folder)
        if context.metadata is None:
            context.skipped |= dict.fromkeys(_OF_METADATA, f"no {METADATA_FILE} beside the shards")
    except InputError as error:
        context.violations.add("metadata", str(error))
        context.skipped |= dict.fromkeys(_OF_METADATA[1:], f"{METADATA_FILE} is damaged")
    known = context.metadata or {}
    if context.metadata is not None and known.get("complete") is False:
        context.violations.add("metadata", f"{METADATA_FILE} says that the preparation is unfinished")
    _read_vocabulary(group.folder, vocab, known, context)
    context.rules = _rules_of(group, known, context)
    return context


def _read_vocabulary(folder: Path, given: Path | None, known: dict[str, Any], context: FolderContext) -> None:
    path = given or folder / VOCABULARY_FILE
    if given is None and not path.is_file():
        if context.metadata is None:
            context.skipped["vocabulary"] = f"no {VOCABULARY_FILE} beside the shards; give --vocab FILE"
        else:
            context.violations.add("vocabulary", f"{VOCABULARY_FILE} is missing")
        return
    try:
        found = load_vocabulary(path, known.get("lower_case") is not False)
    except InputError as error:
        if given is not None:
            raise
        context.violations.add("vocabulary", str(error))
        return
    context.vocabulary = found
    size, fingerprint = known.get("vocab_size"), known.get("vocab")
    if size is not None and size != len(found.pieces):
        context.violations.add("vocabulary", f"{path.name} has {len(found.pieces)} pieces, {METADATA_FILE} says {size}")
    elif fingerprint is not None and fingerprint != found.fingerprint:
        context.violations.add("vocabulary", f"{path.name} has other pieces than {METADATA_FILE} says")


def _rules_of(group: ShardGroup, known: dict[str, Any], context: FolderContext) -> Rules:
    specials, size = None, known.get("vocab_size")
    if context.vocabulary is not None:
        pieces = context.vocabulary
        unknown = pieces.ids.get("[UNK]")
        specials, size = Specials(pieces.cls_id, pieces.sep_id, pieces.mask_id, unknown), len(pieces.pieces)
    else:
        specials = next((found for path in group.shards if (found := specials_of_data(path))), None)
        if specials is not None:
            context.notes.append(
                f"no vocabulary: the rows themselves show [CLS] {specials.cls_id}, [SEP] {specials.sep_id}, "
                f"[MASK] {specials.mask_id}; give --vocab FILE to be sure"
            )
    instances = known.get("instances")
    instances = instances if isinstance(instances, dict) else {}
    probability = instances.get("masked_lm_prob")
    if not isinstance(probability, int | float) or not 0 <= probability <= 1:
        named = [_NAMED_PROBABILITY.search(parent.name) for parent in (group.folder, *group.folder.parents)]
        probability = next((float(match[1]) for match in named if match), None)
        if probability is None:
            probability = _USUAL_PROBABILITY
            context.notes.append(f"masked_lm_prob is unknown: {_USUAL_PROBABILITY} is assumed")
    exact = instances.get("whole_word_mask") is False
    if not exact and not instances:
        context.notes.append(
            "unknown whether whole words were masked: fewer masked tokens than the formula gives are accepted"
        )
    size = size if isinstance(size, int) and size > 0 else None
    return Rules(specials=specials, vocab_size=size, masked_lm_prob=float(probability), exact_count=exact)


def check_folder(group: ShardGroup, found: Sequence[ShardFindings], context: FolderContext) -> None:
    """Check the shards against each other and against the metadata; adds to the violations of `context`.

    Args:
        group: all shards of the folder.
        found: what was found in those that were inspected.
        context: what is beside them.
    """
    whole = [one for one in found if one.seq_len is not None]
    for one in whole:
        widths, first = (one.seq_len, one.max_predictions), (whole[0].seq_len, whole[0].max_predictions)
        if widths != first:
            say = f"{one.path.name} has L = {widths[0]}, P = {widths[1]}, {whole[0].path.name} {first[0]}, {first[1]}"
            context.violations.add("same_widths", say)
    if context.metadata is None:
        return
    _check_names(group, context, context.metadata)
    _check_counts(found, context, context.metadata)
    instances = context.metadata.get("instances")
    for key in ("seq_len", "max_predictions"):
        said = instances.get(key) if isinstance(instances, dict) else None
        if said is None:
            context.skipped["metadata_widths"] = f"{METADATA_FILE} does not say"
            continue
        for one in whole:
            if getattr(one, key) != said:
                context.violations.add("metadata_widths", f"{one.path.name}: {key} {getattr(one, key)}, not {said}")
    settings = context.metadata.get("settings")
    if not isinstance(settings, str):
        context.skipped["same_settings"] = f"{METADATA_FILE} does not say"
        return
    for one in found:
        if one.instances is not None and one.settings != settings:
            context.violations.add("same_settings", one.path.name)


def _check_names(group: ShardGroup, context: FolderContext, metadata: dict[str, Any]) -> None:
    listed = metadata.get("shards")
    if not isinstance(listed, list):
        context.violations.add("metadata_lists_shards", f"{METADATA_FILE} lists none")
        return
    there = [path.name for path in group.shards]
    for name in listed:
        if name not in there:
            context.violations.add("metadata_lists_shards", f"{name} is listed and not there")
    for name in there:
        if name not in listed:
            context.violations.add("metadata_lists_shards", f"{name} is there and not listed")


def _check_counts(found: Sequence[ShardFindings], context: FolderContext, metadata: dict[str, Any]) -> None:
    samples = metadata.get("samples")
    if not isinstance(samples, dict):
        context.skipped["metadata_counts"] = f"{METADATA_FILE} does not say"
        return
    for one in found:
        said = samples.get(one.path.name)
        if one.instances is not None and said != one.instances:
            text = "no number" if said is None else said
            context.violations.add("metadata_counts", f"{one.path.name} holds {one.instances}, {METADATA_FILE}: {text}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One decoded instance; a predicted position is [shown:hidden]: [MASK:fox], same [fox:fox], other [cat:fox]."""

    shard: str
    row: int
    tokens: int
    """Real tokens."""
    masked: int
    label: int
    """1 = segment B is random."""
    first: str
    second: str


def decode_row(path: Path, row: int, pieces: Sequence[str] | None, specials: Specials | None) -> Sample:
    """Read and decode one row of a shard.

    Args:
        path: the shard, with the datasets and shapes of the format.
        row: which row.
        pieces: word pieces by id; None shows the ids themselves.
        specials: ids of the special pieces.

    Raises:
        InputError: the file cannot be read.
    """
    with opened(path) as file:
        block: Block = {column: file[column][row : row + 1] for column in COLUMNS}
    layout = layout_of(block)
    length, switch = int(layout.lengths[0]), int(layout.switches[0])
    hidden = {int(column): int(layout.original[0, column]) for column in layout.columns}
    ids = layout.ids[0]
    mask_id = None if specials is None else specials.mask_id
    texts = [_join(ids, range(begin, end), hidden, pieces, mask_id) for begin, end in _segments(length, switch)]
    label = int(block["next_sentence_labels"][0])
    return Sample(path.name, row, length, int(layout.counts[0]), label, texts[0], texts[1])


def _segments(length: int, switch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Columns of A and B, without [CLS] and [SEP]."""
    return (1, max(1, switch - 1)), (switch, max(switch, length - 1))


def _join(
    ids: Integers, columns: range, hidden: Mapping[int, int], pieces: Sequence[str] | None, mask_id: int | None
) -> str:
    """Word pieces with `##` joined to the piece before; a predicted one keeps its `##`."""
    text = ""
    for column in columns:
        own = _piece(int(ids[column]), pieces)
        before = hidden.get(column)
        whole = own if before is None else _piece(before, pieces)
        if before is not None:
            shown = "MASK" if np.equal(ids[column], -1 if mask_id is None else mask_id) else own
            part = f"[{shown}:{whole}]"
        else:
            part = own.removeprefix("##") if text else own
        text += part if whole.startswith("##") and text else f" {part}" if text else part
    return text


def _piece(number: int, pieces: Sequence[str] | None) -> str:
    if pieces is None:
        return str(number)
    return pieces[number] if 0 <= number < len(pieces) else f"<{number}>"


SPLITS = ("training", "test")
CHECKS = {**FOLDER_CHECKS, **FILE_CHECKS, **ROW_CHECKS}
"""Name -> what must hold."""


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant of the format."""

    name: str
    says: str
    violations: int
    """Files, datasets or rows that break it."""
    first: str | None
    """Where the first violation is, and what it is; None without one."""
    skipped: str | None
    """Why it could not be checked; None if it was."""

    @property
    def status(self) -> str:
        """ "passed", "failed" or "skipped"."""
        return "failed" if self.violations else "skipped" if self.skipped is not None else "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """One folder of shards."""

    folder: Path
    splits: tuple[SplitFigures, ...]
    """Figures of the splits that hold instances, training first."""
    checks: tuple[Check, ...]
    """All invariants, in a fixed order."""
    samples: tuple[Sample, ...]
    """Instances chosen at random, decoded."""
    test_in_training: int | None
    """Test instances that are also training instances, masks included; None if a split is not read or too large."""
    vocab_size: int | None
    """Word pieces; None = not known."""
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """No check failed."""
        return all(check.status != "failed" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = {**dataclasses.asdict(self), "folder": str(self.folder), "passed": self.passed}
        for values, check in zip(plain["checks"], self.checks, strict=True):
            values["status"] = check.status
        return plain


def inspect(
    folder: Path,
    workers: Workers,
    *,
    split: str = "both",
    seq_len: int | None = None,
    vocab: Path | None = None,
    samples: int = 3,
    seed: int = 0,
    progress: Progress = lambda stage, done, total: None,
) -> list[Inspection]:
    """Inspect each folder of shards at or below `folder`.

    Args:
        folder: the shards' own folder, or one above one or several preparations.
        workers: processes to share the shards between.
        split: "training", "test" or "both".
        seq_len: only preparations of this length.
        vocab: vocabulary of shards that have none beside them.
        samples: instances to decode from each folder.
        seed: of their choice.
        progress: called with the number of shards done.

    Raises:
        InputError: no such folder, no shard in it (of that split, of that length), or `vocab` is not a vocabulary.
        UsageError: an option without meaning.
    """
    if split not in (*SPLITS, "both"):
        raise UsageError("option-choice", f"split {split!r} must be training, test or both")
    if samples < 0 or seed < 0:
        raise UsageError("option-value", f"--samples {samples} and --seed {seed} must not be negative")
    wanted = SPLITS if split == "both" else (split,)
    groups = [group for group in shard_groups(folder, seq_len) if any(group.of_split(name) for name in wanted)]
    if not groups:
        raise InputError("data-missing", f"{folder} holds no {split} shards: give another --split")
    contexts = [context_of(group, vocab) for group in groups]
    chosen = [[path for name in wanted for path in group.of_split(name)] for group in groups]
    work = [ShardWork(path, context.rules) for paths, context in zip(chosen, contexts, strict=True) for path in paths]
    results = workers.map(inspect_shard, work)
    inspections, done = [], 0
    for group, context, paths in zip(groups, contexts, chosen, strict=True):
        gathered = _Gathered(context)
        for _ in paths:
            gathered.add(next(results))
            done += 1
            progress("inspect", done, len(work))
        inspections.append(_conclude(group, gathered, samples, seed))
    return inspections


class _Gathered:
    """What was found in the shards of a folder, added up as they come: only one tally per split is kept."""

    def __init__(self, context: FolderContext) -> None:
        self.context = context
        self.found: list[ShardFindings] = []
        self.violations = Violations()
        self.tallies: dict[str, Tally] = {}
        self.counted: dict[str, list[ShardFindings]] = {}

    def add(self, findings: ShardFindings) -> None:
        split, tally = split_of(findings.path), findings.tally
        # Rows of another width cannot be added up: the check same_widths names the shard.
        findings = dataclasses.replace(findings, tally=None)
        self.found.append(findings)
        self.violations.merge(findings.violations)
        if tally is None:
            return
        known = next(iter(self.tallies.values()), tally)
        if len(known.lengths) != len(tally.lengths):
            return
        self.counted.setdefault(split, []).append(findings)
        if split in self.tallies:
            self.tallies[split].merge(tally)
        else:
            self.tallies[split] = tally


def _conclude(group: ShardGroup, gathered: _Gathered, samples: int, seed: int) -> Inspection:
    context, tallies = gathered.context, gathered.tallies
    check_folder(group, gathered.found, context)
    violations = context.violations
    violations.merge(gathered.violations)
    rules = context.rules
    pieces = None if context.vocabulary is None else context.vocabulary.pieces
    splits = tuple(
        figures_of(
            split,
            tallies[split],
            len(gathered.counted[split]),
            sum(one.file_bytes for one in gathered.counted[split]),
            max_predictions=max(one.max_predictions or 0 for one in gathered.counted[split]),
            bins=max(one.bins for one in gathered.counted[split]),
            specials=rules.specials,
            vocab_size=rules.vocab_size,
            pieces=pieces,
        )
        for split in SPLITS
        if split in tallies
    )
    both = len(tallies) == len(SPLITS)
    leaked = tallies["test"].shared_with(tallies["training"]) if both else None
    counted = [one for split in SPLITS for one in gathered.counted.get(split, [])]
    return Inspection(
        folder=group.folder,
        splits=splits,
        checks=_checks(gathered, violations),
        samples=_samples(counted, samples, seed, context),
        test_in_training=leaked,
        vocab_size=rules.vocab_size,
        notes=(*context.notes, *_doubts(splits, leaked)),
    )


def _checks(gathered: _Gathered, violations: Violations) -> tuple[Check, ...]:
    context = gathered.context
    skipped = dict(context.skipped)
    if context.rules.specials is None:
        skipped |= dict.fromkeys(NEEDS_SPECIALS, "the special ids are unknown; give --vocab FILE")
    if context.rules.vocab_size is None:
        skipped |= dict.fromkeys(NEEDS_SIZE, "the size of the vocabulary is unknown; give --vocab FILE")
    if not any(one.bins for one in gathered.found):
        skipped |= dict.fromkeys((*NEEDS_BINS, "bins_add_up"), "the rows are not binned")
    if not gathered.tallies:
        skipped |= {name: "no rows could be read" for name in ROW_CHECKS if name not in skipped}
    return tuple(
        Check(name, says, violations.counts.get(name, 0), violations.firsts.get(name), skipped.get(name))
        for name, says in CHECKS.items()
    )


def _samples(counted: Sequence[ShardFindings], number: int, seed: int, context: FolderContext) -> tuple[Sample, ...]:
    sizes = np.array([one.instances for one in counted], dtype=np.int64)
    total = int(sizes.sum())
    if not total or not number:
        return ()
    chosen = np.random.default_rng(seed).choice(total, min(number, total), replace=False)
    ends = np.cumsum(sizes)
    pieces = None if context.vocabulary is None else context.vocabulary.pieces
    samples = []
    for index in np.sort(chosen).tolist():
        place = int(np.searchsorted(ends, index, side="right"))
        row = index - int(ends[place] - sizes[place])
        samples.append(decode_row(counted[place].path, row, pieces, context.rules.specials))
    return tuple(samples)


def _doubts(splits: Sequence[SplitFigures], leaked: int | None) -> list[str]:
    """Notes on valid but suspicious data."""
    notes = []
    for figures in splits:
        for share, what in (
            (figures.shown_mask, "show [MASK]"),
            (figures.shown_same, "show their own piece"),
            (figures.shown_random, "show another piece"),
        ):
            if share is None or share.by_chance is not False:
                continue
            if share.interval and share.value is not None and share.expected is not None:
                low, high = share.interval
                notes.append(
                    f"{figures.split}: {100 * share.value:.2f} % of the masked positions {what}; chance explains "
                    f"{100 * low:.2f} to {100 * high:.2f} % for the intended {100 * share.expected:.0f} %"
                )
        random = figures.random_second
        if random.interval is not None and (random.interval[1] < 0.5 or random.interval[0] > 0.9):
            notes.append(
                f"{figures.split}: {100 * random.count / random.total:.1f} % of the second segments are random; half "
                "or slightly more is usual"
            )
        if figures.duplicates is not None and figures.duplicates > 0.01 * figures.instances:
            notes.append(
                f"{figures.split}: {100 * figures.duplicates / figures.instances:.1f} % of the instances equal an "
                "earlier one, including masks: the text repeats, or a shard is duplicated"
            )
    if leaked:
        notes.append(f"{leaked:,} test instances are also training instances: testing on them measures memorization")
    return notes
