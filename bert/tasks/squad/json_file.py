"""JSON files as the official scripts read them: the standard library's parser, plain or compressed with gzip."""

import functools
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert.data.bounded import read_at_most
from common.errors import InputError, content_code

MOST_BYTES = 2**30
"""Size, unpacked, beyond which a file is taken for something else (SQuAD's largest has 42 MB)."""
_GZIP = b"\x1f\x8b"


def read_json(path: Path, what: str, repeated: list[str] | None = None) -> Any:
    """Return the content of a JSON file; whatever Python's own parser reads is read, gzip is recognised by its bytes.

    Args:
        path: the file.
        what: what it has to be, for the messages ("SQuAD dataset").
        repeated: takes the keys that an object has more than once; the last value counts.

    Raises:
        InputError: the file cannot be read, is damaged, too large or no JSON.
    """
    try:
        raw = _bytes(path)
        if repeated is None:
            return json.loads(raw)
        return json.loads(raw, object_pairs_hook=functools.partial(_object, repeated=repeated))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            content_code(error),
            f"the {what} {path} is a damaged gzip file ({error}): get or pack it again",
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(content_code(error), f"cannot read the {what} {path}: {reason}; give a JSON file") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise InputError(
            "file-damaged", f"the {what} {path} is no JSON file, or cut short ({where}): get or write it again"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("file-encoding", f"the {what} {path} is not UTF-8 text: give a JSON file") from error
    except (RecursionError, ValueError) as error:
        raise InputError(
            "file-limit" if isinstance(error, RecursionError) else "file-damaged",
            f"the {what} {path} is no JSON that could be one ({error}): give another file",
        ) from error


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        if packed:
            with gzip.open(file) as unpacked:
                raw = read_at_most(unpacked, MOST_BYTES)
        else:
            raw = read_at_most(file, MOST_BYTES)
    if len(raw) > MOST_BYTES:
        raise InputError(
            "file-limit", f"{path} has more than {MOST_BYTES // 2**20} MiB: too long for questions or their answers"
        )
    return raw


def _object(pairs: list[tuple[str, Any]], repeated: list[str]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return found


def is_dataset(content: Any) -> bool:
    """Whether the content of a JSON file looks like a dataset: {"data": [...]}."""
    return isinstance(content, Mapping) and isinstance(content.get("data"), list)


def kind_of(value: Any) -> str:
    """Name a JSON value for a message: 'null', 'a number', 'a list', ..."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names[type(value)]
