"""Options of `bertbench data pretrain`, checked."""

import re
from dataclasses import dataclass
from pathlib import Path

from bert.data.synthetic import default_max_predictions
from bert.model.config import BERT_UNCASED_VOCAB_SIZE
from common.errors import UsageError
from common.flags import flag

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
_AT_LEAST = {
    "seq_lens": SPECIAL_TOKENS + 2,
    "max_predictions": 1,
    "dupe_factor": 1,
    "shards": 1,
    "workers": 1,
    "seed": 0,
}
_AT_MOST = {"masked_lm_prob": 1.0, "short_seq_prob": 1.0, "test_fraction": 0.99}


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceConfig:
    """How instances are cut and masked: PrepareConfig for one length."""

    seq_len: int
    """Tokens per instance, [CLS], two [SEP] and padding included."""
    max_predictions: int
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    """Share of documents (in each duplicate) whose instances aim at a length drawn from 2 .. seq_len - 3."""
    dupe_factor: int = 5
    whole_word_mask: bool = False
    seed: int = 12345


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
