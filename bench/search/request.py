"""What the folder of a search was begun with: the same command resumes it, another one is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UsageError


def check_same_request(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a search with other options. Raises UsageError with both values.

    Args:
        folder: the folder of the search.
        before: the options that it was begun with, by name; empty for a new one.
        now: those of this call, as plain JSON values.
    """
    changed = [name for name in {**now, **before} if before and before.get(name) != now.get(name)]
    if changed:
        differences = "; ".join(f"{name} {before.get(name)}, not {now.get(name)}" for name in changed[:3])
        raise UsageError("settings-changed", f"{folder} holds a search with {differences}: give another --out")
