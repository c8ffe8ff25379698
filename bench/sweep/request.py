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


def check_same_request(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a folder that was begun with another request than `now`; `before` is empty for a new one.

    Raises UsageError with the first difference and both values.
    """
    for name in {**now, **before} if before else ():
        if before.get(name) != now.get(name):
            difference = f"{name} {before.get(name)}, not {now.get(name)}"
            problem = f"{folder} was begun with {difference}: give that again, or another --out"
            raise UsageError("settings-changed", problem)
