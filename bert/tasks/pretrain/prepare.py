"""The pipeline of pretraining data, stage after stage: sentences, shard, hdf5; what is finished is kept."""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.corpus.files import find_inputs, identify
from bert.corpus.sentences import segment, stage_settings
from bert.corpus.sharding import VERSION as SHARDING
from bert.corpus.sharding import ShardPlan, automatic_shards, check_documents, shard
from bert.corpus.texts import generate_corpus
from bert.data.finished import Finished, Stage, fingerprint_of
from bert.data.pool import Progress, Workers
from bert.data.synthetic import default_max_predictions
from bert.data.vocabulary import (
    VOCABULARY_FILE,
    Vocabulary,
    load_vocabulary,
    sample_lines,
    train_vocabulary,
    vocabulary_notes,
)
from bert.model.config import BERT_UNCASED_VOCAB_SIZE
from bert.tasks.pretrain import hdf5
from bert.tasks.pretrain.masking import SPECIAL_TOKENS, InstanceConfig
from bert.tasks.pretrain.shards import METADATA_FILE
from common.atomic import remove_left_overs, write_json
from common.errors import UsageError
from common.flags import flag
from common.locks import locked

VOCABULARY_BYTES = 64 * 2**20
"""A vocabulary is trained on at most this much text, taken evenly from the corpus."""
_AT_LEAST = {
    "seq_lens": SPECIAL_TOKENS + 2,
    "max_predictions": 1,
    "dupe_factor": 1,
    "shards": 1,
    "workers": 1,
    "seed": 0,
}
_AT_MOST = {"masked_lm_prob": 1.0, "short_seq_prob": 1.0, "test_fraction": 0.99}
# What was counted -> the sentence that says so; {count} and {names} are filled in.
_SENTENCES = {
    "truncated dumps": "{count} dump(s) are truncated; their complete pages were used: {names}",
    "latin-1 files": "{count} file(s) are not UTF-8 and were read as latin-1: {names}",
    "windows-1252 files": "{count} file(s) are not UTF-8 and were read as windows-1252: {names}",
    "damaged UTF-8 files": "{count} file(s) are damaged UTF-8; some characters became U+FFFD: {names}",
    "empty files": "{count} empty file(s) were skipped: {names}",
    "Gutenberg frames": "the Project Gutenberg header and footer of {count} file(s) were removed",
    "shards with one document": "{count} shard(s) hold a single document, so their random segments come from it too; "
    "use fewer --shards",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig:
    """Dumps and text in, HDF5 shards of pretraining instances out; a call with the same options continues."""

    output: Path
    """Output folder; the shards are in OUTPUT/hdf5_lower_case_.../<dataset>."""
    input: Path | None = None
    """Folder of .txt files (one book or article each) and MediaWiki dumps (.xml.bz2, .xml.gz, .xml)."""
    generate: int | None = None
    """Instead of --input: write this many bytes of synthetic text to OUTPUT/text and use it."""
    dataset: str | None = None
    """Name of the data set in file names; default the name of the input folder."""
    keep_truncated: bool = False
    """Use the complete pages of a truncated dump."""
    vocab: Path | None = None
    """BERT vocab.txt; default a vocabulary trained on the text."""
    vocab_size: int = BERT_UNCASED_VOCAB_SIZE
    """Maximum size of a trained vocabulary."""
    seq_lens: tuple[int, ...] = (128,)
    """Tokens per instance. 128 512 makes the data of both phases and tokenizes once."""
    max_predictions: tuple[int, ...] = ()
    """Maximum masked positions per instance, one value for each length; default 20 for 128, 80 for 512, else 15 %."""
    masked_lm_prob: float = 0.15
    """Fraction of tokens to mask."""
    short_seq_prob: float = 0.1
    """Fraction of instances with a shorter, random target length."""
    dupe_factor: int = 5
    """Passes over the text, each with different cuts and masks."""
    whole_word_mask: bool = False
    """Mask all pieces of a word together."""
    shards: int | None = None
    """Training shards; default one per 32 MiB of text, at least 4."""
    test_fraction: float = 0.1
    """Fraction of the sentences to put into test shards."""
    workers: int = 1
    """Worker processes; the result does not depend on it."""
    seed: int = 12345
    """Seed of the split, the cuts and the masks."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        if (self.input is None) == (self.generate is None):
            raise UsageError("option-missing", "give either --input FOLDER or --generate BYTES")
        for name, least in _AT_LEAST.items():
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None and value < least:
                    raise UsageError("option-value", f"{flag(name)} {value} must be {least} or more")
        for name, most in _AT_MOST.items():
            if not 0.0 <= getattr(self, name) <= most:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be 0 to {most}")
        if self.dataset is not None and not re.fullmatch(r"[^/.\s][^/\s]*", self.dataset):
            raise UsageError("option-value", f"--dataset {self.dataset!r} must be a plain name without `/` or spaces")
        if not self.seq_lens or len(set(self.seq_lens)) < len(self.seq_lens):
            raise UsageError("option-value", f"--seq-lens {' '.join(map(str, self.seq_lens))} must be distinct lengths")
        if self.max_predictions and len(self.max_predictions) != len(self.seq_lens):
            raise UsageError(
                "option-conflict",
                f"{len(self.max_predictions)} --max-predictions for {len(self.seq_lens)} --seq-lens: give one each",
            )

    def instances(self, seq_len: int) -> InstanceConfig:
        """Return what concerns the instances of a length."""
        given = dict(zip(self.seq_lens, self.max_predictions, strict=False))
        return InstanceConfig(
            seq_len=seq_len,
            max_predictions=given.get(seq_len) or default_max_predictions(seq_len),
            masked_lm_prob=self.masked_lm_prob,
            short_seq_prob=self.short_seq_prob,
            dupe_factor=self.dupe_factor,
            whole_word_mask=self.whole_word_mask,
            seed=self.seed,
        )

    def test_shards(self, training: int) -> int:
        """Return the test shards: in the proportion of the split, at least one unless there is no test split."""
        return max(1, round(training * self.test_fraction)) if self.test_fraction else 0

    @property
    def dataset_name(self) -> str:
        """Name of the data in folder and file names."""
        if self.dataset is not None or self.input is None:
            return self.dataset or "generated"
        name = self.input.resolve().name.encode("utf-8", "backslashreplace").decode()
        return re.sub(r"[\s\\]", "_", name).lstrip(".") or "text"

    def hdf5_folder(self, seq_len: int) -> Path:
        """Return the folder of the shards, named as NVIDIA's scripts do; what they do not have comes at the end."""
        name = (
            f"hdf5_lower_case_{int(self.lower_case)}_seq_len_{seq_len}"
            f"_max_pred_{self.instances(seq_len).max_predictions}_masked_lm_prob_{self.masked_lm_prob:g}"
            f"_random_seed_{self.seed}_dupe_factor_{self.dupe_factor}"
        )
        return self.output / (name + "_whole_word_mask" * self.whole_word_mask) / self.dataset_name

    def sharded_folder(self, shards: int) -> Path:
        """Return the folder of the shards of sentences."""
        name = f"sharded_training_shards_{shards}_test_shards_{self.test_shards(shards)}"
        return self.output / f"{name}_fraction_{self.test_fraction:g}" / self.dataset_name


def prepare(config: PrepareConfig, progress: Progress = lambda stage, done, total: None) -> dict[str, Any]:
    """Run the stages of `config`; what is finished with equal settings and input is kept, the rest made.

    Returns what it ended with as plain JSON values: its `stages`, the shards of its `lengths` (their
    `padding_efficiency` is real tokens / all tokens), and `notes`, what a user should know about the input.

    Raises InputError: no text, a file that is none (named), a vocabulary that is none, or the output holds data of
    other settings or input; UsageError: fewer documents than shards; StorageError: the output cannot be written;
    LockedError: another preparation is writing to it.
    """
    with locked(config.output, "another preparation", "wait for it, or give another --output"):
        try:
            with Workers(config.workers) as workers:
                return _Preparation(config, progress).run(workers)
        finally:  # half-written files of this call's workers, and those of calls that were killed
            remove_left_overs(config.output, "*", "*/*")


class _Preparation:
    """One call of the pipeline."""

    def __init__(self, config: PrepareConfig, progress: Progress) -> None:
        self.config = config
        self.progress = progress
        self.stages: list[dict[str, Any]] = []

    def run(self, workers: Workers) -> dict[str, Any]:
        sharded = self._shards(self._sentences(workers))
        vocabulary, path = self._vocabulary(sharded)
        lengths = self._hdf5(sharded, vocabulary, workers)
        return {
            "dataset": self.config.dataset_name,
            "stages": self.stages,
            "lengths": lengths,
            "documents": sharded.counts.get("documents"),
            "sentences": sharded.counts.get("sentences"),
            "vocab_size": len(vocabulary.pieces),
            "vocab_path": str(path),
            "vocab_trained": self.config.vocab is None,
            "notes": list(_notes(self.stages, vocabulary)),
        }

    def _run(self, stage: Stage, make: Callable[[], Finished]) -> Finished:
        """Run a stage, or keep what it made before."""
        began, before = time.perf_counter(), stage.finished()
        finished = before or make()
        self._add(stage, finished, began, kept=before is not None)
        return finished

    def _add(self, stage: Stage, finished: Finished, began: float, *, kept: bool) -> None:
        self.stages.append(
            {
                "stage": stage.name,
                "folder": str(finished.folder),
                "files": len(finished.files),
                "kept": kept,
                "seconds": time.perf_counter() - began,
                "counts": finished.counts.numbers,
                "examples": finished.counts.names,
            }
        )

    def _sentences(self, workers: Workers) -> Finished:
        config = self.config
        folder = config.input or config.output / "text"
        if config.generate is not None:
            generate_corpus(folder, config.seed, config.generate)
        dumps, texts = (identify(paths, folder, config.output / ".inputs.json") for paths in find_inputs(folder))
        content = fingerprint_of([[source.name, source.digest] for source in (*dumps, *texts)])
        path = config.output / "sentences" / config.dataset_name
        stage = Stage(path, "sentences", 1, stage_settings(), content)
        return self._run(stage, lambda: segment(dumps, texts, stage, workers, self.progress, config.keep_truncated))

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
        key = fingerprint_of(sharded.fingerprint, config.vocab_size, config.lower_case)
        path = config.vocab or config.output / "vocabulary" / f"{config.dataset_name}-{key[:12]}.vocab"
        if config.vocab is None and not path.is_file():
            self.progress("training the vocabulary", 0, 1)
            lines = sample_lines(sharded.files, VOCABULARY_BYTES)
            train_vocabulary(lines, config.vocab_size, config.lower_case).save(path)
        return load_vocabulary(path, config.lower_case), path

    def _hdf5(self, sharded: Finished, vocabulary: Vocabulary, workers: Workers) -> list[dict[str, Any]]:
        """Make the shards of all sequence lengths, with vocabulary and metadata beside them."""
        config, began = self.config, time.perf_counter()
        names = [hdf5.shard_name(text) for text in sharded.files]
        lengths, kept = [], []
        for seq_len in config.seq_lens:
            instances = dataclasses.asdict(config.instances(seq_len))
            settings = {**instances, "vocabulary": vocabulary.fingerprint}
            stage = Stage(config.hdf5_folder(seq_len), "hdf5", hdf5.VERSION, settings, sharded.fingerprint)
            metadata = {
                "schema_version": 1,
                "vocab_size": len(vocabulary.pieces),
                "vocab": vocabulary.fingerprint,
                "vocab_trained": config.vocab_size if config.vocab is None else None,
                "lower_case": config.lower_case,
                "instances": instances,
                "test_fraction": config.test_fraction,
                "settings": stage.fingerprint,
                "shards": names,
            }
            vocabulary.save(stage.path / VOCABULARY_FILE)
            write_json(stage.path / METADATA_FILE, metadata)
            lengths.append(hdf5.Length(stage, config.instances(seq_len)))
            kept.append(sum(map(stage.is_done, names)))
        finished = hdf5.make_shards(sharded.files, vocabulary, lengths, workers, self.progress)
        summaries = []
        for length, done, kept_here in zip(lengths, finished, kept, strict=True):
            self._add(length.stage, done, began, kept=kept_here == len(names))
            summaries.append(_summary(length, done, kept_here))
        return summaries


def _summary(length: hdf5.Length, finished: Finished, kept: int) -> dict[str, Any]:
    counts, seq_len = finished.counts, length.config.seq_len
    training, test = counts.get("training instances"), counts.get("test instances")
    return {
        "seq_len": seq_len,
        "max_predictions": length.config.max_predictions,
        "folder": str(finished.folder),
        "training_instances": training,
        "test_instances": test,
        "padding_efficiency": counts.get(hdf5.REAL_TOKENS) / ((training + test) * seq_len),
        "shards": len(finished.files),
        "shards_kept": kept,
    }


def _notes(stages: Sequence[dict[str, Any]], vocabulary: Vocabulary) -> Iterator[str]:
    yield from vocabulary_notes(vocabulary, stages[-1]["counts"])
    for stage in stages:
        for name, sentence in _SENTENCES.items():
            count, examples = stage["counts"].get(name, 0), stage["examples"].get(name, ())
            if count:
                names = ", ".join(examples) + (", ..." if len(examples) < count else "")
                yield sentence.format(count=f"{count:,}", names=names)
