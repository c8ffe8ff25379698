"""What the nine tasks of GLUE are: files, columns, classes, metrics (Wang et al. 2018, arXiv 1804.07461, table 1).

The order of the classes is that of the published `datasets` (nyu-mll/glue).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.registry import lookup

TRAIN = "train"
REGRESSION_RANGE = (0.0, 5.0)
"""Range of the labels of STS-B."""
DIAGNOSTIC = "test_diagnostic"
"""The benchmark's diagnostic set, answered by a model of MNLI; only the server has its labels."""
_SPLITS = (TRAIN, "dev", "test")
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueSpec:
    """One task."""

    name: str
    """As `--task` takes it and `datasets` names it."""
    folder: str
    """Name of its folder in the published archive."""
    texts: tuple[str, ...]
    """Columns of its one or two sentences in the published tables."""
    hub_texts: tuple[str, ...]
    """The same in `datasets`."""
    label: str
    classes: tuple[str, ...] = ()
    """Labels as the tables have them: class i is classes[i]. None: the label is a number (a regression)."""
    metrics: tuple[str, ...]
    """What the benchmark reports, by the names of bert.tasks.glue.scores; its own score of a task is their mean."""
    headline: str
    """The score that decides which checkpoint is the best."""
    index: str | None = "index"
    """Column that numbers the rows, where the tables have one; else rows are numbered from 0."""
    submissions: Mapping[str, str] = field(default_factory=dict)
    """Split -> name of the file that the benchmark takes answers in."""
    headless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Split -> columns of a table without a header."""
    splits: tuple[str, ...] = _SPLITS
    """Its tables: training, evaluation, test."""
    elsewhere: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Split -> names of folder and table, where they are not those of the task; it may well be missing."""

    @property
    def labels(self) -> int:
        """Outputs of the model: classes, or 1 for a number."""
        return len(self.classes) or 1

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return not self.classes

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Splits with labels that nothing is trained on, the one that training is evaluated on first."""
        return tuple(split for split in self.splits if split.startswith("dev"))

    @property
    def tests(self) -> tuple[str, ...]:
        """Splits whose labels only the benchmark has."""
        return tuple(split for split in self.splits if split.startswith("test"))


def _spec(name: str, folder: str, label: str, **others: object) -> GlueSpec:
    submission = {"test": f"{folder}.tsv"}
    values = {"texts": ("sentence1", "sentence2"), "submissions": submission, "metrics": ("accuracy",), **others}
    return GlueSpec(
        name=name,
        folder=folder,
        label=label,
        hub_texts=values.pop("hub_texts", values["texts"]),  # type: ignore[arg-type]
        headline=values.pop("headline", values["metrics"][0]),  # type: ignore[arg-type,index]
        **values,  # type: ignore[arg-type]
    )


_COLA = ("source", "label", "original_label", "sentence")

TASKS: dict[str, GlueSpec] = {
    spec.name: spec
    for spec in (
        _spec(
            "cola",
            "CoLA",
            "label",
            texts=("sentence",),
            classes=_BINARY,
            metrics=("matthews",),
            headless={"train": _COLA, "dev": _COLA},
        ),
        _spec("sst2", "SST-2", "label", texts=("sentence",), classes=_BINARY),
        _spec(
            "mrpc",
            "MRPC",
            "Quality",
            texts=("#1 String", "#2 String"),
            hub_texts=("sentence1", "sentence2"),
            classes=_BINARY,
            metrics=("f1_score", "accuracy"),
        ),
        _spec(
            "qqp",
            "QQP",
            "is_duplicate",
            texts=("question1", "question2"),
            classes=_BINARY,
            metrics=("f1_score", "accuracy"),
            index="id",
        ),
        _spec("stsb", "STS-B", "score", metrics=("pearson", "spearman"), headline="pearson_spearman"),
        _spec(
            "mnli",
            "MNLI",
            "gold_label",
            hub_texts=("premise", "hypothesis"),
            classes=("entailment", "neutral", "contradiction"),
            splits=("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched", DIAGNOSTIC),
            submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", DIAGNOSTIC: "AX.tsv"},
            elsewhere={DIAGNOSTIC: ("diagnostic", "diagnostic")},
        ),
        _spec("qnli", "QNLI", "label", texts=("question", "sentence"), classes=_ENTAILMENT),
        _spec("rte", "RTE", "label", classes=_ENTAILMENT),
        _spec("wnli", "WNLI", "label", classes=_BINARY),
    )
}
"""The tasks by name."""


def task_of(name: str) -> GlueSpec:
    """Return a task by its name. Raises UsageError that lists the names."""
    return lookup(TASKS, name, "task of GLUE")
