"""Pronoun resolution on GAP: which of two names a pronoun means, if any (Webster et al. 2018, arXiv 1810.05201)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert.data.lengths import Lengths
from bert.data.rows import Labels
from bert.model.config import ModelConfig
from bert.tasks.classification import ClassificationTask
from bert.tasks.evaluation import Float32, mean_log_loss
from bert.tasks.gap.config import MENTIONS
from bert.tasks.gap.features import MENTION_ENDS, MENTION_STARTS
from bert.tasks.gap.heads import BertForMentions
from bert.tasks.gap.scores import DECISIONS, OVERALL, Gold, score
from bert.tasks.gap.source import GapData
from bert.train.observer import Observer


class GapTask(ClassificationTask):
    """Cross-entropy of neither, A and B.

    Args:
        options: head, sample_limit, train_on_all (bert.tasks.gap.source).
    """

    name = "gap"
    data = GapData()
    scores: tuple[str, ...] = ("accuracy", "log_loss", "gap_f1")
    deciding_score = "accuracy"
    higher_is_better = True

    @property
    def head(self) -> str:
        """The name of the head."""
        return str(self.options["head"])

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialised weights, on the CPU, in float32; its phases go to `observer`."""
        return BertForMentions(config, self.head, observer)

    def score(self, logits: Float32, labels: Labels) -> Mapping[str, float]:
        """Return accuracy, log loss in nats, and the official F1 of all names in percent."""
        classes = logits.argmax(1)
        golds = {str(number): Gold(*_truth(label), None) for number, label in enumerate(labels.tolist())}
        decisions = {str(number): DECISIONS[label] for number, label in enumerate(classes.tolist())}
        return {
            "accuracy": float((classes == labels).mean()),
            "log_loss": mean_log_loss(logits, labels),
            "gap_f1": score(golds, decisions).tallies[OVERALL].f1,
        }

    def synthetic_columns(self, rng: np.random.Generator, lengths: Lengths) -> dict[str, npt.NDArray[Any]]:
        """Draw three mentions of one token each in rows of these lengths."""
        order = np.stack([rng.permutation(MENTIONS) for _ in lengths])
        # The shortest rows have three tokens between [CLS] and the last one: a third of the row for each mention.
        starts = 1 + order * ((lengths - 2) // MENTIONS)[:, None]
        return {MENTION_STARTS: starts, MENTION_ENDS: starts + 1}


def _truth(label: int) -> tuple[bool, bool]:
    return label == 1, label == 2
