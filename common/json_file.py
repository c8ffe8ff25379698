"""Read JSON objects from user files and refuse anything else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import InputError, content_code
from common.reading import read_regular

_MOST_BYTES = 16 << 20


def read_json(
    path: Path,
    what: str = "configuration",
    remedy: str = "give a file that can be read",
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
    strict: bool = False,
) -> dict[str, Any]:
    """Return a JSON object from a file.

    Args:
        path: the file.
        what: what it is for a user.
        remedy: what the user can do where it is none.
        pairs: makes a dictionary of each object's names and values; may refuse.
        strict: refuse NaN and infinity, which JSON does not have.

    Raises:
        InputError: it is no regular file, cannot be read, has more than 16 MiB, or holds no JSON object.
    """
    constant = _refuse_constant if strict else None
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
        content = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except OSError as error:
        raise InputError(content_code(error), f"cannot read the {what} {path}: {error.strerror}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(content_code(error), f"the {what} {path} is not JSON ({error}): {remedy}") from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise InputError("file-format", f"the {what} {path} holds a {kind} instead of a JSON object: {remedy}")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
