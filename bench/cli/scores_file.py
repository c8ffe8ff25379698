"""scores.json of `bertbench eval TASK --out DIR`: a folder holds the scores of one task."""

import json
from pathlib import Path
from typing import Any

from common.errors import InputError, UsageError

SCORES_FILE = "scores.json"
_FIELDS_BEFORE = {"squad": {"version", "questions"}, "gap": {"overall", "slices"}}
"""What tells the task of files that do not name it, as they were written before."""


def check_scores_folder(out: Path | None, task: str) -> None:
    """Refuse a folder with the scores of another task, which would be written over; those of the same task may be.

    Raises:
        UsageError: it holds others.
        InputError: its file cannot be read.
    """
    path = None if out is None else out / SCORES_FILE
    if path is None or not path.is_file():
        return
    try:
        before = _task_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError("path-unreadable", f"cannot read {path}: {error.strerror}; give another --out") from error
    except ValueError:
        before = None
    if before is None:
        raise UsageError(
            "folder-occupied",
            f"{path} is not what `bertbench eval {task}` writes, and would be lost: give another --out",
        )
    if before != task:
        raise UsageError(
            "folder-occupied",
            f"{path} holds the scores of {before}, which those of {task} would replace: give another --out",
        )


def _task_of(document: Any) -> str | None:
    """The task that scores are of; None where they are none."""
    if not isinstance(document, dict):
        return None
    if "task" in document:
        return str(document["task"])
    return next((task for task, fields in _FIELDS_BEFORE.items() if fields <= document.keys()), None)
