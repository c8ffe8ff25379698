"""The stages that make instances: a vocabulary, tokens, and the HDF5 shards of each sequence length."""

import dataclasses
from pathlib import Path
from typing import Any

from bert.data.stages import Counts, Finished, StageFolder, fingerprint_of, recorded_counts
from bert.data.vocabulary import Vocabulary, load_vocabulary, sample_lines, train_vocabulary
from bert.tasks.pretrain.naming import METADATA_FILE, VOCABULARY_FILE
from bert.tasks.pretrain.preparation.config import PrepareConfig
from bert.tasks.pretrain.preparation.runner import StageRunner
from bert.tasks.pretrain.preparation.summary import LengthSummary
from common.atomic import write_json
from common.errors import InputError

VOCABULARY_BYTES = 64 * 2**20
"""A vocabulary is trained on at most this much text, taken evenly from the corpus."""


def vocabulary(runner: StageRunner, sharded: Finished) -> tuple[Vocabulary, Path]:
    """Return the given vocabulary, the one trained before on the same text, or a new one, and where it is.

    Raises:
        InputError: the given file is no vocabulary.
        UsageError: a vocabulary of the wanted size cannot be trained on this text.
    """
    config = runner.config
    if config.vocab is not None:
        return load_vocabulary(config.vocab, config.lower_case), config.vocab
    key = fingerprint_of(sharded.fingerprint, config.vocab_size, config.lower_case)
    path = config.stage_folder("tokens").parent / f"{config.dataset_name}-{key[:12]}.vocab"
    if not path.is_file():
        runner.progress("training the vocabulary", 0, 1)
        train_vocabulary(sample_lines(sharded.files, VOCABULARY_BYTES), config.vocab_size, config.lower_case).save(path)
        runner.progress("training the vocabulary", 1, 1)
    return load_vocabulary(path, config.lower_case), path


def tokens(runner: StageRunner, sharded: Finished, pieces: Vocabulary) -> list[Path]:
    """Run the stage tokens; return its files, of which a part (`--part`) has made its own."""
    from bert.tasks.pretrain.tokens import SUFFIX, VERSION, tokenize

    config = runner.config
    path = config.stage_folder("tokens")
    runner.run(
        "tokens",
        VERSION,
        path,
        {"vocabulary": pieces.fingerprint},
        sharded.fingerprint,
        lambda folder: tokenize(sharded.files, folder, pieces, runner.workers, config.share, runner.progress),
    )
    return [path / f"{shard.stem}{SUFFIX}" for shard in sharded.files]


def hdf5(runner: StageRunner, sharded: Finished, pieces: Vocabulary, files: list[Path], seq_len: int) -> LengthSummary:
    """Run the stage hdf5 for one sequence length, with vocabulary and metadata beside the shards."""
    from bert.tasks.pretrain.hdf5 import SUFFIX, VERSION, make_shards

    config = runner.config
    path, wanted = config.hdf5_folder(seq_len), config.instances(seq_len)
    settings = {
        **dataclasses.asdict(wanted),
        "length_bins": config.length_bins,
        "gzip_level": config.gzip_level,
        "vocabulary": pieces.fingerprint,
    }
    names = [f"{file.stem}{SUFFIX}" for file in files]
    kept: list[str] = []

    def make(folder: StageFolder) -> Finished | None:
        kept.extend(name for name in names if _is_done(path / name, folder.fingerprint))
        pieces.save(path / VOCABULARY_FILE)
        begun = _metadata(config, seq_len, pieces, folder, names)
        if len(kept) < len(names):
            write_json(path / METADATA_FILE, begun)
        bins, level = config.length_bins, config.gzip_level
        done = make_shards(
            files, folder, pieces, wanted, runner.workers, config.share, runner.progress, bins, gzip_level=level
        )
        if done is not None:
            samples = {name: _instances(folder.recorded(name)) for name in names}
            write_json(path / METADATA_FILE, {**begun, "samples": samples, "complete": True})
        return done

    runner.run("hdf5", VERSION, path, settings, sharded.fingerprint, make, companions=(METADATA_FILE, VOCABULARY_FILE))
    return _summarise(config, seq_len, path, names, kept)


def _metadata(
    config: PrepareConfig, seq_len: int, pieces: Vocabulary, folder: StageFolder, names: list[str]
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "vocab_size": len(pieces.pieces),
        "vocab": pieces.fingerprint,
        "vocab_trained": config.vocab_size if config.vocab is None else None,
        "lower_case": config.lower_case,
        "instances": dataclasses.asdict(config.instances(seq_len)),
        "length_bins": config.length_bins,
        "test_fraction": config.test_fraction,
        "settings": folder.fingerprint,
        "shards": names,
        "complete": False,
    }


def _instances(counts: Counts) -> int:
    from bert.tasks.pretrain.hdf5 import instances_of

    return counts.get(instances_of("training")) + counts.get(instances_of("test"))


def _is_done(path: Path, fingerprint: str) -> bool:
    from bert.tasks.pretrain.shards import check_shard

    try:
        return check_shard(path).settings == fingerprint
    except InputError:
        return False


def _summarise(config: PrepareConfig, seq_len: int, path: Path, names: list[str], kept: list[str]) -> LengthSummary:
    from bert.tasks.pretrain.hdf5 import REAL_TOKENS, instances_of

    done = [name for name in names if (path / name).is_file()]
    counts = Counts()
    for name in done:
        counts.merge(recorded_counts(path, name).to_json())
    training, test = (counts.get(instances_of(split)) for split in ("training", "test"))
    tokens = (training + test) * seq_len
    return LengthSummary(
        seq_len=seq_len,
        max_predictions=config.predictions(seq_len),
        folder=path,
        training_instances=training,
        test_instances=test,
        padding_efficiency=counts.get(REAL_TOKENS) / tokens if tokens else None,
        shards=len(done),
        shards_kept=len(kept),
    )
