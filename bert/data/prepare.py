"""From a folder of text to HDF5 shards, resumable: corpus -> balanced shards -> vocabulary -> instances."""

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.corpus import CorpusReport, generate_corpus, text_files
from bert.data.formatted import ShardText, assign, format_corpus, sample_lines, write_shard_texts
from bert.data.hdf5 import METADATA_FILE
from bert.data.instances import InstanceConfig
from bert.data.lengths import default_max_predictions
from bert.data.pool import ShardJob, ShardResult, run_jobs
from bert.data.vocabulary import Vocabulary, load_vocabulary, train_vocabulary
from common.atomic import storage_errors, write_json
from common.errors import InputError, UsageError
from common.locks import locked

Progress = Callable[[str, int, int], None]
"""Called with a stage, the parts done and the parts in all."""

# Shards made by another version of the pipeline are made again; raise it when the bytes of a shard change.
PIPELINE_VERSION = 1
VOCABULARY_FILE = "vocab.txt"
VOCABULARY_BYTES = 64 * 2**20
"""A vocabulary is trained on at most this much text, taken evenly from the corpus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig:
    """Text in, HDF5 shards of pretraining instances out; a call with the same options continues an interrupted one."""

    output: Path
    """Folder for the shards."""
    input: Path | None = None
    """Folder of .txt files, one book or article each."""
    generate: int | None = None
    """Instead of --input: make up this many bytes of text in OUTPUT/text."""
    dataset: str | None = None
    """Name of the data in file names; default the input folder's."""
    vocab: Path | None = None
    """BERT vocab.txt; default one trained on the text."""
    vocab_size: int = 30522
    """Pieces of a trained vocabulary at most."""
    seq_len: int = 128
    """Tokens per instance."""
    max_predictions: int | None = None
    """Masked positions per instance; default 20 for 128, 80 for 512, else 15 %."""
    masked_lm_prob: float = 0.15
    """Share of the tokens that is masked."""
    short_seq_prob: float = 0.1
    """Share of instances with a random shorter target."""
    dupe_factor: int = 5
    """Times the text is gone through, with other cuts and masks."""
    whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    shards: int = 4
    """Training shards."""
    test_fraction: float = 0.1
    """Share of the sentences kept for test shards."""
    workers: int = 1
    """Processes; the result does not depend on it."""
    seed: int = 12345
    """Seed of the split, the cuts and the masks."""
    lower_case: bool = True
    """Lower-case the text, as bert-*-uncased."""

    def __post_init__(self) -> None:
        """Refuse options no shards can be made with."""
        if (self.input is None) == (self.generate is None):
            raise UsageError("give either --input FOLDER (of .txt files) or --generate BYTES")
        for name in ("shards", "workers"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} {getattr(self, name)} must be at least 1")
        if not 0.0 <= self.test_fraction < 1.0:
            raise UsageError(f"--test-fraction {self.test_fraction} must be in [0, 1)")
        if self.dataset is not None and (not self.dataset or "/" in self.dataset):
            raise UsageError(f"--dataset {self.dataset!r} must be a plain name")
        self.instance_config()

    def instance_config(self) -> InstanceConfig:
        """Return what concerns the instances. Raises UsageError for values no instance can be made with."""
        return InstanceConfig(
            seq_len=self.seq_len,
            max_predictions=self.predictions,
            masked_lm_prob=self.masked_lm_prob,
            short_seq_prob=self.short_seq_prob,
            dupe_factor=self.dupe_factor,
            whole_word_mask=self.whole_word_mask,
            seed=self.seed,
        )

    @property
    def predictions(self) -> int:
        """Masked positions per instance at most."""
        return default_max_predictions(self.seq_len) if self.max_predictions is None else self.max_predictions

    @property
    def test_shards(self) -> int:
        """Test shards: in the proportion of the split, at least one unless there is no test split."""
        return max(1, round(self.shards * self.test_fraction)) if self.test_fraction else 0

    @property
    def corpus_folder(self) -> Path:
        """Where the text is, or will be generated."""
        return self.output / "text" if self.input is None else self.input

    @property
    def dataset_name(self) -> str:
        """Name of the data in folder and file names."""
        return self.dataset or ("generated" if self.input is None else self.input.resolve().name or "text")

    @property
    def folder(self) -> Path:
        """Folder of the shards, named as NVIDIA's scripts do."""
        name = (
            f"hdf5_lower_case_{int(self.lower_case)}_seq_len_{self.seq_len}_max_pred_{self.predictions}"
            f"_masked_lm_prob_{self.masked_lm_prob:g}_random_seed_{self.seed}_dupe_factor_{self.dupe_factor}"
        )
        return self.output / name / self.dataset_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareSummary:
    """What a preparation ended with."""

    folder: Path
    """Folder of the shards."""
    documents: int
    """Documents of the corpus."""
    sentences: int
    """Sentences of the corpus."""
    training_instances: int
    """Instances in training shards."""
    test_instances: int
    """Instances in test shards."""
    seq_len: int
    """Tokens per instance."""
    max_predictions: int
    """Masked positions per instance at most."""
    padding_efficiency: float
    """Real tokens / all tokens, over all shards."""
    vocab_size: int
    """Word pieces."""
    vocab_path: Path
    """The vocabulary beside the shards."""
    vocab_trained: bool
    """It was trained on this text."""
    shards: int
    """Shards, training and test."""
    shards_kept: int
    """Of these, shards that were finished before."""
    notes: tuple[str, ...]
    """What a user should know about the input."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self).items()}


def prepare(config: PrepareConfig, progress: Progress = lambda stage, done, total: None) -> PrepareSummary:
    """Make the shards of `config`; finished shards of equal settings and text are kept, those of others replaced.

    Raises:
        InputError: no text, or a file that is none (named); a vocabulary that is none.
        UsageError: fewer documents than shards, or the text lies where the shards would go.
        StorageError: the output cannot be written.
        LockedError: another preparation is writing to the output folder.
    """
    corpus, folder = config.corpus_folder.resolve(), config.folder.resolve()
    if corpus.is_relative_to(folder):
        raise UsageError(
            f"--output {config.output} would write the shards over the text in {corpus}: give another folder"
        )
    with locked(config.output, "another preparation", "wait for it, or give another --output"):
        return _prepare(config, corpus, folder, progress)


def _prepare(config: PrepareConfig, corpus: Path, folder: Path, progress: Progress) -> PrepareSummary:
    if config.generate is not None:
        generate_corpus(corpus, config.seed, config.generate)
    files = text_files(corpus)
    work = folder / ".work"
    with storage_errors(folder):
        work.mkdir(parents=True, exist_ok=True)
        report = CorpusReport()
        formatted = format_corpus(files, corpus, work / "corpus.txt", report, progress)
        if not report.documents:
            raise InputError(f"{corpus} holds no sentence in its {report.files} .txt file(s): give a folder with text")
        texts = assign(formatted, config.shards, config.test_shards, config.test_fraction, config.seed, work)
        vocabulary = _vocabulary(config, folder, formatted.fingerprint, formatted.path, progress)
        settings = _fingerprint(config, formatted.fingerprint, vocabulary)
        jobs = [_job(config, folder, text, vocabulary, settings) for text in texts]
        replaced = _begin(config, folder, jobs, vocabulary, formatted.fingerprint)
        write_shard_texts(formatted, texts)
    results = run_jobs(jobs, config.workers, progress)
    metadata = _metadata(config, jobs, vocabulary, formatted.fingerprint)
    write_json(folder / METADATA_FILE, {**metadata, "samples": {r.name: r.samples for r in results}, "complete": True})
    shutil.rmtree(work, ignore_errors=True)
    return _summarise(config, folder, report, vocabulary, results, [*report.notes(), *replaced, *_alone(texts)])


def _vocabulary(config: PrepareConfig, folder: Path, corpus: str, lines: Path, progress: Progress) -> Vocabulary:
    """Return the given vocabulary, the one trained before on the same text, or a new one."""
    if config.vocab is not None:
        return load_vocabulary(config.vocab, config.lower_case)
    known = _read_metadata(folder)
    if known.get("corpus") == corpus and known.get("vocab_trained") == config.vocab_size:
        try:
            vocabulary = load_vocabulary(folder / VOCABULARY_FILE, config.lower_case)
        except InputError:
            vocabulary = None
        if vocabulary is not None and vocabulary.fingerprint == known.get("vocab"):
            return vocabulary
    progress("training the vocabulary", 0, 1)
    vocabulary = train_vocabulary(sample_lines(lines, VOCABULARY_BYTES), config.vocab_size, config.lower_case)
    progress("training the vocabulary", 1, 1)
    return vocabulary


def _fingerprint(config: PrepareConfig, corpus: str, vocabulary: Vocabulary) -> str:
    values = [
        PIPELINE_VERSION,
        dataclasses.asdict(config.instance_config()),
        config.shards,
        config.test_fraction,
        corpus,
        vocabulary.fingerprint,
    ]
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _job(config: PrepareConfig, folder: Path, text: ShardText, vocabulary: Vocabulary, settings: str) -> ShardJob:
    return ShardJob(
        text=text.path,
        shard=folder / f"{config.dataset_name}_{text.split}_{text.index}.hdf5",
        stream=(int(text.split == "test"), text.index),
        vocabulary=vocabulary,
        config=config.instance_config(),
        settings=settings,
    )


def _begin(config: PrepareConfig, folder: Path, jobs: list[ShardJob], vocabulary: Vocabulary, corpus: str) -> list[str]:
    """Write vocabulary and metadata, remove shards that are not part of this preparation; return notes on them."""
    planned = {job.shard.name for job in jobs}
    stale = [job.shard for job in jobs if job.shard.exists() and not job.is_done()]
    stale += [path for path in folder.glob(f"{config.dataset_name}_t*_*.hdf5") if path.name not in planned]
    for path in stale:
        path.unlink()
    vocabulary.save(folder / VOCABULARY_FILE)
    write_json(folder / METADATA_FILE, {**_metadata(config, jobs, vocabulary, corpus), "complete": False})
    return [f"{len(stale)} shard(s) of other settings, other text, or damaged were replaced"] if stale else []


def _metadata(config: PrepareConfig, jobs: list[ShardJob], vocabulary: Vocabulary, corpus: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "pipeline_version": PIPELINE_VERSION,
        "vocab_size": len(vocabulary.pieces),
        "vocab": vocabulary.fingerprint,
        "vocab_trained": config.vocab_size if config.vocab is None else None,
        "lower_case": config.lower_case,
        "corpus": corpus,
        "instances": dataclasses.asdict(config.instance_config()),
        "test_fraction": config.test_fraction,
        "settings": jobs[0].settings,
        "shards": [job.shard.name for job in jobs],
    }


def _read_metadata(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _alone(texts: list[ShardText]) -> list[str]:
    alone = sum(len(text.documents) == 1 for text in texts)
    if not alone:
        return []
    return [f"{alone} shard(s) have one document only, so their random segments come from it too; use fewer --shards"]


def _summarise(
    config: PrepareConfig,
    folder: Path,
    report: CorpusReport,
    vocabulary: Vocabulary,
    results: list[ShardResult],
    notes: list[str],
) -> PrepareSummary:
    samples = math.fsum(result.samples for result in results)
    training = sum(result.samples for result in results if result.split == "training")
    return PrepareSummary(
        folder=folder,
        documents=report.documents,
        sentences=report.sentences,
        training_instances=training,
        test_instances=int(samples) - training,
        seq_len=config.seq_len,
        max_predictions=config.predictions,
        padding_efficiency=math.fsum(result.real_tokens for result in results) / (samples * config.seq_len),
        vocab_size=len(vocabulary.pieces),
        vocab_path=folder / VOCABULARY_FILE,
        vocab_trained=config.vocab is None,
        shards=len(results),
        shards_kept=sum(result.kept for result in results),
        notes=tuple(notes),
    )
