"""GLUE: nine tasks on sentences and pairs of sentences (Wang et al. 2018, arXiv 1804.07461)."""

from collections.abc import Mapping
from typing import Any

from bert.data.rows import Labels
from bert.tasks.classification import ClassificationTask
from bert.tasks.evaluation import Float32
from bert.tasks.glue.scores import decided, score_names, scores
from bert.tasks.glue.source import GlueData, spec_of


class GlueTask(ClassificationTask):
    """One of the nine, scored as the benchmark does.

    Args:
        options: `task`, its name.

    Raises:
        UsageError: no such task, or none is given.
    """

    name = "glue"
    data = GlueData()
    higher_is_better = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.spec = spec_of(self.options)
        self.scores = score_names(self.spec)
        self.deciding_score = self.spec.headline

    def score(self, logits: Float32, labels: Labels) -> Mapping[str, float]:
        """Return the benchmark's scores, fractions, of logits [N, K] and labels [N]."""
        return scores(self.spec, decided(self.spec, logits), labels)
