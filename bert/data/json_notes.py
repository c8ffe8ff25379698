"""JSON objects that this program keeps beside data for itself: one that cannot be used counts as none."""

import json
from pathlib import Path
from typing import Any


def read_notes(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty where there is no file, or it is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
