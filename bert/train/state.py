"""What a checkpoint's `state.json` says: everything an exact resume needs that is no tensor."""

import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bert.tasks.base import DataIdentity, Evaluation
from bert.train.events import Best
from bert.train.settings import TrainSettings
from common.errors import InputError, SchemaError

FORMAT = "bertbench checkpoint"
SCHEMA_VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """Where a run stands between two steps."""

    settings: TrainSettings
    """What the run was asked to do."""
    data: DataIdentity
    position: dict[str, Any]
    """State of the data stream behind the last batch that was trained on."""
    progress: dict[str, int]
    """Updates applied and left out (bert.train.loop.Progress)."""
    samples_seen: int
    """Samples trained on, those of steps that were left out too."""
    scaler: dict[str, Any]
    """State of the loss scaling; empty where nothing is scaled."""
    optimizer_steps: int | None
    """Steps that the optimizer counts for all its parameters together; None where each has its own count."""
    evaluation: Evaluation | None
    best: Best | None = None
    """The best evaluation, whose checkpoint stays."""
    versions: dict[str, str]

    @property
    def applied_steps(self) -> int:
        """Updates made."""
        return self.progress["applied_steps"]

    def to_json(self) -> dict[str, Any]:
        """Return everything by name."""
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            **{part.name: getattr(self, part.name) for part in fields(self)},
            "settings": self.settings.to_json(),
            "data": asdict(self.data),
            "evaluation": None if self.evaluation is None else _plain(self.evaluation),
            "best": None if self.best is None else asdict(self.best),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainState":
        """Return what `to_json` wrote. Raises InputError for a damaged state, SchemaError for a newer version's."""
        if content.get("format") != FORMAT:
            raise InputError("record-foreign", "it is no checkpoint of bertbench")
        version = content.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise SchemaError(
                "record-newer",
                f"a newer version wrote it (schema {version}, this one reads up to {SCHEMA_VERSION}): update bertbench",
            )
        try:
            values = {part.name: content[part.name] for part in fields(cls) if part.name != "best"}
            best = content["best"] if version != 1 else None
            state = cls(
                **{
                    **values,
                    "settings": TrainSettings.from_json(values["settings"]),
                    "data": DataIdentity(**values["data"]),
                    "evaluation": _evaluation(values["evaluation"], version),
                    "best": None if best is None else Best(**best),
                }
            )
            whole = state.applied_steps >= 0 and state.samples_seen >= 0 and isinstance(state.position, dict)
            whole = whole and (state.best is None or (state.best.applied_steps >= 0 and state.best.value * 0 == 0))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InputError("file-damaged", f"its state is damaged ({error!r})") from error
        if not whole or not isinstance(state.scaler, dict):
            raise InputError("file-damaged", "its state holds values that no run has")
        return state


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    """What was found, None where it is not finite, which JSON has no word for."""
    values = {name: value if math.isfinite(value) else None for name, value in evaluation.values.items()}
    return {**asdict(evaluation), "values": values}


def _evaluation(content: Mapping[str, Any] | None, version: object) -> Evaluation | None:
    if content is None:
        return None
    if version == 1:  # scores of pretraining, each a field of its own
        names = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
        counts = {"predicted_positions": content["predicted_positions"]}
        return Evaluation(values={name: content[name] for name in names}, samples=content["samples"], counts=counts)
    values = {name: math.nan if value is None else float(value) for name, value in content["values"].items()}
    return Evaluation(values=values, samples=content["samples"], counts=dict(content["counts"]))


def versions() -> dict[str, str]:
    """Return the versions of what numbers depend on."""
    import numpy as np
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}


def vocabulary_text(data: DataIdentity) -> str | None:
    """Return the vocab.txt beside the data; None where there is none, or another one than they were made with.

    Raises:
        InputError: it cannot be read.
    """
    from bert.data.vocabulary import VOCABULARY_FILE, either_fingerprint

    if data.vocabulary is None:
        return None
    source = Path(data.source).joinpath(*data.shards[:1])
    folder = source if source.is_dir() else source.parent
    for path in (folder / VOCABULARY_FILE, *sorted(folder.glob(f"*.{VOCABULARY_FILE}"))):
        if path.is_file() and data.vocabulary in either_fingerprint(path):
            return path.read_text(encoding="utf-8")
    return None
