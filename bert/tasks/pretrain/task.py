"""Pretraining: masked words and next sentences (Devlin et al. 2018, section 3.1), on folders of HDF5 shards."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bert.data.batches import Batches, DataSpec, lengths_fingerprint
from bert.data.synthetic import SYNTHETIC, check_distribution, default_max_predictions, is_synthetic, lengths_folder
from bert.model.config import BERT_UNCASED_VOCAB_SIZE, ModelConfig
from bert.model.step import Gemm, Over, Pass, Step
from bert.tasks.base import NO_OPTIONS, DataIdentity, DataSource, EvaluationSpec, Heads, Task, classifier, pooler
from bert.tasks.pretrain.shards import folder_info, folder_lengths, open_shards
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    import torch

    from bert.observer import Observer
    from bert.tasks.pretrain.batches import TestShards


class PretrainTask(Task):
    """Masked-language-model loss plus next-sentence loss, of shards or of synthetic instances."""

    name = "pretrain"
    heads: Heads = "masked words"
    commands = MappingProxyType({})
    seq_len = 128
    paddings = ()
    defaults = NO_OPTIONS
    parts = ("mlm_loss", "nsp_loss")
    scores = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    deciding_score = "mlm_loss"
    higher_is_better = False
    begins_from_encoder = False

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect a folder's shards. Raises InputError: it holds none, or one of them is damaged."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len)
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        info = folder_info((modelled or Path(data)).resolve(), seq_len=seq_len)
        source, fingerprint = str(info.path), info.fingerprint
        if modelled is not None:
            source, fingerprint = f"{SYNTHETIC}:{source}", lengths_fingerprint(info.samples, folder_lengths(info))
        vocab_size, samples = info.vocab_size or BERT_UNCASED_VOCAB_SIZE, info.samples if modelled is None else None
        return DataSource(source, fingerprint, info.seq_len, info.max_predictions, vocab_size, samples)

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Inspect the test shards. Raises InputError: there are none; UsageError if others are wanted."""
        if wanted is not None:
            raise UsageError(
                "option-not-applicable", f"--eval-data {wanted}: pretraining evaluates its test shards; leave it out"
            )
        if not is_synthetic(source):
            open_shards(Path(source), "test", seq_len)

    def max_predictions(self, seq_len: int) -> int:
        """As published, else 15 % of the length."""
        return default_max_predictions(seq_len)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes shards."""
        return f"bertbench data pretrain --seq-len {seq_len}"

    def loss_label(self) -> str:
        """Masked words and next sentences."""
        return "MLM + NSP"

    def step(self, config: ModelConfig) -> Step:
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

    def build_model(self, config: ModelConfig, observer: "Observer | None" = None) -> "torch.nn.Module":
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""
        from bert.model.heads import BertForPretraining
        from bert.observer import Observer

        return BertForPretraining(config, observer or Observer())

    def batches(self, spec: DataSpec, split: str = "training") -> Batches:
        """Synthetic batches, or those of a folder of HDF5 shards. Raises InputError that names the file at fault."""
        from bert.tasks.pretrain.batches import Hdf5Batches, SyntheticBatches

        return SyntheticBatches(spec) if is_synthetic(spec.data) else Hdf5Batches(spec, split)

    def identify(self, spec: DataSpec, split: str = "training") -> DataIdentity:
        """Inspect the shards of a run. Raises InputError: none, a damaged or missing one, or another vocabulary."""
        if is_synthetic(spec.data):
            return DataIdentity(source=spec.data)
        info = folder_info(Path(spec.data), split, spec.seq_len)
        if info.vocab_size is not None and info.vocab_size != spec.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"{info.path} has a vocabulary of {info.vocab_size}, the model {spec.vocab_size}: use the former",
            )
        return DataIdentity(
            source=spec.data,
            fingerprint=info.fingerprint,
            shards=[path.relative_to(info.path).as_posix() for path in info.paths],
            vocab_size=info.vocab_size,
            vocabulary=info.vocabulary,
        )

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> "TestShards":
        """Open the test shards beside the training shards. Raises InputError, UsageError if others are wanted."""
        from bert.tasks.pretrain.batches import TestShards

        self.check_evaluation(spec.data, spec.seq_len, wanted.source)
        return TestShards(spec, wanted.samples)
