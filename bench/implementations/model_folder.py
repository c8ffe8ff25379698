"""The model that `--model` names: a Hugging Face configuration, a checkpoint folder or a hub id. Imports no torch.

It is inspected once, before anything runs; `bench.implementations.hugging_face` builds it in the ranks.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.synthetic import is_synthetic
from bert.tasks import known_tasks, task_data
from bert.tasks.base import DataSource
from common.errors import InputError, UsageError, first_line
from common.flags import flag
from common.reading import read_json
from common.tools import need

IMPLEMENTATIONS = ("hf", "hf-compiled", "hf-unpadded", "hf-trainer")
"""Those that build a given model."""
RANDOM, SAFETENSORS = "random", "safetensors"
_HEADS = ("masked words", "classes")
_CONFIG_FILE = "config.json"
# Their positions begin after that of padding, so that many rows of the embedding hold no token.
_POSITIONS_AFTER_PADDING = (
    "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "xlm-roberta-xl", "data2vec-text", "mpnet", "xmod",
)  # fmt: skip
_DROPOUTS = ("hidden_dropout_prob", "hidden_dropout", "dropout", "mlp_dropout")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """What a plan needs to know of a given model."""

    settings: Mapping[str, Any]
    """Fields of TrainSpec: its path, weights and fingerprint, the dropout of hidden states, and a label as `preset`, of
    the folder's name and the fingerprint: no two models have the same."""
    vocab_size: int
    """Rows of the word embedding."""
    positions: int | None
    """Longest sequence in tokens; None where the architecture has no limit."""


def find_model(given: str, trust_remote_code: bool = False) -> ModelFolder:
    """Inspect a folder with config.json, a configuration file, or an id on the hub, which is downloaded.

    An id may end with @ and a commit, tag or branch. Code in the folder runs only with `trust_remote_code`.
    """
    need(f"--model {given}", "hf", "transformers")
    here = Path(given).exists()
    path = Path(given) if here else _downloaded(given)
    named = Path(given if here else given.partition("@")[0]).resolve()
    name = (named.parent if named.name == _CONFIG_FILE else named).name.removesuffix(".json")
    file = path / _CONFIG_FILE if path.is_dir() else path
    read_json(file, remedy="give a folder that save_pretrained wrote, or the file of a configuration")
    config = load_config(str(path), trust_remote_code)
    vocab_size, positions = (getattr(config, field, None) for field in ("vocab_size", "max_position_embeddings"))
    if not isinstance(vocab_size, int):
        raise InputError("model-unsupported", f"{file} has no vocab_size: give the configuration of a text encoder")
    # Speed follows from the shape: of weights, names and sizes count.
    weights = sorted([*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")])
    shapes = "".join(f"{each.name} {each.stat().st_size}" for each in weights if each.suffix == ".safetensors")
    fingerprint = hashlib.blake2b(file.read_bytes() + shapes.encode(), digest_size=8).hexdigest()
    return ModelFolder(
        settings={
            "preset": f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-.') or 'model'}-{fingerprint[:6]}",
            "model": str(path.resolve()),
            "model_fingerprint": fingerprint,
            "model_weights": SAFETENSORS if weights else RANDOM,
            "dropout": float(next((getattr(config, name) for name in _DROPOUTS if hasattr(config, name)), 0.0) or 0.0),
        },
        vocab_size=vocab_size,
        positions=positions - first_position(config) if isinstance(positions, int) and positions > 0 else None,
    )


def load_config(path: str, trust_remote_code: bool) -> Any:
    """Return Hugging Face's configuration of a folder or file. Raises InputError: it cannot be read."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(  # nosec B615 # a local folder
            path, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # what a configuration can be wrong in has no common type
        raise InputError(
            "model-unsupported",
            f"transformers cannot read the configuration of {path} ({first_line(error)}): give a config.json with a "
            "model_type that it has, or --trust-remote-code if you trust the code beside it",
        ) from error


def check_data(model: ModelFolder, seq_len: int, source: DataSource) -> int:
    """Return the vocabulary size of batches; refuse sequences and word pieces that the model has no embedding for."""
    folder, data = model.settings["model"], source.source
    if model.positions is not None and seq_len > model.positions:
        raise UsageError(
            "option-value",
            f"sequences of {seq_len} tokens are longer than the {model.positions} positions of {folder}: shorten them",
        )
    if is_synthetic(data):
        return model.vocab_size
    if source.vocab_size > model.vocab_size or not _same_tokenizer(Path(folder), Path(data), source):
        raise InputError(
            "vocabulary-mismatch",
            f"{data} was made with another vocabulary ({source.vocab_size} word pieces) than {folder} "
            f"({model.vocab_size}): prepare it with --vocab {folder}/vocab.txt, or measure with --data synthetic",
        )
    return source.vocab_size


def check_options(model: str, task: str, others: Sequence[str]) -> None:
    """Refuse a task for which no given model is built, and `others`, the options that mean nothing to one."""
    if model and task_data(task).heads not in _HEADS:
        known = ", ".join(name for name in known_tasks() if task_data(name).heads in _HEADS)
        raise UsageError("option-not-applicable", f"--model does not apply to task {task}: give one of {known}")
    if model and others:
        given = " ".join(map(flag, others))
        raise UsageError("option-conflict", f"--model has its own weights, shape and dropout: leave out {given}")


def first_position(config: Any) -> int:
    """Return the position of the first token: in RoBERTa the padding's number plus 1."""
    return int(config.pad_token_id or 0) + 1 if config.model_type in _POSITIONS_AFTER_PADDING else 0


def _same_tokenizer(folder: Path, data: Path, source: DataSource) -> bool:
    """Whether data was made with the model's vocabulary, as far as both are known."""
    from bert.data.vocabulary import either_fingerprint
    from bert.tasks.pretrain.shards import METADATA_FILE

    words, tokenizer = folder / "vocab.txt", folder / "tokenizer.json"
    if not words.is_file():
        kind = (read_json(tokenizer).get("model") or {}).get("type") if tokenizer.is_file() else None
        return kind in (None, "WordPiece")
    # Of shards, which only the ranks open, the metadata beside them name the vocabulary.
    beside = [read_json(file).get("vocab") for pattern in ("", "*/") for file in data.glob(pattern + METADATA_FILE)]
    known = [fingerprint for fingerprint in (source.vocabulary, *beside) if fingerprint]
    return not known or known[0] in either_fingerprint(words)


def _downloaded(given: str) -> Path:
    """The folder that the files of a hub id are in: configuration, safetensors, tokenizer and code."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    name, _, revision = given.partition("@")
    files = ["*.json", "*.safetensors", "vocab.txt", "*.py"]
    try:
        return Path(snapshot_download(name, revision=revision or "main", allow_patterns=files))
    except Exception as error:  # network, permission, no such repository, no id at all: no common type
        problem = f"--model {given} is no file or folder here, and Hugging Face's hub did not deliver it"
        raise InputError(
            "path-missing" if isinstance(error, HFValidationError) else "download-failed",
            f"{problem} ({first_line(error)}): check the path, the id, the network",
        ) from error
