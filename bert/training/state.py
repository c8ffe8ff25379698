"""What a checkpoint's `state.json` says: everything an exact resume needs that is no tensor."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bert.data.lengths import is_synthetic
from bert.tasks.base import DataSpec
from bert.training.events import Evaluation
from bert.training.settings import TrainSettings
from common.errors import InputError, SchemaError

FORMAT = "bertbench checkpoint"
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DataIdentity:
    """What tells one set of training data from another, wherever it lies."""

    source: str
    """As given: a folder, or the name of made-up data."""
    fingerprint: str | None = None
    """Hash of the shards' names, sizes and sample counts; None for made-up data."""
    shards: list[str] = field(default_factory=list)
    """Names of the shards."""
    vocab_size: int | None = None
    """Word pieces of the vocabulary they were made with; None where nothing beside them says it."""
    vocabulary: str | None = None
    """Hash of that vocabulary; None where nothing beside the shards says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """Where a run stands between two steps."""

    settings: TrainSettings
    """What the run was asked to do."""
    data: DataIdentity
    """What it trains on."""
    position: dict[str, Any]
    """State of the data stream behind the last batch that was trained on."""
    progress: dict[str, int]
    """Updates applied and left out (bert.train.Progress)."""
    samples_seen: int
    """Samples trained on, those of steps that were left out too."""
    scaler: dict[str, Any]
    """State of the loss scaling; empty where nothing is scaled."""
    optimizer_steps: int | None
    """Steps that the optimizer counts for all its parameters together; None where each has its own count."""
    evaluation: Evaluation | None
    """The latest evaluation."""
    versions: dict[str, str]
    """Of the programs that wrote it."""

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
            "evaluation": None if self.evaluation is None else asdict(self.evaluation),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainState":
        """Return what `to_json` wrote. Raises InputError for a damaged state, SchemaError for a newer version's."""
        if content.get("format") != FORMAT:
            raise InputError("it is no checkpoint of bertbench")
        version = content.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise SchemaError(
                f"a newer version wrote it (schema {version}, this one reads up to {SCHEMA_VERSION}): update bertbench"
            )
        try:
            values = {part.name: content[part.name] for part in fields(cls)}
            evaluation = values["evaluation"]
            state = cls(
                **{
                    **values,
                    "settings": TrainSettings.from_json(values["settings"]),
                    "data": DataIdentity(**values["data"]),
                    "evaluation": None if evaluation is None else Evaluation(**evaluation),
                }
            )
            whole = state.applied_steps >= 0 and state.samples_seen >= 0 and isinstance(state.position, dict)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"its state is damaged ({error!r})") from error
        if not whole or not isinstance(state.scaler, dict):
            raise InputError("its state holds values that no run has")
        return state


def versions() -> dict[str, str]:
    """Return the versions of what numbers depend on."""
    import numpy as np
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}


def identify(spec: DataSpec, split: str = "training") -> DataIdentity:
    """Look at the data of a run.

    Raises:
        InputError: no shards, a damaged or missing one, or shards made with a vocabulary of another size.
    """
    if is_synthetic(spec.source):
        return DataIdentity(source=spec.source)
    from bert.data.loading.folder import folder_info

    info = folder_info(Path(spec.source), split, spec.seq_len)
    if info.vocab_size is not None and info.vocab_size != spec.vocab_size:
        raise InputError(
            f"the shards in {info.path} were made with a vocabulary of {info.vocab_size} word pieces, the model has "
            f"{spec.vocab_size}: set vocab_size to {info.vocab_size}, or give shards of the model's vocabulary"
        )
    return DataIdentity(
        source=spec.source,
        fingerprint=info.fingerprint,
        shards=[path.relative_to(info.path).as_posix() for path in info.paths],
        vocab_size=info.vocab_size,
        vocabulary=_vocabulary_hash(info.paths[0].parent),
    )


def vocabulary_text(data: DataIdentity) -> str | None:
    """Return the vocab.txt beside the shards; None where there is none, or another one than they were made with.

    Raises:
        InputError: it cannot be read.
    """
    from bert.data.pretraining.naming import VOCABULARY_FILE
    from bert.data.vocabulary import load_vocabulary

    path = (Path(data.source) / data.shards[0]).parent / VOCABULARY_FILE if data.shards else None
    if path is None or data.vocabulary is None or not path.is_file():
        return None
    pieces = {load_vocabulary(path, lower_case).fingerprint for lower_case in (True, False)}
    return path.read_text(encoding="utf-8") if data.vocabulary in pieces else None


def _vocabulary_hash(folder: Path) -> str | None:
    from bert.checkpoints.model_config import read_json
    from bert.data.pretraining.naming import METADATA_FILE

    path = folder / METADATA_FILE
    found = read_json(path).get("vocab") if path.exists() else None
    return found if isinstance(found, str) else None
