"""Evaluate a model: its outputs by numbered samples and, for labeled rows, the scores of the task."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert.data.batches import DataSpec, evaluation_rows
from bert.data.rows import Int64, Labels, TokenRows
from bert.optim.precision import Precision
from bert.tasks.base import Evaluation, Ready
from common.errors import InputError

Float32 = npt.NDArray[np.float32]


def outputs(ready: Ready, rows: TokenRows, show: Callable[[int], None] | None = None) -> Iterator[tuple[Int64, Any]]:
    """Yield a model's output for each batch of rows, with the numbers [B] of its rows; `show` gets the number done."""
    done = 0
    for numbers, batch in evaluation_rows(rows, ready.batch_size, ready.rank, ready.world_size, ready.chosen):
        with torch.inference_mode(), ready.precision.autocast():
            output = ready.model(batch.laid_out().to(ready.device))
        yield numbers, output
        done += len(numbers)
        if show is not None:
            show(done)


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Rows with labels to evaluate on, shared by the ranks."""

    rows: TokenRows
    chosen: Int64
    """Numbers of those that are evaluated on."""
    classes: int
    """K, logits of a row."""
    score_logits: Callable[[Float32], Evaluation]
    """Scores the logits [chosen, K]."""
    spec: DataSpec
    fingerprint: str

    def measure(self, model: torch.nn.Module, device: torch.device, precision: Precision) -> torch.Tensor:
        """Return the logits of this rank's rows, 0 for the others, [rows x K]."""
        spec = self.spec
        ready = Ready(model, device, precision, spec.micro_batch_size, spec.rank, spec.world_size, self.chosen)
        logits = row_logits(ready, self.rows, self.classes)
        return torch.from_numpy(logits[self.chosen].astype(np.float64).reshape(-1))

    def score(self, total: torch.Tensor) -> Evaluation:
        """Score the logits of all rows. Raises InputError if one is not a finite number."""
        logits = total.numpy().astype(np.float32).reshape(-1, self.classes)
        check_logits(logits)
        return self.score_logits(logits)


def row_logits(ready: Ready, rows: TokenRows, classes: int, show: Callable[[int], None] | None = None) -> Float32:
    """Return the logits [N, K] of the rows that `ready` computes, 0 for the others.

    The output of its model has `logits` [B, K], as that of BertForLabels.
    """
    logits = np.zeros((len(rows), classes), dtype=np.float32)
    for numbers, output in outputs(ready, rows, show):
        logits[numbers] = output.logits.float().cpu().numpy()
    return logits


def check_logits(logits: Float32) -> None:
    """Refuse logits of any shape that are not numbers. Raises InputError."""
    wrong = np.count_nonzero(~np.isfinite(logits))
    if wrong:
        some = f"{wrong:,} of {logits.size:,} logits are not finite"
        raise InputError("logits-not-finite", f"{some}: use other weights or --precision fp32")


def mean_log_loss(logits: Float32, labels: Labels) -> float:
    """Return the mean cross-entropy in nats of logits [N, K] and classes [N], computed in float64."""
    classes = torch.from_numpy(labels).long()
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), classes))
