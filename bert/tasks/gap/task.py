"""Pronoun resolution on GAP: which of two names a pronoun refers to, if any (Webster et al. 2018, arXiv 1810.05201).

Imports torch where it trains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.batches import spread
from bert.data.features import features_in
from bert.data.finished import fingerprint_of
from bert.data.rows import Labels, Ragged, TokenRows
from bert.data.synthetic import Lengths, is_synthetic
from bert.model.config import ModelConfig
from bert.model.step import Gemm, Step
from bert.tasks.base import FINE_TUNING, TaskOption, Trained, classifier, pooler
from bert.tasks.classification import EVALUATION, ClassificationTask
from bert.tasks.gap.features import DEFAULT_LENGTH, MENTION_ENDS, MENTION_STARTS, MENTIONS, open_features
from bert.tasks.gap.reading import DECISIONS, LABELS
from bert.tasks.gap.scores import score
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import torch

    from bert.observer import Observer
    from bert.tasks.evaluation import Float32

HEAD_NAMES = ("concat", "mul", "segment", "span")
"""Of bert.tasks.gap.heads.HEADS."""


class GapTask(ClassificationTask):
    """Cross-entropy of neither, A and B; texts with a pronoun and two names, real or synthetic."""

    name = "gap"
    heads = ""
    commands = MappingProxyType(
        {
            "data": (
                "bert.tasks.gap.commands:Prepare",
                "GAP's TSVs -> features: texts, a pronoun and two names in each",
            ),
            "predict": (
                "bert.tasks.gap.commands:Predict",
                "predict, for each row, which name the pronoun refers to; writes Kaggle's CSV",
            ),
            "eval": (
                "bert.tasks.gap.commands:Eval",
                "official scores of GAP, log loss, accuracy, by gender, distance and length",
            ),
        }
    )
    seq_len = DEFAULT_LENGTH
    options = (
        TaskOption(
            name="head", kind=str, default="concat", choices=HEAD_NAMES, says="method that combines pronoun and names"
        ),
        TaskOption(name="sample_limit", kind=int, says="train on only N samples, evenly spaced"),
        TaskOption(name="train_on_all", kind=bool, default=False, says="train on the validation data too"),
    )
    defaults = MappingProxyType({**FINE_TUNING, "seq_len": DEFAULT_LENGTH, "global_batch_size": 16})
    scores = ("accuracy", "log_loss", "gap_f1")
    deciding_score = "accuracy"
    higher_is_better = True
    labels = len(LABELS)

    def rows(self, source: Path, split: str) -> TokenRows:
        """Read features to train on, with what `train_on_all` and `sample_limit` say; or to evaluate on."""
        if split == EVALUATION:
            return open_features(source, "validation").rows
        return _joined(self._trained_on(source), int(self.values.get("sample_limit") or 0))

    def _trained_on(self, source: Path) -> list[TokenRows]:
        validation = [_validation(source)] if self.values["train_on_all"] else []
        return [open_features(source, "training").rows, *validation]

    def evaluation_rows(self, source: str, seq_len: int, wanted: str | None, training: TokenRows) -> TokenRows:
        """Return the rows to evaluate on: those that are wanted, else those for validation beside the training data.

        Raises InputError as the other tasks do, and UsageError: they are trained on.
        """
        rows = _validation(Path(source)) if wanted is None else open_features(Path(wanted), "validation").rows
        place = wanted or f"{source}, for validation,"
        self.check_judging(rows, place, seq_len, training, source)
        if any(part.fingerprint == rows.fingerprint for part in self._trained_on(Path(source))):
            raise UsageError(
                "option-conflict", f"the rows in {place} are also trained on: give others as --eval-data, such as test"
            )
        return rows

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        return f"bertbench data gap --input gap-development.tsv --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """A prediction of the rows it was evaluated on, else of those for tests or validation beside the data."""
        if is_synthetic(trained.data):
            return None
        beside = [file for split in ("test", "validation") for file in features_in(trained.folder(), f"gap-{split}")]
        features = trained.eval_data or next(map(str, beside), None)
        return None if features is None else trained.prediction(self.name, "--features", features)

    def step(self, config: ModelConfig) -> Step:
        """The head that was chosen, and the pooler where it has one."""
        hidden, head = config.hidden_size, str(self.values["head"])
        mentions = classifier(config, self.labels, "mention head")
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
        vectors = {"mul": hidden, "segment": MENTIONS * hidden}.get(head, 0)
        return Step(config=config, head=gemms, head_vectors=vectors)

    def build_model(self, config: ModelConfig, observer: "Observer | None" = None) -> "torch.nn.Module":
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        from bert.tasks.gap.heads import BertForMentions

        return BertForMentions(config, str(self.values["head"]), observer)

    def score(self, logits: "Float32", labels: Labels) -> Mapping[str, float]:
        """Return accuracy, log loss in nats, and the official F1 of all names in percent."""
        from bert.tasks.evaluation import mean_log_loss

        classes = logits.argmax(1)
        golds = {str(number): (DECISIONS[label], None) for number, label in enumerate(labels.tolist())}
        decisions = {str(number): DECISIONS[label] for number, label in enumerate(classes.tolist())}
        return {
            "accuracy": float((classes == labels).mean()),
            "log_loss": mean_log_loss(logits, labels),
            "gap_f1": score(golds, decisions).overall.f1,
        }

    def synthetic_columns(self, rng: np.random.Generator, lengths: Lengths) -> dict[str, npt.NDArray[Any]]:
        """Draw three mentions of one token each in rows of these lengths."""
        order = np.stack([rng.permutation(MENTIONS) for _ in lengths])
        # The shortest rows have three tokens between [CLS] and the last one: a third of the row for each mention.
        starts = 1 + order * ((lengths - 2) // MENTIONS)[:, None]
        return {MENTION_STARTS: starts, MENTION_ENDS: starts + 1}


def _validation(source: Path) -> TokenRows:
    return open_features(source if source.is_dir() else source.parent, "validation").rows


def _joined(parts: Sequence[TokenRows], limit: int) -> TokenRows:
    """Return rows of several files one after another, or `limit` of them, evenly spaced; the longest max_seq_length
    holds for all."""
    if len({part.vocabulary for part in parts}) > 1:
        raise InputError("vocabulary-mismatch", "the features to train on have different vocabularies: remake them")
    ids = [part.ids[row] for part in parts for row in range(len(part))]
    numbers = spread(len(ids), limit)

    def chosen(columns: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        whole = np.concatenate(list(columns))
        return whole[numbers] if len(whole) == len(ids) else whole  # labels may be absent

    fingerprint = fingerprint_of(*(part.fingerprint for part in parts)) if len(parts) > 1 else parts[0].fingerprint
    return replace(
        parts[0],
        ids=Ragged.of([ids[number] for number in numbers.tolist()], parts[0].ids.values.dtype),
        second=chosen(part.second for part in parts),
        labels=chosen(part.labels for part in parts),
        columns={name: chosen(part.columns[name] for part in parts) for name in parts[0].columns},
        fingerprint=fingerprint if len(numbers) == len(ids) else fingerprint_of(fingerprint, numbers.tolist()),
        max_seq_length=max(part.max_seq_length for part in parts),
    )
