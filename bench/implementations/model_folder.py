"""The model that `--model` names: a Hugging Face configuration, a checkpoint folder or a hub id. Imports no torch.

It is inspected once, before anything runs; `bench.implementations.given` builds it in the ranks.
"""

import hashlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.tasks import known_tasks, task_data
from bert.tasks.base import DataSource
from common.errors import InputError, MissingToolError, UsageError, first_line
from common.flags import flag
from common.reading import read_json

IMPLEMENTATIONS = ("hf", "hf-compiled", "hf-unpadded", "hf-trainer")
"""Those that build a given model."""
HEADS = ("masked words", "classes")
"""Heads of tasks (bert.tasks.base) that a given model can have."""
RANDOM, SAFETENSORS = "random", "safetensors"
CONFIG_FILE = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
# Their positions begin after that of padding, so that many rows of the embedding hold no token.
_POSITIONS_AFTER_PADDING = (
    "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "xlm-roberta-xl", "data2vec-text", "mpnet", "xmod",
)  # fmt: skip
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w./-]+)?")
_LATEST = "main"  # the revision of an id that names none
_DROPOUTS = ("hidden_dropout_prob", "hidden_dropout", "dropout", "mlp_dropout")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """What a plan needs to know of a given model."""

    path: str
    """Folder, or file of a configuration, absolute."""
    label: str
    """Name of the folder and the start of the fingerprint: no two models have the same."""
    fingerprint: str
    """Hash of the configuration and of the names and sizes of the weights."""
    weights: str
    """random or safetensors."""
    model_type: str
    """Architecture, as Hugging Face names it."""
    vocab_size: int
    """Rows of the word embedding."""
    positions: int | None
    """Longest sequence in tokens; None where the architecture has no limit."""
    dropout: float
    """Dropout probability of hidden states, 0 where the configuration has none."""


def find_model(given: str, trust_remote_code: bool = False) -> ModelFolder:
    """Inspect a model.

    Args:
        given: folder with config.json, file of a configuration, or id on the hub, whose files are downloaded; an id
            may end with @ and a commit, tag or branch.
        trust_remote_code: whether code in the folder may run.
    """
    if importlib.util.find_spec("transformers") is None:
        raise MissingToolError(
            "package-missing", f"--model {given} needs the package transformers: pip install 'bertbench[hf]'"
        )
    path = Path(given)
    name = path.resolve().name
    if not path.exists():
        path, name = _downloaded(given), given.partition("@")[0].rsplit("/", 1)[-1]
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.exists():
        raise InputError(
            "data-missing",
            f"{path} has no {CONFIG_FILE}: give a folder that save_pretrained wrote, or the file of a configuration",
        )
    if not path.is_dir():
        name = file.resolve().parent.name if file.name == CONFIG_FILE else file.stem
    fields = read_json(file)
    _check_code(file, fields, trust_remote_code)
    weights = _weights(path) if path.is_dir() else RANDOM
    config = load_config(str(path), trust_remote_code)
    fingerprint = _fingerprint(path, file, trust_remote_code)
    label = f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-.') or 'model'}-{fingerprint[:6]}"
    return ModelFolder(
        path=str(path.resolve()), label=label, fingerprint=fingerprint, weights=weights,
        model_type=str(config.model_type), vocab_size=_vocabulary(config, file), positions=_positions(config),
        dropout=float(next((value for name in _DROPOUTS if (value := getattr(config, name, None)) is not None), 0.0)),
    )  # fmt: skip


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
            "model_type that this version of transformers has; `bertbench convert` makes one of a bertbench checkpoint",
        ) from error


def check_data(model: ModelFolder, seq_len: int, source: DataSource, real: Path | None) -> None:
    """Refuse sequences and word pieces that the model has no embedding for.

    Args:
        model: the model.
        seq_len: tokens per sequence.
        source: the data.
        real: file or folder of real data; None for synthetic data.
    """
    if model.positions is not None and seq_len > model.positions:
        raise UsageError(
            "option-value",
            f"sequences of {seq_len} tokens are longer than the {model.positions} positions of {model.path}: use a "
            f"length of {model.positions} or less",
        )
    if real is None:
        return
    if source.vocab_size > model.vocab_size:
        raise InputError(
            "vocabulary-mismatch",
            f"{real} was created with a vocabulary of {source.vocab_size} word pieces, but {model.path} has "
            f"{model.vocab_size}: give data made with the model's vocabulary, or a model with more word pieces",
        )
    _check_tokenizer(model, real, source.vocabulary)


def check_options(model: str, trust_remote_code: bool, task: str, others: Sequence[str]) -> None:
    """Refuse a task for which no given model is built, and options that do not go together with `--model`.

    Args:
        model: value of --model, empty where it is not given.
        trust_remote_code: whether that is given.
        task: name of the task.
        others: names of options that are given although a given model leaves them without meaning.
    """
    if not model:
        if trust_remote_code:
            raise UsageError(
                "option-missing", "--trust-remote-code is about the code of --model: give --model, or leave it out"
            )
        return
    if task_data(task).heads not in HEADS:
        known = ", ".join(name for name in known_tasks() if task_data(name).heads in HEADS)
        raise UsageError("option-not-applicable", f"--model does not apply to task {task}: give one of {known}")
    if others:
        raise UsageError(
            "option-conflict",
            "--model has its own weights, shape and dropout, and no optimizations of bertbench: leave out "
            f"{' '.join(map(flag, others))}",
        )


