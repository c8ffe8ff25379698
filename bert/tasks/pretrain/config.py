"""Options of `bertbench data pretrain`, checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert.data.lengths import default_max_predictions
from bert.data.stages import Part
from bert.model.config import BERT_UNCASED_VOCAB_SIZE
from common.errors import UsageError
from common.flags import flag

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
SMALLEST_SEQ_LEN = SPECIAL_TOKENS + 2
"""[CLS] a [SEP] b [SEP]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceConfig:
    """How instances are cut and masked."""

    seq_len: int
    """Tokens per instance, [CLS], two [SEP] and padding included."""
    max_predictions: int
    """Masked positions per instance at most."""
    masked_lm_prob: float = 0.15
    """Share of the tokens that is masked."""
    short_seq_prob: float = 0.1
    """Share of documents (in each duplicate) whose instances aim at a length drawn from 2 .. seq_len - 3."""
    dupe_factor: int = 5
    """Times the corpus is gone through, each time with other cuts and masks."""
    whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    seed: int = 12345
    """Seed of every draw."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.seq_len < SMALLEST_SEQ_LEN:
            raise UsageError("option-value", f"--seq-len {self.seq_len} is too short: give {SMALLEST_SEQ_LEN} or more")
        if self.max_predictions < 1:
            raise UsageError("option-value", f"--max-predictions {self.max_predictions} must be at least 1")
        if self.dupe_factor < 1:
            raise UsageError("option-value", f"--dupe-factor {self.dupe_factor} must be at least 1")
        if self.seed < 0:
            raise UsageError("option-value", f"--seed {self.seed} must not be negative")
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be in [0, 1]")


STAGES = ("download", "extract", "clean", "sentences", "shard", "hdf5")
"""In the order they run."""
SMALLEST_BIN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig:
    """Dumps and text in, HDF5 shards of pretraining instances out; a call with the same options continues."""

    output: Path
    """Output folder; the shards are in OUTPUT/hdf5_lower_case_.../<dataset>."""
    input: Path | None = None
    """Folder of .txt files (one book or article each) and MediaWiki dumps (.xml.bz2, .xml.gz, .xml)."""
    generate: int | None = None
    """Instead of --input: write this many bytes of synthetic text to OUTPUT/text and use it."""
    download: tuple[Literal["wikipedia", "pg19"], ...] = ()
    """Instead of --input: download these data sets and use them."""
    language: str = "en"
    """Language code of the Wikipedia to download."""
    date: str = "latest"
    """Date of the Wikipedia dump to download, YYYYMMDD or latest."""
    books_limit: int | None = None
    """Maximum number of books to download; default all."""
    mirror: str | None = None
    """Base URL of a mirror to download from; default the original."""
    stages: tuple[str, ...] = STAGES
    """Stages to run: download extract clean sentences shard hdf5; earlier ones must be complete; default all."""
    part: str = "0/1"
    """I/N: process only every N-th file of a stage, starting with file I, for a job array with one stage per call."""
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
    length_bins: int | None = None
    """Sort each shard by length in bins of this many tokens, which reduces padding; default random order."""
    gzip_level: int = 1
    """Compression level of the shards, 0 to 9. Training maps uncompressed shards (0) into memory."""
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
        sources = (self.input is not None) + (self.generate is not None) + bool(self.download)
        if sources > 1 and not (sources == 2 and self.generate is None):
            raise UsageError(
                "option-conflict", "give --generate BYTES alone, or --input FOLDER, --download NAMES or both"
            )
        if not sources and (set(self.stages) & {"download", "extract", "clean"} or self.dataset is None):
            raise UsageError(
                "option-missing",
                "give --input FOLDER, --download NAMES or --generate BYTES; later --stages alone need --dataset NAME",
            )
        unknown = [stage for stage in self.stages if stage not in STAGES]
        if unknown or not self.stages:
            raise UsageError("option-choice", f"--stages {' '.join(unknown)} must be among {' '.join(STAGES)}")
        for name in ("shards", "workers", "generate", "books_limit"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be at least 1")
        if "squad" in self.download:
            raise UsageError(
                "option-choice", "squad is not pretraining text: download it with `bertbench data download squad`"
            )
        if not 0.0 <= self.test_fraction < 1.0:
            raise UsageError("option-value", f"--test-fraction {self.test_fraction} must be in [0, 1)")
        if self.dataset is not None and not re.fullmatch(r"[^/.\s][^/\s]*", self.dataset):
            raise UsageError("option-value", f"--dataset {self.dataset!r} must be a plain name without `/` or spaces")
        if not 0 <= self.gzip_level <= 9:
            raise UsageError("option-value", f"--gzip-level {self.gzip_level} must be 0 (none) to 9 (smallest)")
        self._check_lengths()
        self._check_part()

    def _check_lengths(self) -> None:
        if not self.seq_lens or len(set(self.seq_lens)) < len(self.seq_lens):
            raise UsageError("option-value", f"--seq-lens {' '.join(map(str, self.seq_lens))} must be distinct lengths")
        if self.max_predictions and len(self.max_predictions) != len(self.seq_lens):
            raise UsageError(
                "option-conflict",
                f"{len(self.max_predictions)} --max-predictions for {len(self.seq_lens)} --seq-lens: give one each",
            )
        for seq_len in self.seq_lens:
            self.instances(seq_len)
            if self.length_bins is not None and (self.length_bins < SMALLEST_BIN or seq_len % self.length_bins):
                raise UsageError(
                    "option-value",
                    f"--length-bins {self.length_bins} must be {SMALLEST_BIN} or more and divide --seq-lens {seq_len}",
                )

    def _check_part(self) -> None:
        if self.share.count > 1 and (len(self.stages) != 1 or self.stages[0] in ("download", "shard")):
            raise UsageError(
                "option-conflict",
                f"--part {self.part} shares one stage (extract, clean, sentences, hdf5): name it, as --stages hdf5",
            )

    @property
    def share(self) -> Part:
        """What `part` says. Raises UsageError for a text that is not a share."""
        match = re.fullmatch(r"(\d+)/(\d+)", self.part)
        if match is None:
            raise UsageError("option-value", f"--part {self.part} must be I/N with 0 <= I < N, such as 0/4")
        return Part(int(match[1]), int(match[2]))

    def predictions(self, seq_len: int) -> int:
        """Return the masked positions per instance at most."""
        if not self.max_predictions:
            return default_max_predictions(seq_len)
        return self.max_predictions[self.seq_lens.index(seq_len)]

    def instances(self, seq_len: int) -> InstanceConfig:
        """Return what concerns the instances of a length. Raises UsageError for values no instance can be made with."""
        return InstanceConfig(
            seq_len=seq_len,
            max_predictions=self.predictions(seq_len),
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
        if self.dataset is not None:
            return self.dataset
        names = [f"{name}_{self.language}" if name == "wikipedia" else name for name in self.download]
        if self.input is not None:
            name = self.input.resolve().name.encode("utf-8", "backslashreplace").decode()
            names.append(re.sub(r"[\s\\]", "_", name).lstrip(".") or "text")
        return "_".join(names) or "generated"

    def hdf5_folder(self, seq_len: int) -> Path:
        """Return the folder of the shards, named as NVIDIA's scripts do; what they do not have comes at the end."""
        name = (
            f"hdf5_lower_case_{int(self.lower_case)}_seq_len_{seq_len}_max_pred_{self.predictions(seq_len)}"
            f"_masked_lm_prob_{self.masked_lm_prob:g}_random_seed_{self.seed}_dupe_factor_{self.dupe_factor}"
        )
        name += "_whole_word_mask" * self.whole_word_mask
        name += f"_length_bins_{self.length_bins}" if self.length_bins is not None else ""
        return self.output / name / self.dataset_name

    def stage_folder(self, stage: str) -> Path:
        """Return the folder of a stage before the instances: extracted, cleaned, sentences, tokens."""
        name = {
            "extract": "extracted",
            "clean": "cleaned",
            "sentences": "sentences",
            "tokens": f"tokens_lower_case_{int(self.lower_case)}",
        }[stage]
        return self.output / name / self.dataset_name

    def sharded_folder(self, shards: int) -> Path:
        """Return the folder of the shards of sentences."""
        name = (
            f"sharded_training_shards_{shards}_test_shards_{self.test_shards(shards)}_fraction_{self.test_fraction:g}"
        )
        return self.output / name / self.dataset_name
