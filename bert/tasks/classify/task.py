"""Classification of texts, each of which may be several rows: what a model says of a text is the mean over its rows."""

from collections.abc import Mapping

from bert.data.rows import Labels
from bert.tasks.base import DataSpec, EvaluationSpec
from bert.tasks.classification import ClassificationTask
from bert.tasks.classification_data import TRAINING
from bert.tasks.classification_evaluation import Float32
from bert.tasks.classify.evaluation import LabelledTexts, class_scores, probabilities
from bert.tasks.classify.source import ClassifyData


class ClassifyTask(ClassificationTask):
    """One label for each text of a CSV."""

    name = "classify"
    data: ClassifyData = ClassifyData()
    scores: tuple[str, ...] = ("accuracy", "balanced_accuracy", "log_loss")
    deciding_score = "accuracy"
    higher_is_better = True

    def score(self, logits: Float32, labels: Labels) -> Mapping[str, float]:
        """Return the scores of rows that are texts of their own."""
        return class_scores(probabilities(logits), labels)

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> LabelledTexts:
        """Open the texts to evaluate on.

        Raises:
            InputError: there are none, they are damaged, longer than those that are trained on, of another vocabulary,
                or have labels that those have not.
            UsageError: they are of the same CSV, divided otherwise.
        """
        training = self.rows(spec, TRAINING)
        rows, texts = self.data.evaluation_texts(spec.source, spec.seq_len, wanted.source, training)
        self.check_labels(rows, wanted.source or spec.source)
        return LabelledTexts(rows, texts, self.labels, spec, wanted.samples)
