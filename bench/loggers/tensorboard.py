"""TensorBoard: event files in the run directory; TensorBoard shows the files of several attempts as one run."""

import importlib.util
from collections.abc import Mapping
from typing import Any, ClassVar

from bench.loggers.base import Target
from common.atomic import storage_errors


class TensorBoard:
    """Writes event files; for repeated steps, TensorBoard ignores older files."""

    package: ClassVar[str] = "tensorboard"
    remedy: ClassVar[str] = "pip install 'bertbench[tensorboard]'"
    run_id = None

    def __init__(self, target: Target) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = target.run.tensorboard
        with storage_errors(self._folder):
            self._writer: Any = SummaryWriter(str(self._folder), purge_step=target.purge_from)

    @staticmethod
    def wanted() -> bool:
        """Return whether it is installed; event files are cheap."""
        return importlib.util.find_spec("tensorboard") is not None

    @staticmethod
    def load() -> None:
        """Import the TensorBoard writer. Raises ImportError."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars. Raises StorageError."""
        with storage_errors(self._folder):
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        """Flush the file. Raises StorageError."""
        with storage_errors(self._folder):
            self._writer.flush()

    def close(self, finished: bool) -> None:
        """Close the file. Raises StorageError."""
        with storage_errors(self._folder):
            self._writer.close()
