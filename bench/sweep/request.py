"""What a folder was begun with: the same request resumes it, another one is refused."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UsageError


def request_of(options: Any) -> dict[str, Any]:
    """Return a dataclass of options as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(options), default=str))
    return plain


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first name with different values, and both; "" if the requests are the same."""
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            return f"{name} {before.get(name)}, not {now.get(name)}"
    return ""


def check_same_request(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a folder with another request.

    Args:
        folder: what is resumed.
        before: what it was begun with, by name; empty for a new one.
        now: what this call asks for, as plain JSON values.

    Raises:
        UsageError: the first difference, with both values.
    """
    if before and (difference := first_difference(before, now)):
        raise UsageError("settings-changed", f"{folder} was begun with {difference}: give that again, or another --out")
