"""Scalars for TensorBoard, where that package is installed. It is imported only here, and only in training."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.atomic import storage_errors


class Scalars:
    """Writes event files; a folder of several attempts shows as one run."""

    def __init__(self, folder: Path, writer: Any, unavailable: str) -> None:
        self._folder = folder
        self._writer = writer
        self.unavailable = unavailable
        """Why nothing is written; empty where something is."""

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Add the values that are known and finite, by tag."""
        if self._writer is None:
            return
        with storage_errors(self._folder):
            for tag, value in values.items():
                if value is not None and math.isfinite(value):
                    self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        """Bring everything added so far into the file."""
        if self._writer is not None:
            with storage_errors(self._folder):
                self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            with storage_errors(self._folder):
                self._writer.close()


def find_writer() -> tuple[Any, str]:
    """Import TensorBoard's writer, which takes a second; return it, or None and why there is none."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        return None, f"no TensorBoard events are written ({error}): pip install tensorboard"
    return SummaryWriter, ""


def open_scalars(folder: Path, purge_from: int) -> Scalars:
    """Open a new event file; TensorBoard leaves out what older ones hold of step `purge_from` and later ones."""
    writer, unavailable = find_writer()
    if writer is None:
        return Scalars(folder, None, unavailable)
    with storage_errors(folder):
        return Scalars(folder, writer(str(folder), purge_step=purge_from), "")
