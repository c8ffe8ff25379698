"""Options of `bertbench data glue`, checked."""

from dataclasses import dataclass
from pathlib import Path

from bert.tasks.glue.features import SPECIAL_TOKENS
from bert.tasks.glue.tasks import TASKS, task_of
from common.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueConfig:
    """GLUE's tables in, features out, a file for each split; a call with the same options keeps what is finished."""

    tasks: tuple[str, ...] = ()
    """Tasks of GLUE: cola sst2 mrpc qqp stsb mnli qnli rte wnli; default all whose tables exist, with --dataset all."""
    input: Path | None = None
    """Folder of the GLUE archive (CoLA, SST-2, ...), or of one task (train.tsv, dev.tsv, test.tsv)."""
    dataset: str | None = None
    """Instead of --input: data set for datasets.load_dataset, nyu-mll/glue or a local folder in that format."""
    vocab: Path | None = None
    """BERT vocab.txt; optional with --text."""
    output: Path = Path("runs/glue-data")
    """Folder for the features."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    max_seq_length: int = 128
    """Maximum tokens of a row: [CLS] first [SEP] second [SEP]; longer rows are truncated."""
    text: Path | None = None
    """Folder for the sentences of the training tables as text for `bertbench data pretrain --input`; default no
    text."""

    def __post_init__(self) -> None:
        """Refuse options no features can be made with."""
        for name in self.tasks:
            task_of(name)
        if (self.input is None) == (self.dataset is None):
            raise UsageError(
                "option-missing" if self.input is None else "option-conflict",
                "give either --input FOLDER with GLUE's tables, or --dataset nyu-mll/glue",
            )
        if self.vocab is None and self.text is None:
            raise UsageError("option-missing", "give --vocab VOCAB.txt for features, --text FOLDER for text, or both")
        if self.max_seq_length < SPECIAL_TOKENS + 2:
            raise UsageError(
                "option-value", f"--max-seq-length {self.max_seq_length}: give {SPECIAL_TOKENS + 2} or more"
            )

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the tasks to look for."""
        return self.tasks or tuple(TASKS)
