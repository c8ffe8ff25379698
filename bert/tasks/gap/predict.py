"""What a trained model says about rows of GAP: which head it has, and the probabilities of the three answers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert.checkpoints.ours import WEIGHTS_FILE
from bert.checkpoints.tensor_files import read_tensors
from bert.tasks.gap.examples import LABELS
from common.errors import InputError

_HEAD = "mention_head."


def head_of(weights: Path) -> str:
    """Return the name of the head in a folder of our weights.

    Raises:
        InputError: there is none: the model was not trained on GAP, or the weights cannot be read.
    """
    names = read_tensors(weights / WEIGHTS_FILE) if (weights / WEIGHTS_FILE).is_file() else ()
    found = sorted({name.removeprefix(_HEAD).split(".")[0] for name in names if name.startswith(_HEAD)})
    if len(found) != 1:
        raise InputError(
            "checkpoint-missing",
            f"{weights} holds no model that was trained on gap: train it with `bertbench train gap --init {weights}`",
        )
    return found[0]


def probabilities_of(
    ids: Sequence[str], logits: npt.NDArray[np.float32], left_out: Sequence[str] = ()
) -> dict[str, tuple[float, float, float]]:
    """Return the probabilities of neither, A and B, by id.

    Args:
        ids: of the rows [N].
        logits: of the rows [N, 3].
        left_out: ids of further rows, of which nothing is known: all three are alike.
    """
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    known = {name: (row[0], row[1], row[2]) for name, row in zip(ids, shares.tolist(), strict=True)}
    even = (1 / len(LABELS),) * 3
    return {**known, **dict.fromkeys(left_out, even)}
