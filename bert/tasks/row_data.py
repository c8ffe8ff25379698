"""Tasks on rows of word pieces: what their plans ask. Imports no torch."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert.data.lengths import PADDINGS, SYNTHETIC, check_distribution, is_synthetic, lengths_folder
from bert.data.loading.batches import lengths_fingerprint
from bert.data.rows import TokenRows
from bert.model.config import BERT_UNCASED_VOCAB_SIZE
from bert.tasks.base import FINE_TUNING, NO_OPTIONS, DataSource, Task
from bert.tasks.options import check_options, with_defaults

TRAINING, EVALUATION = "training", "evaluation"


class RowData(Task):
    """Rows of word pieces, real or synthetic, of a task that masks none."""

    paddings = PADDINGS
    defaults = FINE_TUNING
    begins_from_encoder = True

    def __init__(self, **values: Any) -> None:
        self.values = with_defaults(self.options, check_options(self.name, self.options, values))

    @abstractmethod
    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
        """Read rows of a file or folder. Raises InputError: there are none, or damaged ones.

        `split` is TRAINING, EVALUATION, or another that the task knows, such as one to predict. `seq_len` is for data
        that are cut when they are read.
        """

    def training_rows(self, source: Path, seq_len: int | None) -> TokenRows:
        """Return rows to train on. Raises InputError: there are none, or damaged ones."""
        return self.rows(source, TRAINING, seq_len)

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect rows to train on with these options."""
        modelled = lengths_folder(data)
        if modelled is None and is_synthetic(data):
            check_distribution(data, seq_len, self.name)
            return DataSource(data, "", None, None, BERT_UNCASED_VOCAB_SIZE)
        path = (modelled or Path(data)).resolve()
        rows = type(self)(**options).training_rows(path, seq_len)
        longest = rows.max_seq_length
        if modelled is None:
            return DataSource(str(path), rows.fingerprint, longest, None, rows.vocab_size, len(rows), rows.vocabulary)
        fingerprint = lengths_fingerprint(longest, rows.lengths)
        return DataSource(f"{SYNTHETIC}:{path}", fingerprint, longest, None, rows.vocab_size)

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """Return the options unchanged: none depends on the data."""
        return self.values

    def max_predictions(self, seq_len: int) -> int:
        """0: no word is masked."""
        return 0
