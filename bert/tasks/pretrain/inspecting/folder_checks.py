"""A folder of shards held against the vocabulary and the metadata beside them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.pretrain.inspecting.invariants import Rules, Specials
from bert.tasks.pretrain.inspecting.shard_checks import ShardFindings, Violations, specials_of_data
from bert.tasks.pretrain.inspecting.shard_files import ShardGroup, read_json
from bert.tasks.pretrain.naming import METADATA_FILE, VOCABULARY_FILE
from common.errors import InputError

_USUAL_PROBABILITY = 0.15
_NAMED_PROBABILITY = re.compile(r"masked_lm_prob_(\d*\.?\d+)")
FOLDER_CHECKS = {
    "names": "every HDF5 file is named <dataset>_{training|test}_<number>.hdf5: loaders read no other",
    "same_widths": "all shards have the same L and P",
    "vocabulary": "vocab.txt is whole, and of the size and content that the metadata say",
    "metadata": "metadata.json is whole, and says that the shards are complete",
    "metadata_lists_shards": "the shards it lists are there, and no others",
    "metadata_counts": "each shard holds the instances it says",
    "metadata_widths": "L and P are what it says",
    "same_settings": "every shard was made with the settings it says",
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
    """What breaks the checks of the folder so far."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Check -> why it cannot be made."""
    notes: list[str] = field(default_factory=list)
    """What was taken from where."""


def context_of(group: ShardGroup, vocab: Path | None) -> FolderContext:
    """Read what lies beside the shards, and decide what their rows are held against.

    Raises:
        InputError: `vocab` is given and is no vocabulary.
    """
    context = FolderContext()
    for path in group.others:
        context.violations.add("names", path.name)
    try:
        context.metadata = read_json(group.folder / METADATA_FILE)
        if context.metadata is None:
            context.skipped |= dict.fromkeys(_OF_METADATA, f"no {METADATA_FILE} beside the shards")
    except InputError as error:
        context.violations.add("metadata", str(error))
        context.skipped |= dict.fromkeys(_OF_METADATA[1:], f"{METADATA_FILE} is damaged")
    known = context.metadata or {}
    if context.metadata is not None and known.get("complete") is False:
        context.violations.add("metadata", f"{METADATA_FILE} says that the preparation is unfinished")
    _read_vocabulary(group.folder, vocab, known, context)
    context.rules = _rules(group, known, context)
    return context


def _read_vocabulary(folder: Path, given: Path | None, known: dict[str, Any], context: FolderContext) -> None:
    path = given or folder / VOCABULARY_FILE
    if given is None and not path.is_file():
        if context.metadata is None:
            context.skipped["vocabulary"] = f"no {VOCABULARY_FILE} beside the shards; give --vocab FILE"
        else:
            context.violations.add("vocabulary", f"{VOCABULARY_FILE} is not there")
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


def _rules(group: ShardGroup, known: dict[str, Any], context: FolderContext) -> Rules:
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
            context.notes.append(f"no masked_lm_prob is known: {_USUAL_PROBABILITY} is taken")
    exact = instances.get("whole_word_mask") is False
    if not exact and not instances:
        context.notes.append("whether whole words were masked is not known: fewer masked tokens than the rule's pass")
    size = size if isinstance(size, int) and size > 0 else None
    return Rules(specials=specials, vocab_size=size, masked_lm_prob=float(probability), exact_count=exact)


def check_folder(group: ShardGroup, found: Sequence[ShardFindings], context: FolderContext) -> None:
    """Hold the shards against each other and against the metadata; adds to the violations of `context`.

    Args:
        group: all shards of the folder.
        found: what was found in those that were inspected.
        context: what lies beside them.
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
