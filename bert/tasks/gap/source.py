"""What a plan asks of GAP's data: files of features. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert.data.lengths import is_synthetic
from bert.data.rows import TokenRows
from bert.model.config import ModelConfig
from bert.model.step import Gemm, Step, classifier, pooler
from bert.tasks.base import FINE_TUNING, NO_OPTIONS, Trained
from bert.tasks.classification_data import EVALUATION, ClassificationData, check_judging
from bert.tasks.gap.config import DEFAULT_LENGTH, MENTIONS
from bert.tasks.gap.examples import LABELS
from bert.tasks.options import TaskOption
from common.errors import UsageError

HEAD_NAMES = ("concat", "mul", "segment", "span")
"""Of bert.tasks.gap.heads.HEADS."""


class GapData(ClassificationData):
    """Texts with a pronoun and two names, real or made up."""

    name = "gap"
    trained_by = "bert.tasks.gap.task:GapTask"
    heads = ""
    commands = MappingProxyType(
        {
            "data": (
                "bert.tasks.gap.commands:Prepare",
                "GAP's TSVs -> features: texts, a pronoun and two names in each",
            ),
            "predict": ("bert.tasks.gap.commands:Predict", "which of two names a pronoun means, and Kaggle's CSV"),
            "eval": (
                "bert.tasks.gap.commands:Eval",
                "official scores of GAP, log loss, accuracy, by gender, distance and length",
            ),
        }
    )
    seq_len = DEFAULT_LENGTH
    options = (
        TaskOption(
            name="head", kind=str, default="concat", choices=HEAD_NAMES, says="how pronoun and names become an answer"
        ),
        TaskOption(name="sample_limit", kind=int, says="train on N samples alone, spread evenly"),
        TaskOption(name="train_on_all", kind=bool, default=False, says="train on the validation data too"),
    )
    defaults = MappingProxyType({**FINE_TUNING, "seq_len": DEFAULT_LENGTH, "global_batch_size": 16})

    def labels(self, options: Mapping[str, Any]) -> int:
        """Neither, A, B."""
        return len(LABELS)

    def rows(self, source: Path, split: str, options: Mapping[str, Any], seq_len: int | None = None) -> TokenRows:
        """Read features to train on, with what `train_on_all` and `sample_limit` say; or to evaluate on.

        Raises:
            InputError: there are none, several, damaged ones, or rows without labels are to be trained on.
        """
        from bert.tasks.gap.selection import evaluation_features, training_rows

        if split == EVALUATION:
            return evaluation_features(source, source).rows
        return training_rows(source, bool(options.get("train_on_all")), options.get("sample_limit"))

    def evaluation_rows(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any], training: TokenRows
    ) -> TokenRows:
        """Return the rows to evaluate on: those that are wanted, else those for validation beside the training data.

        Raises:
            InputError: there are none with labels, they are longer than those that are trained on, or of another
                vocabulary.
            UsageError: they are trained on.
        """
        from bert.tasks.gap.selection import evaluation_features, training_files

        features = evaluation_features(Path(source), None if wanted is None else Path(wanted))
        rows, place = features.rows, wanted or f"{source}, for validation,"
        check_judging(rows, place, seq_len, training, source)
        trained_on = training_files(Path(source), bool(options.get("train_on_all")))
        if any(file.fingerprint == features.fingerprint for file in trained_on):
            why = "--train-on-all trains on validation too" if options.get("train_on_all") else "they are trained on"
            raise UsageError(
                "option-conflict",
                f"the rows in {place} cannot judge the model, {why}: give other features as --eval-data, such as those "
                "of gap-test.tsv, or --eval-every 0",
            )
        return rows

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        from bert.tasks.gap.features import FORM

        return FORM.command("training", max_seq_length=seq_len)

    def next_command(self, trained: Trained) -> list[str] | None:
        """A prediction of the test rows beside the data, else of the rows it was evaluated on."""
        from bert.tasks.gap.features import FORM

        if is_synthetic(trained.data):
            return None
        named = Path(trained.eval_data or trained.data)
        folders = dict.fromkeys((trained.folder(), named if named.is_dir() else named.parent))
        found = [
            file for split in ("test", "validation") for folder in folders for file in FORM.files_in(folder, split)
        ]
        if trained.eval_data is not None and named.is_file():
            found.insert(0, named)
        return trained.prediction(self.name, "--features", str(found[0])) if found else None

    def step(self, config: ModelConfig, options: Mapping[str, Any] = NO_OPTIONS) -> Step:
        """The head that was chosen, and the pooler where it has one."""
        hidden, classes = config.hidden_size, len(LABELS)
        head = options.get("head") or "concat"
        mentions = classifier(config, classes, "mention head")
        # mul multiplies with other hidden states; its one parameter is a vector.
        gemms = {
            "concat": (replace(mentions, inner=MENTIONS * hidden),),
            "mul": (replace(mentions, own_weight=False, own_bias=False),),
            "segment": (pooler(config), mentions),
            "span": (
                Gemm(name="mention pairs", inner=3 * hidden, columns=hidden, over="sequences", rows_each=2),
                replace(mentions, columns=1, rows_each=2),
            ),
        }[head]
        return Step(config=config, head=gemms, head_vectors={"mul": hidden, "segment": MENTIONS * hidden}.get(head, 0))
