"""SQuAD's data for plans: feature files. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.lengths import is_synthetic
from bert.data.rows import TokenRows
from bert.model.config import ModelConfig
from bert.model.step import Gemm, Pass, Step
from bert.tasks.base import FINE_TUNING, Heads, Trained
from bert.tasks.row_data import RowData
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.data.vocabulary import Vocabulary
    from bert.tasks.squad.features import SquadFeatures


def open_evaluation(source: Path, seq_len: int) -> "tuple[SquadFeatures, Vocabulary]":
    """Return the features to evaluate on and the vocabulary they were made with.

    Args:
        source: a features file, or a folder with one.
        seq_len: tokens of the windows that are trained on, at most.
    """
    from bert.tasks.squad.features import FORM

    features = FORM.open(source, "evaluation")
    settings = features.settings
    if settings.max_seq_length > seq_len:
        raise InputError(
            "data-mismatch",
            f"the windows in {source} have up to {settings.max_seq_length} tokens, but the training data up to "
            f"{seq_len}: create both with the same --max-seq-length",
        )
    if not len(features):
        raise InputError(
            "data-missing", f"the features in {source} hold no windows: create them from questions with contexts"
        )
    answers = np.diff(features.question_answers)
    if settings.version == "1.1" and (without := int(np.count_nonzero(answers == 0))):
        raise InputError(
            "labels-invalid",
            f"{without:,} of the {len(answers):,} questions in {source} have no gold answer, and the rules of SQuAD "
            "1.1 cannot score them: create the features from a dataset with answers, or train with --eval-every 0",
        )
    return features, FORM.vocabulary_of(source, settings)


class SquadData(RowData):
    """Windows of questions and contexts, real or synthetic."""

    name = "squad"
    trained_by = "bert.tasks.squad.task:SquadTask"
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
    defaults: Mapping[str, Any] = MappingProxyType({**FINE_TUNING, "seq_len": 384, "epochs": 2.0, "evaluates": False})

    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
        """Read the windows of a features file. Raises InputError: there is none, or it is damaged."""
        from bert.tasks.squad.features import FORM

        return FORM.open(source, split).rows

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Inspect the features to evaluate on.

        Raises:
            UsageError: none are named.
            InputError: they are missing or damaged, longer than those that are trained on, or of another vocabulary.
        """
        if is_synthetic(source):
            return
        if wanted is None:
            raise UsageError(
                "option-missing",
                "no data to evaluate on: give --eval-data, the features of a dev file, or --eval-every 0",
            )
        from bert.tasks.squad.features import FORM

        features, _ = open_evaluation(Path(wanted), seq_len)
        if features.settings.vocabulary != FORM.open(Path(source), "training").settings.vocabulary:
            raise InputError(
                "vocabulary-mismatch",
                f"the features in {wanted} and {source} were created with different vocabularies: their "
                "ids mean different words; create both with the same vocab.txt and casing",
            )

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        from bert.tasks.squad.features import FORM

        return FORM.command("training", max_seq_length=seq_len)

    def next_command(self, trained: Trained) -> list[str] | None:
        """A prediction of what it was evaluated on, else of the windows to evaluate on beside the data."""
        from bert.tasks.squad.features import FORM

        if is_synthetic(trained.data):
            return None
        features = Path(trained.eval_data or trained.folder())
        try:
            FORM.open(features, "evaluation")
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
