"""What the model says of each window: two logits per real token."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64
from bert.tasks.squad.features import SquadFeatures
from common.errors import InputError

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WindowLogits:
    """Logits of all windows of SquadFeatures, real tokens only, in the order of the windows."""

    start: Float32
    """That the answer begins at a token [sum of lengths]."""
    end: Float32
    """That it ends there [sum of lengths]."""
    offsets: Int64
    """Window i has start[offsets[i] : offsets[i + 1]]: [W + 1]."""

    def check(self, features: SquadFeatures) -> None:
        """Hold the logits against the windows.

        Raises:
            InputError: they belong to other windows, or one is NaN or infinite; the message names the question.
        """
        if not np.array_equal(self.offsets, features.input_ids.offsets - features.input_ids.offsets[0]):
            raise InputError(
                "answers-invalid",
                f"the logits of {len(self.offsets) - 1:,} windows with {int(self.offsets[-1]):,} tokens are not those "
                f"of these features: {len(features):,} windows with {int(features.lengths.sum()):,} tokens; "
                "predict again",
            )
        for name, values in (("start", self.start), ("end", self.end)):
            if values.shape != (self.offsets[-1],):
                raise InputError(
                    "answers-invalid",
                    f"{values.shape} {name} logits were given, needed is one for each of the "
                    f"{int(self.offsets[-1]):,} tokens: predict again",
                )
            wrong = np.flatnonzero(~np.isfinite(values))
            if len(wrong):
                window = int(np.searchsorted(self.offsets, wrong[0], side="right")) - 1
                question = int(features.window_question[window])
                raise InputError(
                    "logits-not-finite",
                    f"the model gives {values[wrong[0]]} as a {name} logit of question "
                    f"{features.question_ids.text(question)!r} (window {window}), and {len(wrong):,} such logits in "
                    "all: its weights are damaged or the precision overflows; use other weights or --precision fp32",
                )
