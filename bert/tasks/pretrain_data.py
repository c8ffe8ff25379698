"""What a plan asks of pretraining's data: folders of HDF5 shards. Imports no torch."""

from pathlib import Path

from bert.config import BERT_UNCASED_VOCAB_SIZE
from bert.data.lengths import SYNTHETIC, check_distribution, default_max_predictions, is_synthetic, lengths_folder
from bert.tasks.data import DataSource


class PretrainData:
    """Shards, or made-up instances."""

    seq_len = 128
    paddings: tuple[str, ...] = ()

    def inspect(self, data: str, seq_len: int | None = None) -> DataSource:
        """Look at a folder's shards. Raises InputError: it holds none, or one of them is damaged."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len)
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        from bert.data.loading.folder import folder_info

        info = folder_info((modelled or Path(data)).resolve(), seq_len=seq_len)
        source, fingerprint = str(info.path), info.fingerprint
        if modelled is not None:
            from bert.data.loading.sample_lengths import folder_lengths

            source, fingerprint = f"{SYNTHETIC}:{source}", folder_lengths(info).fingerprint
        vocab_size = info.vocab_size or BERT_UNCASED_VOCAB_SIZE
        samples = None if modelled is not None else info.samples
        return DataSource(source, fingerprint, info.seq_len, info.max_predictions, vocab_size, samples)

    def max_predictions(self, seq_len: int) -> int:
        """As published, else 15 % of the length."""
        return default_max_predictions(seq_len)

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes shards."""
        return f"bertbench data pretrain --seq-len {seq_len}"
