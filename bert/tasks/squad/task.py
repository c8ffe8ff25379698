"""Question answering on SQuAD: where in a text the answer begins and ends (Devlin et al. 2018, section 4.2).

What computes imports torch when it is called: planning needs none.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bert.data.batches import DataSpec, spread
from bert.data.features import find_features, vocabulary_of
from bert.data.rows import TokenRows
from bert.data.synthetic import is_synthetic, random_of, synthetic_rows
from bert.model.config import ModelConfig
from bert.model.step import Gemm, Pass, Step
from bert.tasks.base import FINE_TUNING, Evaluation, EvaluationSpec, Heads, Ready, Trained
from bert.tasks.classification import TRAINING, RowData
from bert.tasks.squad.features import SquadFeatures, golds_of, open_features
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import torch

    from bert.observer import Observer
    from bert.optim.precision import Precision


class SquadTask(RowData):
    """Windows of questions and contexts; the loss is the mean of those of the answers' first and last tokens."""

    name = "squad"
    heads: Heads = "answer spans"
    commands = MappingProxyType(
        {
            "data": (
                "bert.tasks.squad.commands:Prepare",
                "SQuAD's JSON -> features: windows of questions and their contexts",
            ),
            "predict": ("bert.tasks.squad.commands:Predict", "predict answers to the questions of a features file"),
            "eval": ("bert.tasks.squad.commands:Eval", "official scores of SQuAD 1.1 and 2.0 predictions"),
        }
    )
    seq_len = 384
    labelled = False
    defaults = MappingProxyType({**FINE_TUNING, "seq_len": 384, "epochs": 2.0, "evaluates": False})
    parts = ("start_loss", "end_loss")
    scores = (
        "exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_exact", "best_exact_thresh",
        "best_f1", "best_f1_thresh",
    )  # fmt: skip
    deciding_score = "f1"
    higher_is_better = True

    def rows(self, source: Path, split: str) -> TokenRows:
        """Read the windows of a features file. Raises InputError: there is none, or it is damaged."""
        return open_features(source, split).rows

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Inspect the features to evaluate on. Raises UsageError (none are named), InputError (they do not fit)."""
        if is_synthetic(source):
            return
        if wanted is None:
            raise UsageError(
                "option-missing",
                "no data to evaluate on: give --eval-data, the features of a dev file, or --eval-every 0",
            )
        features, training = open_features(Path(wanted), "evaluation"), self.rows(Path(source), TRAINING)
        self.check_judging(features.rows, wanted, seq_len, training, source)
        golds_of(features)
        vocabulary_of(Path(wanted), features.settings)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        return f"bertbench data squad --input TRAIN.json --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """A prediction of what it was evaluated on, else of the windows to evaluate on beside the data."""
        if is_synthetic(trained.data):
            return None
        features = Path(trained.eval_data or trained.folder())
        try:
            find_features(features, "squad-evaluation")
        except InputError:
            return None
        return trained.prediction("squad", "--features", str(features))

    def loss_label(self) -> str:
        """First and last tokens of the answers."""
        return "mean of start and end"

    def step(self, config: ModelConfig) -> Step:
        """Two scores for each token; there is no pooler."""
        return Step(
            config=config,
            head=(Gemm(name="answer span", inner=config.hidden_size, columns=2),),
            head_passes=(Pass(name="cross-entropy", width=2, wide=3),),
        )

    def build_model(self, config: ModelConfig, observer: "Observer | None" = None) -> "torch.nn.Module":
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        from bert.model.heads import BertForQuestionAnswering

        return BertForQuestionAnswering(config, observer)

    def synthetic_rows(self, spec: DataSpec) -> TokenRows:
        """Return random windows: a question has up to 18 word pieces, an answer up to 4."""
        rng = random_of(spec)
        rows = synthetic_rows(spec, self.name, partial(self.rows, split=TRAINING), rng, 20)
        ends = rows.lengths - 1
        starts = rng.integers(np.minimum(rows.second, ends - 1), ends)
        targets = {"start_positions": starts, "end_positions": rng.integers(starts, np.minimum(starts + 4, ends))}
        return replace(rows, columns=targets)

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "Questions":
        """Open the features to evaluate on; raises as `check_evaluation` does."""
        self.check_evaluation(spec.data, spec.seq_len, wanted.source)
        return Questions(spec, Path(str(wanted.source)), wanted.samples)


class Questions:
    """The questions of a features file, or `samples` of them, spread evenly; the windows are shared by the ranks."""

    def __init__(self, spec: DataSpec, source: Path, samples: int = 0) -> None:
        self.features = open_features(source, "evaluation")
        self._vocabulary = vocabulary_of(source, self.features.settings)
        self._spec = spec
        self._questions = spread(len(self.features.question_ids), samples)
        self._golds = golds_of(self.features, self._questions.tolist())
        self.fingerprint = f"{self.features.fingerprint}/{len(self._questions)}"

    def measure(self, model: "torch.nn.Module", device: "torch.device", precision: "Precision") -> "torch.Tensor":
        """Return start and end logits [2 x sum of lengths] of this rank's windows, 0 for the others."""
        import torch

        spec = self._spec
        chosen = np.flatnonzero(np.isin(self.features.window_question, self._questions))
        ready = Ready(model, device, precision, spec.micro_batch_size, spec.rank, spec.world_size, chosen)
        return torch.from_numpy(window_logits(ready, self.features).astype(np.float64).reshape(-1))

    def score(self, total: "torch.Tensor") -> Evaluation:
        """Decode and score the logits of all windows. Raises InputError if one is not a finite number."""
        from bert.tasks.evaluation import check_logits
        from bert.tasks.squad.predictions import decode
        from bert.tasks.squad.scores import score

        logits = total.numpy().astype(np.float32).reshape(2, -1)
        check_logits(logits)
        answers = decode(self.features, logits, self._vocabulary, n_best=False)
        predictions = {name: answers.predictions[name] for name in self._golds.ids}
        odds = {name: answers.null_odds[name] for name in self._golds.ids if name in answers.null_odds}
        scores = score(self._golds, predictions, odds or None).values
        # 1.1 has another name for the exact matches.
        values = {name.replace("exact_match", "exact"): float(value) for name, value in scores.items()}
        return Evaluation(
            values={name: value for name, value in values.items() if name in SquadTask.scores},
            samples=len(self._questions),
            counts={name: int(value) for name, value in scores.items() if name.endswith("_total")},
        )


def window_logits(
    ready: Ready, features: SquadFeatures, told: Callable[[int], None] | None = None
) -> npt.NDArray[np.float32]:
    """Return the logits [2, sum of lengths] of the windows that `ready` computes, starts and ends, 0 for the others;
    `told` gets the number of windows done so far."""
    from bert.tasks.evaluation import outputs

    flat = np.zeros((2, int(features.lengths.sum())), dtype=np.float32)
    for numbers, output in outputs(ready, features.rows, told):
        column = np.arange(output.start_logits.shape[1])
        real = column < features.lengths[numbers, None]
        places = (features.input_ids.offsets[numbers, None] + column)[real]
        for row, logits in enumerate((output.start_logits, output.end_logits)):
            flat[row, places] = logits.float().cpu().numpy()[real]
    return flat
