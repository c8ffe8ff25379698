"""What a plan asks of SQuAD's data: features files. Imports no torch."""

from pathlib import Path

from bert.config import BERT_UNCASED_VOCAB_SIZE
from bert.data.lengths import PADDINGS, SYNTHETIC, check_distribution, is_synthetic, lengths_folder
from bert.tasks.data import DataSource


class SquadData:
    """Windows of questions and contexts, real or made up."""

    seq_len = 384
    paddings: tuple[str, ...] = PADDINGS

    def inspect(self, data: str, seq_len: int | None = None) -> DataSource:
        """Look at a features file. Raises InputError: there is none, or it is damaged."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len, "squad")
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        from bert.data.loading.squad_batches import lengths_fingerprint
        from bert.data.squad.store import open_features

        path = (modelled or Path(data)).resolve()
        features = open_features(path, "training")
        settings = features.settings
        source, fingerprint = str(path), features.fingerprint
        if modelled is not None:
            source, fingerprint = f"{SYNTHETIC}:{source}", lengths_fingerprint(features)
        samples = None if modelled is not None else len(features)
        return DataSource(source, fingerprint, settings.max_seq_length, None, settings.vocab_size, samples)

    def max_predictions(self, seq_len: int) -> int:
        """None: no word is masked."""
        return 0

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        from bert.data.loading.squad_batches import prepare_command

        return prepare_command(seq_len)
