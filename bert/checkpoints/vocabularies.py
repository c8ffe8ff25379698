"""The vocabulary beside a checkpoint: whether it is the model's, how it cuts text, and its copy."""

import contextlib
from pathlib import Path

from bert.checkpoints.model_config import read_json
from bert.checkpoints.read import Found
from bert.data.vocabulary import either_fingerprint, load_vocabulary
from bert.model.config import ModelConfig
from bert.train.checkpoint import STATE_FILE, read
from common.atomic import atomic_path
from common.errors import InputError, read_code


def fit_vocabulary(config: ModelConfig, pieces: int | None, vocab: Path | None, notes: list[str]) -> ModelConfig:
    """Take the padding out of a configuration that counts it as words (NVIDIA's 30528).

    Args:
        config: the shape as it is written beside the weights.
        pieces: how many pieces the vocabulary has, None without one.
        vocab: where it is.
        notes: takes what a user should know of it.

    Raises:
        InputError: the vocabulary has more pieces than the model.
    """
    if pieces is None or vocab is None or pieces == config.vocab_size:
        return config
    if pieces > config.vocab_size:
        raise _wrong_vocabulary(vocab, pieces, config)
    real = config.replace(vocab_size=pieces)
    if real.padded_vocab_size == config.vocab_size:
        notes.append(f"{config.vocab_size - pieces} rows beyond the {pieces} pieces of {vocab} were taken for padding")
        return real
    notes.append(f"{vocab} has {pieces} pieces, the model {config.vocab_size}: the last ids stand for nothing")
    return config


def check_vocabulary(found: Found, vocab: Path, pieces: int, config: ModelConfig, notes: list[str]) -> None:
    """Hold a vocabulary against what a checkpoint of ours says of its own. Raises InputError."""
    if pieces > config.vocab_size:
        raise _wrong_vocabulary(vocab, pieces, config)
    trained = read(found.path, whole=False).state.data.vocabulary if (found.path / STATE_FILE).is_file() else None
    if trained is not None and trained not in either_fingerprint(vocab):
        raise InputError(
            "vocabulary-mismatch",
            f"{vocab} ({pieces} pieces) is not the vocabulary that {found.path} was trained with ({config.vocab_size} "
            "pieces): its ids would mean other words; give the vocab.txt that lies beside the training data",
        )
    if pieces < config.vocab_size:
        notes.append(f"{vocab} has {pieces} pieces, the model {config.vocab_size}: the last ids stand for nothing")


def lower_case(vocab: Path) -> bool:
    """Say whether text is lower-cased before it is cut into these pieces; without word of it transformers always does.

    What a tokenizer_config.json beside them says, else whether they have no capital letters. Raises InputError.
    """
    with contextlib.suppress(InputError):
        told = read_json(vocab.with_name("tokenizer_config.json")).get("do_lower_case")
        if isinstance(told, bool):
            return told
    pieces = load_vocabulary(vocab, lower_case=True).pieces
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))


def copy_vocabulary(source: Path, destination: Path) -> None:
    """Copy the file, whole or not at all. Raises InputError where it cannot be read, StorageError."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read {source}: {error.strerror}; give a file that can be read"
        ) from error
    with atomic_path(destination) as temporary:
        temporary.write_bytes(content)


def _wrong_vocabulary(vocab: Path, pieces: int, config: ModelConfig) -> InputError:
    return InputError(
        "vocabulary-mismatch",
        f"{vocab} has {pieces} pieces and the model only {config.vocab_size}: give the vocabulary it was trained with "
        "by --vocab FILE",
    )
