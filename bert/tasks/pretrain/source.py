"""Pretraining data for plans: folders of HDF5 shards. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bert.data.lengths import SYNTHETIC, check_distribution, default_max_predictions, is_synthetic, lengths_folder
from bert.model.config import BERT_UNCASED_VOCAB_SIZE, ModelConfig
from bert.model.step import Gemm, Over, Pass, Step, classifier, pooler
from bert.tasks.base import NO_OPTIONS, DataSource, Heads, Trained
from bert.tasks.options import TaskOption
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.tasks.pretrain.shards import ShardFolder


def open_test_shards(folder: Path, seq_len: int) -> "ShardFolder":
    """Look at the test shards of a folder. Raises InputError: there are none, or a damaged one."""
    from bert.tasks.pretrain.shards import folder_info

    try:
        return folder_info(folder, "test", seq_len)
    except InputError as error:
        raise InputError(error.code, f"{error}; or train without evaluation (--eval-every 0)") from error


class PretrainData:
    """Shards, or synthetic instances."""

    trained_by = "bert.tasks.pretrain.task:PretrainTask"
    heads: Heads = "masked words"
    commands: Mapping[str, tuple[str, str]] = MappingProxyType({})
    seq_len = 128
    paddings: tuple[str, ...] = ()
    options: tuple[TaskOption, ...] = ()
    defaults: Mapping[str, Any] = NO_OPTIONS

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect a folder's shards. Raises InputError: it holds none, or one of them is damaged."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len)
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        from bert.tasks.pretrain.shards import folder_info

        info = folder_info((modelled or Path(data)).resolve(), seq_len=seq_len)
        source, fingerprint = str(info.path), info.fingerprint
        if modelled is not None:
            from bert.tasks.pretrain.shards import folder_lengths

            source, fingerprint = f"{SYNTHETIC}:{source}", folder_lengths(info).fingerprint
        vocab_size = info.vocab_size or BERT_UNCASED_VOCAB_SIZE
        samples = None if modelled is not None else info.samples
        return DataSource(source, fingerprint, info.seq_len, info.max_predictions, vocab_size, samples)

    def resolve(self, options: Mapping[str, Any], source: DataSource) -> Mapping[str, Any]:
        """Return no options: the task has none."""
        return options

    def check_evaluation(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        """Inspect the test shards. Raises InputError: there are none; UsageError if others are wanted."""
        if wanted is not None:
            raise UsageError(
                "option-not-applicable", f"--eval-data {wanted}: pretraining evaluates its test shards; leave it out"
            )
        if is_synthetic(source):
            return
        open_test_shards(Path(source), seq_len)

    def max_predictions(self, seq_len: int) -> int:
        """As published, else 15 % of the length."""
        return default_max_predictions(seq_len)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes shards."""
        return f"bertbench data pretrain --seq-len {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """A conversion, so that fine-tuning anywhere can begin from it."""
        return trained.conversion()

    def loss_label(self, options: Mapping[str, Any] = NO_OPTIONS) -> str:
        """Masked words and next sentences."""
        return "MLM + NSP"

    def step(self, config: ModelConfig, options: Mapping[str, Any] = NO_OPTIONS) -> Step:
        """Transform and decoder of the masked words, whose matrix is the word embedding; pooler and next sentence."""
        hidden, words = config.hidden_size, config.padded_vocab_size
        predictions: Over = "predictions"
        return Step(
            config=config,
            head=(
                Gemm(name="head transform", inner=hidden, columns=hidden, over=predictions),
                Gemm(
                    name="head decoder", inner=hidden, columns=words, over=predictions, own_weight=False,
                    model_columns=config.vocab_size,
                ),
                pooler(config),
                classifier(config, 2, "next sentence"),
            ),
            head_passes=(
                Pass(name="gather", width=hidden, over=predictions, wide=3),
                Pass(name="head GELU, norm", width=hidden, over=predictions, narrow=5),
                Pass(name="cross-entropy", width=words, over=predictions, narrow=3, kept_narrow=1, kept_wide=2),
            ),
            head_vectors=2 * hidden,
        )  # fmt: skip