def _check_tokenizer(model: ModelFolder, data: Path, fingerprint: str | None) -> None:
    from bert.data.vocabulary import load_vocabulary
    from bert.tasks.pretrain.folder import read_metadata
    from bert.tasks.pretrain.shards import METADATA_FILE

    folder = Path(model.path)
    words, tokenizer = folder / "vocab.txt", folder / "tokenizer.json"
    if fingerprint is None and data.is_dir():  # shards, which only the ranks open
        beside = [data, *sorted(path.parent for path in data.glob(f"*/{METADATA_FILE}"))]
        fingerprint = next((found for folder in beside if (found := _recorded(read_metadata(folder)))), None)
    if words.is_file() and fingerprint is not None:
        if fingerprint not in [load_vocabulary(words, lower_case).fingerprint for lower_case in (True, False)]:
            raise InputError(
                "vocabulary-mismatch",
                f"{data} was created with another vocabulary than {words}: prepare the data with --vocab {words}, "
                "or measure on synthetic data",
            )
    elif tokenizer.is_file():
        kind = (read_json(tokenizer).get("model") or {}).get("type")
        if kind not in (None, "WordPiece"):
            raise InputError(
                "vocabulary-mismatch",
                f"{tokenizer} is of type {kind}, but {data} holds WordPiece tokens: measure on synthetic data "
                f"(--data synthetic), or with their lengths (--data synthetic:{data})",
            )


def _recorded(metadata: Mapping[str, Any] | None) -> str | None:
    found = (metadata or {}).get("vocab")
    return found if isinstance(found, str) else None


def _downloaded(given: str) -> Path:
    """The folder that the files of a hub id are in: configuration, safetensors, tokenizer and code."""
    if not _HUB_ID.fullmatch(given):
        raise InputError(
            "path-missing", f"--model {given} does not exist: give a folder with config.json, or an id of the hub"
        )
    from huggingface_hub import snapshot_download

    name, _, revision = given.partition("@")
    files = ["*.json", "*.safetensors", "vocab.txt", "*.py"]
    try:
        return Path(snapshot_download(name, revision=revision or _LATEST, allow_patterns=files))
    except Exception as error:  # network, permission, no such repository: no common type
        raise InputError(
            "download-failed",
            f"--model {given} is no file or folder here, and the hub of Hugging Face did not deliver it "
            f"({type(error).__name__}: {first_line(error)}): give an existing folder, or check the id and the network",
        ) from error


def _check_code(file: Path, fields: Mapping[str, Any], trusted: bool) -> None:
    code = fields.get("auto_map")
    if not code or trusted:
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if fields.get("model_type") not in CONFIG_MAPPING:
        raise InputError(
            "file-unsafe",
            f"{file} needs code of its own to run (auto_map): read that code, and add --trust-remote-code to run it",
        )


def _weights(folder: Path) -> str:
    if any((folder / name).is_file() for name in _WEIGHTS):
        return SAFETENSORS
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise InputError(
            "file-unsafe",
            f"{folder} holds weights only as a pickle ({pickles[0]}), which can run code: save them as safetensors "
            f"(save_pretrained), or give --model {folder / CONFIG_FILE} to measure with random weights",
        )
    return RANDOM


def _vocabulary(config: Any, file: Path) -> int:
    size, padding = getattr(config, "vocab_size", None), getattr(config, "pad_token_id", None)
    if not isinstance(size, int) or size < 1:
        raise InputError("model-unsupported", f"{file} has no vocab_size: give the configuration of a text encoder")
    if isinstance(padding, int) and padding >= size:
        raise InputError(
            "vocabulary-mismatch",
            f"{file}: pad_token_id {padding} is not below vocab_size {size}: set both, the architecture's default is "
            "used for the one that is absent",
        )
    return size


def _positions(config: Any) -> int | None:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    if positions_after_padding(config):
        return positions - int(config.pad_token_id or 0) - 1
    return positions


def positions_after_padding(config: Any) -> bool:
    """Return whether the position of the first token is the padding's number plus 1, as in RoBERTa."""
    return config.model_type in _POSITIONS_AFTER_PADDING


def _fingerprint(path: Path, file: Path, trust_remote_code: bool) -> str:
    """Speed follows from the shape: of weights, names and sizes count, of code its text."""
    digest = hashlib.blake2b(file.read_bytes(), digest_size=8)
    if path.is_dir():
        for each in sorted(path.glob("*.safetensors")):
            digest.update(f"{each.name} {each.stat().st_size}".encode())
    if trust_remote_code:
        for each in sorted(file.parent.glob("*.py")):
            digest.update(each.read_bytes())
    return digest.hexdigest()
