"""Evaluate question answering: the logits of all windows from all ranks, decoded and scored by the official rules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert.data.features import vocabulary_of
from bert.data.loading.order import spread
from bert.data.rows import Int64
from bert.model.heads import BertForQuestionAnswering
from bert.optim.precision import Precision
from bert.tasks.base import DataSpec, Evaluation, Ready
from bert.tasks.evaluation import outputs
from bert.tasks.squad.features import SquadFeatures, open_features
from bert.tasks.squad.predictions import WindowLogits, decode
from bert.tasks.squad.reading import golds_of
from bert.tasks.squad.scores import score
from common.errors import UsageError

# Of SQuAD 1.1's scores: the name that 2.0 has for the same.
_SAME = {"exact_match": "exact"}


class Questions:
    """The questions of a features file, or `samples` of them, spread evenly; the windows are shared by the ranks."""

    def __init__(self, spec: DataSpec, source: Path, samples: int = 0) -> None:
        self.features = open_features(source, "evaluation")
        self._vocabulary = vocabulary_of(source, self.features.settings)
        self._spec = spec
        self._questions = spread(len(self.features.question_ids), samples)
        self._golds = golds_of(self.features, self._questions.tolist())
        self.fingerprint = f"{self.features.fingerprint}/{len(self._questions)}"

    def measure(self, model: torch.nn.Module, device: torch.device, precision: Precision) -> torch.Tensor:
        """Return start and end logits [2 x sum of lengths] of this rank's windows, 0 for the others.

        Raises:
            UsageError: the model has no head for answers.
        """
        spec = self._spec
        chosen = np.flatnonzero(np.isin(self.features.window_question, self._questions))
        ready = Ready(model, device, precision, spec.micro_batch_size, spec.rank, spec.world_size, chosen)
        logits = window_logits(ready, self.features)
        return torch.from_numpy(logits.astype(np.float64).reshape(-1))

    def score(self, total: torch.Tensor) -> Evaluation:
        """Decode and score the logits of all windows. Raises InputError if one is not a finite number."""
        start, end = total.numpy().astype(np.float32).reshape(2, -1)
        logits = WindowLogits(start, end, self.features.input_ids.offsets)
        answers = decode(self.features, logits, self._vocabulary, n_best=False)
        predictions = {name: answers.predictions[name] for name in self._golds.ids}
        odds = {name: answers.null_odds[name] for name in self._golds.ids if name in answers.null_odds}
        scores = score(self._golds, predictions, odds or None).values
        shown = {name: value for name, value in scores.items() if not name.startswith("pr_") and "total" not in name}
        return Evaluation(
            values={_SAME.get(name, name): float(value) for name, value in shown.items()},
            samples=len(self._questions),
            counts={name: int(value) for name, value in scores.items() if name.endswith("_total")},
        )


def window_logits(
    ready: Ready, features: SquadFeatures, told: Callable[[int], None] | None = None
) -> npt.NDArray[np.float32]:
    """Return the logits [2, sum of lengths] of the windows that `ready` computes, starts and ends, 0 for the others.

    Args:
        ready: its model is a BertForQuestionAnswering.
        features: the windows.
        told: called with the number of windows done so far.
    """
    if not isinstance(ready.model, BertForQuestionAnswering):
        raise UsageError(
            "weights-mismatch",
            f"{type(ready.model).__name__} has no question-answering head: give a model trained on squad",
        )
    flat = np.zeros((2, int(features.lengths.sum())), dtype=np.float32)
    for numbers, output in outputs(ready, features.rows, told):
        for row, logits in enumerate((output.start_logits, output.end_logits)):
            put_values(features, numbers, logits.float().cpu().numpy(), flat[row])
    return flat


def put_values(features: SquadFeatures, numbers: Int64, values: npt.NDArray[Any], flat: npt.NDArray[Any]) -> None:
    """Write values [B, S] of the tokens of windows `numbers` [B] to where these are in the features.

    Args:
        features: the windows.
        numbers: those in `values`, as evaluation_rows yields them.
        values: one value for each token of each window; those of padding are left out.
        flat: receives them, real tokens of all windows one after another [sum of lengths].
    """
    begins, lengths = features.input_ids.offsets[numbers, None], features.lengths[numbers, None]
    column = np.arange(values.shape[1])
    real = column < lengths
    flat[(begins + column)[real]] = values[real]
