"""The pipeline of pretraining data, stage after stage: sentences, shard, hdf5; what is finished is kept."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.corpus.files import find_inputs, identify
from bert.corpus.generated import generate_corpus
from bert.corpus.sentences import segment, splitter_settings, versions
from bert.corpus.sharding import VERSION as SHARDING
from bert.corpus.sharding import ShardPlan, automatic_shards, check_documents, shard
from bert.data.finished import Finished, Stage, fingerprint_of, recorded
from bert.data.pool import Progress, Workers
from bert.data.vocabulary import (
    VOCABULARY_FILE,
    Vocabulary,
    casing_note,
    load_vocabulary,
    sample_lines,
    train_vocabulary,
)
from bert.tasks.pretrain import hdf5
from bert.tasks.pretrain.config import PrepareConfig
from bert.tasks.pretrain.shards import METADATA_FILE
from common.atomic import remove_left_overs, write_json
from common.locks import locked

VOCABULARY_BYTES = 64 * 2**20
"""A vocabulary is trained on at most this much text, taken evenly from the corpus."""
_DIGESTS_FILE = ".inputs.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSummary:
    """One stage of this call."""

    stage: str
    folder: Path
    """Where its files are."""
    files: int
    kept: bool
    seconds: float
    counts: dict[str, int]
    examples: dict[str, list[str]]
    """The first few files, pages or documents it met something in, by the name of the count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """The shards of one sequence length."""

    seq_len: int
    """Tokens per instance."""
    max_predictions: int
    """Maximum masked positions per instance."""
    folder: Path
    training_instances: int
    test_instances: int
    padding_efficiency: float
    """Real tokens / all tokens, over all shards."""
    shards: int
    """Training and test."""
    shards_kept: int
    """Of these, shards that were finished before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareSummary:
    """What a preparation ended with."""

    dataset: str
    stages: tuple[StageSummary, ...]
    """The stages of this call, in order."""
    lengths: tuple[LengthSummary, ...]
    """The shards of each sequence length."""
    documents: int
    """Documents of the corpus."""
    sentences: int
    """Sentences of the corpus."""
    vocab_size: int
    """Word pieces."""
    vocab_path: Path
    vocab_trained: bool
    notes: tuple[str, ...]
    """What a user should know about the input."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return plain


MOST_UNKNOWN = 0.01
"""Share of [UNK] above which a vocabulary does not fit the text."""
# What was counted -> the sentence that says so; {count} and {names} are filled in.
_SENTENCES = {
    "truncated dumps": "{count} dump(s) are truncated; their complete pages were used: {names}",
    "latin-1 files": "{count} file(s) are not UTF-8 and were read as latin-1: {names}",
    "windows-1252 files": "{count} file(s) are not UTF-8 and were read as windows-1252: {names}",
    "UTF-16 files": "{count} file(s) are UTF-16: {names}",
    "UTF-32 files": "{count} file(s) are UTF-32: {names}",
    "damaged UTF-8 files": "{count} file(s) are damaged UTF-8; some characters became U+FFFD: {names}",
    "empty files": "{count} empty file(s) were skipped: {names}",
    "Gutenberg frames": "the Project Gutenberg header and footer of {count} file(s) were removed",
    "shards with one document": "{count} shard(s) hold a single document, so their random segments come from it too; "
    "use fewer --shards",
    "shards tokenized with tokenizers": "{count} shard(s) were tokenized with tokenizers: install nanotoken for the "
    "same ids in less time",
}


def _notes(stages: Sequence[StageSummary], vocabulary: Vocabulary) -> Iterator[str]:
    casing = casing_note(vocabulary)
    if casing is not None:
        yield casing
    for stage in stages:
        for name, sentence in _SENTENCES.items():
            count = stage.counts.get(name, 0)
            if count:
                examples = stage.examples.get(name, ())
                names = ", ".join(examples) + (", ..." if len(examples) < count else "")
                yield sentence.format(count=f"{count:,}", names=names)
        unknown = stage.counts.get("unknown tokens", 0) / max(1, stage.counts.get("tokens", 0))
        if unknown > MOST_UNKNOWN:
            yield (
                f"{100 * unknown:.1f} % of the tokens are [UNK]: check that the vocabulary fits the language and casing"
            )


def prepare(config: PrepareConfig, progress: Progress = lambda stage, done, total: None) -> PrepareSummary:
    """Run the stages of `config`; what is finished with equal settings and input is kept, the rest made.

    Raises:
        InputError: no text, a file that is none (named), a vocabulary that is none, or the output holds data of other
            settings or input.
        UsageError: fewer documents than shards.
        StorageError: the output cannot be written.
        LockedError: another preparation is writing to the output folder.
    """
    with locked(config.output, "another preparation", "wait for it, or give another --output"):
        remove_left_overs(config.output)
        with Workers(config.workers) as workers:
            return _Preparation(config, workers, progress).run()


