"""Question answering on SQuAD: where in a text the answer begins and ends (Devlin et al. 2018, section 4.2).

What computes imports torch when it is called: planning needs none.
"""

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bert.data.lengths import is_synthetic
from bert.data.rows import TokenRows
from bert.model.config import ModelConfig
from bert.model.step import Gemm, Pass, Step
from bert.tasks.base import (
    FINE_TUNING,
    BatchStream,
    DataIdentity,
    DataSpec,
    EvaluationSpec,
    Heads,
    Trained,
)
from bert.tasks.row_data import RowData
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import torch

    from bert.data.batch import Batch
    from bert.observer import Observer
    from bert.tasks.squad.evaluation import Questions


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
    defaults = MappingProxyType({**FINE_TUNING, "seq_len": 384, "epochs": 2.0, "evaluates": False})
    parts = ("start_loss", "end_loss")
    scores = (
        "exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_exact", "best_exact_thresh",
        "best_f1", "best_f1_thresh",
    )  # fmt: skip
    deciding_score = "f1"
    higher_is_better = True

    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
        """Read the windows of a features file. Raises InputError: there is none, or it is damaged."""
        from bert.tasks.squad.features import open_features

        return open_features(source, split).rows

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Inspect the features to evaluate on.

        Raises:
            UsageError: none are named.
            InputError: they are missing, longer than those that are trained on, without answers, or of another
                vocabulary.
        """
        from bert.data.features import vocabulary_of
        from bert.tasks.squad.features import open_features
        from bert.tasks.squad.reading import golds_of

        if is_synthetic(source):
            return
        if wanted is None:
            raise UsageError(
                "option-missing",
                "no data to evaluate on: give --eval-data, the features of a dev file, or --eval-every 0",
            )
        features = open_features(Path(wanted), "evaluation")
        longest = features.settings.max_seq_length
        if longest > seq_len:
            raise InputError(
                "data-mismatch",
                f"the windows in {wanted} have up to {longest} tokens, but the training data up to {seq_len}: create "
                "both with the same --max-seq-length",
            )
        if features.settings.vocabulary != open_features(Path(source), "training").settings.vocabulary:
            raise InputError(
                "vocabulary-mismatch",
                f"the features in {wanted} and {source} were created with different vocabularies or casings: create "
                "both with the same",
            )
        golds_of(features)
        vocabulary_of(Path(wanted), features.settings)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        return f"bertbench data squad --input TRAIN.json --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """A prediction of what it was evaluated on, else of the windows to evaluate on beside the data."""
        from bert.data.features import find_features

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
        from bert.observer import Observer

        return BertForQuestionAnswering(config, observer or Observer())

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Synthetic batches, or those of a features file. Raises InputError that names the file at fault."""
        from bert.data.loading.batches import RowBatches
        from bert.data.synthetic import QUESTIONS, SyntheticBatches

        if is_synthetic(spec.data):
            return SyntheticBatches(spec, QUESTIONS)
        return RowBatches(spec, self._rows(spec, split))

    def _rows(self, spec: DataSpec, split: str) -> TokenRows:
        from bert.tasks.squad.features import open_features

        return open_features(Path(spec.data), split, spec.seq_len).rows

    def loss(self, model: "torch.nn.Module", batch: "Batch") -> "torch.Tensor":
        """Mean of start and end loss, a scalar."""
        loss: torch.Tensor = model(batch).loss
        return loss

    def loss_parts(self, model: "torch.nn.Module", batch: "Batch") -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
        """Mean of start and end loss, a scalar, and the two."""
        output = model(batch)
        return output.loss, {"start_loss": output.start_loss.detach(), "end_loss": output.end_loss.detach()}

    def identify(self, spec: DataSpec, split: str = "training") -> DataIdentity:
        """Inspect the features of a run. Raises InputError if they are missing, damaged or do not fit `spec`."""
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        return DataIdentity.of(spec.data, self._rows(spec, split))

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "Questions":
        """Open the features to evaluate on; raises as `check_evaluation` does."""
        from bert.tasks.squad.evaluation import Questions

        self.check_evaluation(spec.data, spec.seq_len, wanted.source)
        return Questions(spec, Path(str(wanted.source)), wanted.samples)
