"""Options of `bertbench data glue`, checked."""

from dataclasses import dataclass
from pathlib import Path

from bert.tasks.glue.features import DEFAULT_MAX_SEQ_LENGTH, SPECIAL_TOKENS
from bert.tasks.glue.tasks import TASKS, task_of
from common.errors import UsageError

DEFAULT_OUTPUT = Path("runs/glue-data")


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueConfig:
    """GLUE's tables in, features out, a file for each split; a call with the same options keeps what is finished."""

    tasks: tuple[str, ...] = ()
    """cola sst2 mrpc qqp stsb mnli qnli rte wnli; default those whose tables are there (--dataset: all)."""
    input: Path | None = None
    """Folder of GLUE's archive (CoLA, SST-2, ... in it), or of one task: train.tsv, dev.tsv, test.tsv."""
    dataset: str | None = None
    """In place of --input, what datasets.load_dataset takes: nyu-mll/glue, or a local folder of that form."""
    vocab: Path | None = None
    """BERT vocab.txt; may be left out with --text."""
    output: Path = DEFAULT_OUTPUT
    """Folder for the features."""
    lower_case: bool = True
    """Text is lower-cased, as for bert-*-uncased; --no-lower-case keeps capitals, for a cased vocabulary."""
    max_seq_length: int = DEFAULT_MAX_SEQ_LENGTH
    """Tokens of a row at most: [CLS] first [SEP] second [SEP]; longer ones are cut."""
    text: Path | None = None
    """Folder for the sentences of the training tables as plain text, for `bertbench data pretrain --input`."""

    def __post_init__(self) -> None:
        """Refuse options no features can be made with."""
        for name in self.tasks:
            task_of(name)
        if len(set(self.tasks)) < len(self.tasks):
            raise UsageError("option-value", f"--tasks {' '.join(self.tasks)}: name each only once")
        if (self.input is None) == (self.dataset is None):
            raise UsageError(
                "option-missing" if self.input is None else "option-conflict",
                "give --input FOLDER with GLUE's tables, or --dataset nyu-mll/glue for the `datasets` library, one of "
                "them",
            )
        if self.vocab is None and self.text is None:
            raise UsageError(
                "option-missing", "give --vocab VOCAB.txt for features, --text FOLDER for plain text, or both"
            )
        if self.max_seq_length < SPECIAL_TOKENS + 2:
            raise UsageError(
                "option-value",
                f"--max-seq-length {self.max_seq_length} has no room for two sentences and {SPECIAL_TOKENS} special "
                f"tokens: give {SPECIAL_TOKENS + 2} or more",
            )

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the tasks to look for."""
        return self.tasks or tuple(TASKS)