class _Preparation:
    """One call of the pipeline."""

    def __init__(self, config: PrepareConfig, workers: Workers, progress: Progress) -> None:
        self.config = config
        self.workers = workers
        self.progress = progress
        self.stages: list[StageSummary] = []

    def run(self) -> PrepareSummary:
        sharded = self._shards(self._sentences())
        vocabulary, path = self._vocabulary(sharded)
        lengths = self._hdf5(sharded, vocabulary)
        return PrepareSummary(
            dataset=self.config.dataset_name,
            stages=tuple(self.stages),
            lengths=lengths,
            documents=sharded.counts.get("documents"),
            sentences=sharded.counts.get("sentences"),
            vocab_size=len(vocabulary.pieces),
            vocab_path=path,
            vocab_trained=self.config.vocab is None,
            notes=tuple(_notes(self.stages, vocabulary)),
        )

    def _run(self, stage: Stage, make: Callable[[], Finished]) -> Finished:
        """Run a stage, or keep what it made before."""
        began = time.perf_counter()
        done = stage.finished()
        finished = done or make()
        self._add(stage.name, finished, began, kept=done is not None)
        return finished

    def _add(self, name: str, finished: Finished, began: float, *, kept: bool) -> None:
        self.stages.append(
            StageSummary(
                stage=name,
                folder=finished.folder,
                files=len(finished.files),
                kept=kept,
                seconds=time.perf_counter() - began,
                counts=dict(finished.counts.numbers),
                examples=dict(finished.counts.names),
            )
        )

    def _sentences(self) -> Finished:
        config = self.config
        folder = config.input
        if folder is None:
            assert config.generate is not None
            folder = config.output / "text"
            generate_corpus(folder, config.seed, config.generate)
        found = find_inputs(folder)
        dumps, texts = (identify(paths, folder, config.output / _DIGESTS_FILE) for paths in (found.dumps, found.texts))
        content = fingerprint_of([[source.name, source.digest] for source in (*dumps, *texts)])
        path = config.output / "sentences" / config.dataset_name
        stage = Stage(path, "sentences", 1, {**splitter_settings(), "versions": versions()}, content)
        return self._run(
            stage, lambda: segment(dumps, texts, stage, self.workers, self.progress, config.keep_truncated)
        )

    def _shards(self, segmented: Finished) -> Finished:
        config = self.config
        count = config.shards or automatic_shards(sum(path.stat().st_size for path in segmented.files))
        plan = ShardPlan(
            training=count, test=config.test_shards(count), test_fraction=config.test_fraction, seed=config.seed
        )
        check_documents(segmented.counts.get("documents"), plan)
        settings = {**dataclasses.asdict(plan), "dataset": config.dataset_name}
        stage = Stage(config.sharded_folder(count), "shard", SHARDING, settings, segmented.fingerprint)
        return self._run(stage, lambda: shard(segmented.files, stage, config.dataset_name, plan, self.progress))

    def _vocabulary(self, sharded: Finished) -> tuple[Vocabulary, Path]:
        """Return the given vocabulary, the one trained before on the same text, or a new one, and where it is."""
        config = self.config
        if config.vocab is not None:
            return load_vocabulary(config.vocab, config.lower_case), config.vocab
        key = fingerprint_of(sharded.fingerprint, config.vocab_size, config.lower_case)
        path = config.output / "vocabulary" / f"{config.dataset_name}-{key[:12]}.vocab"
        if not path.is_file():
            self.progress("training the vocabulary", 0, 1)
            lines = sample_lines(sharded.files, VOCABULARY_BYTES)
            train_vocabulary(lines, config.vocab_size, config.lower_case).save(path)
            self.progress("training the vocabulary", 1, 1)
        return load_vocabulary(path, config.lower_case), path

    def _hdf5(self, sharded: Finished, vocabulary: Vocabulary) -> tuple[LengthSummary, ...]:
        """Make the shards of all sequence lengths, with vocabulary and metadata beside them."""
        config, began = self.config, time.perf_counter()
        names = hdf5.shard_names(sharded.files)
        lengths, kept = [], []
        for seq_len in config.seq_lens:
            instances = config.instances(seq_len)
            settings = {**dataclasses.asdict(instances), "vocabulary": vocabulary.fingerprint}
            stage = Stage(config.hdf5_folder(seq_len), "hdf5", hdf5.VERSION, settings, sharded.fingerprint)
            kept.append(sum(map(stage.is_done, names)))
            vocabulary.save(stage.path / VOCABULARY_FILE)
            lengths.append(hdf5.Length(stage, instances))
            if kept[-1] < len(names):
                self._write_metadata(lengths[-1], vocabulary, names)
        finished = hdf5.make_shards(sharded.files, vocabulary, lengths, self.workers, self.progress)
        summaries = []
        for length, done, kept_here in zip(lengths, finished, kept, strict=True):
            samples = {path.name: _instances(recorded(path)["numbers"]) for path in done.files}
            self._write_metadata(length, vocabulary, names, samples)
            self._add("hdf5", done, began, kept=kept_here == len(names))
            summaries.append(_length_summary(length, done, kept_here))
        return tuple(summaries)

    def _write_metadata(
        self,
        length: hdf5.Length,
        vocabulary: Vocabulary,
        names: Sequence[str],
        samples: Mapping[str, int] | None = None,
    ) -> None:
        metadata = {
            "schema_version": 1,
            "vocab_size": len(vocabulary.pieces),
            "vocab": vocabulary.fingerprint,
            "vocab_trained": self.config.vocab_size if self.config.vocab is None else None,
            "lower_case": self.config.lower_case,
            "instances": dataclasses.asdict(length.config),
            "test_fraction": self.config.test_fraction,
            "settings": length.stage.fingerprint,
            "shards": names,
            "complete": samples is not None,
        }
        write_json(length.stage.path / METADATA_FILE, metadata if samples is None else {**metadata, "samples": samples})


def _instances(numbers: Mapping[str, int]) -> int:
    return sum(numbers.get(f"{split} instances", 0) for split in hdf5.SPLITS)


def _length_summary(length: hdf5.Length, finished: Finished, kept: int) -> LengthSummary:
    training, test = (finished.counts.get(f"{split} instances") for split in hdf5.SPLITS)
    return LengthSummary(
        seq_len=length.config.seq_len,
        max_predictions=length.config.max_predictions,
        folder=finished.folder,
        training_instances=training,
        test_instances=test,
        padding_efficiency=finished.counts.get(hdf5.REAL_TOKENS) / ((training + test) * length.config.seq_len),
        shards=len(finished.files),
        shards_kept=kept,
    )
