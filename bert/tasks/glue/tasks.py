"""What the nine tasks of GLUE are: files, columns, classes, metrics (Wang et al. 2018, arXiv 1804.07461, table 1).

The order of the classes is that of the published `datasets` (nyu-mll/glue).
"""

from dataclasses import dataclass

from common.registry import lookup

TRAIN = "train"
REGRESSION_RANGE = (0.0, 5.0)
"""Range of the labels of STS-B."""
DIAGNOSTIC = "test_diagnostic"
"""The benchmark's diagnostic set, answered by a model of MNLI; only the server has its labels."""
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_SERVER_FILES = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", DIAGNOSTIC: "AX"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueSpec:
    """One task."""

    name: str
    """As `--task` takes it and `datasets` names it."""
    folder: str
    """Name of its folder in the published archive."""
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    """Columns of its one or two sentences in the published tables."""
    hub_texts: tuple[str, ...] = ()
    """The same in `datasets`; empty where they are the same."""
    label: str = "label"
    classes: tuple[str, ...] = ()
    """Labels as the tables have them: class i is classes[i]. None: the label is a number (a regression)."""
    metrics: tuple[str, ...] = ("accuracy",)
    """What the benchmark reports, by the names of bert.tasks.glue.scores; its own score of a task is their mean."""
    index: str = "index"
    """Column that numbers the rows, where a table has it; else rows are numbered from 0."""
    headless: tuple[str, ...] = ()
    """Columns of the tables with labels, where these have no header."""
    splits: tuple[str, ...] = (TRAIN, "dev", "test")
    """Its tables: training, evaluation, test."""

    @property
    def labels(self) -> int:
        """Outputs of the model: classes, or 1 for a number."""
        return len(self.classes) or 1

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return not self.classes

    @property
    def headline(self) -> str:
        """The score that decides which checkpoint is the best."""
        return "_".join(self.metrics) if self.is_regression else self.metrics[0]

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Splits with labels that nothing is trained on, the one that training is evaluated on first."""
        return tuple(split for split in self.splits if split.startswith("dev"))

    def answer_file(self, split: str) -> str:
        """Return the name of the file of a split's answers; that of a test split is the one GLUE's server knows."""
        return f"{_SERVER_FILES.get(split, self.folder if is_test(split) else f'{self.folder}-{split}')}.tsv"


def is_test(split: str) -> bool:
    """Whether only the benchmark has the labels of a split."""
    return split.startswith("test")


_ALL = (
    GlueSpec(
        name="cola", folder="CoLA", texts=("sentence",), classes=_BINARY, metrics=("matthews",),
        headless=("source", "label", "original_label", "sentence"),
    ),
    GlueSpec(name="sst2", folder="SST-2", texts=("sentence",), classes=_BINARY),
    GlueSpec(
        name="mrpc", folder="MRPC", texts=("#1 String", "#2 String"), hub_texts=("sentence1", "sentence2"),
        label="Quality", classes=_BINARY, metrics=("f1_score", "accuracy"),
    ),
    GlueSpec(
        name="qqp", folder="QQP", texts=("question1", "question2"), label="is_duplicate", classes=_BINARY,
        metrics=("f1_score", "accuracy"), index="id",
    ),
    GlueSpec(name="stsb", folder="STS-B", label="score", metrics=("pearson", "spearman")),
    GlueSpec(
        name="mnli", folder="MNLI", hub_texts=("premise", "hypothesis"), label="gold_label",
        classes=("entailment", "neutral", "contradiction"),
        splits=(TRAIN, "dev_matched", "dev_mismatched", "test_matched", "test_mismatched", DIAGNOSTIC),
    ),
    GlueSpec(name="qnli", folder="QNLI", texts=("question", "sentence"), classes=_ENTAILMENT),
    GlueSpec(name="rte", folder="RTE", classes=_ENTAILMENT),
    GlueSpec(name="wnli", folder="WNLI", classes=_BINARY),
)  # fmt: skip
TASKS = {spec.name: spec for spec in _ALL}
"""The tasks by name."""


def task_of(name: str) -> GlueSpec:
    """Return a task by its name. Raises UsageError that lists the names."""
    return lookup(TASKS, name, "task of GLUE")
