"""The task of row_task.py with its model; imports torch."""

from collections.abc import Mapping

from support.row_task import NAME, ExampleData

from bert.data.rows import Labels
from bert.tasks.classification import ClassificationTask
from bert.tasks.evaluation import Float32, mean_log_loss


class RowTask(ClassificationTask):
    """Accuracy of made-up rows."""

    name = NAME
    data = ExampleData()
    scores = ("accuracy", "log_loss")
    deciding_score = "accuracy"
    higher_is_better = True

    def score(self, logits: Float32, labels: Labels) -> Mapping[str, float]:
        return {
            "accuracy": float((logits.argmax(1) == labels).mean()),
            "log_loss": mean_log_loss(logits, labels),
        }
