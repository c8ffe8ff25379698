"""Studies of hyper-parameters, and where tests keep them: in memory, for the storage waits for the disk."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yield a folder that is gone afterwards."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


def trial(number: int, state: str, value: float | None, **more: Any) -> dict[str, Any]:
    own = {"values": {"learning_rate": 1e-4 * (number + 1), "init": "/w/<b>a"}, "readings": [[0, 1.0], [1, 2.0]]}
    rest = {"seconds": 2.5, "reason": "", "resumed": 0, "same_as": None, "folder": f"trial-{number:04d}"}
    return {"number": number, "state": state, "value": value, **own, **rest, **more}


def study(maximize: bool = True) -> dict[str, Any]:
    """tune.json of a small study."""
    trials = [
        trial(0, "failed", None, reason="oom: no memory"), trial(1, "complete", 70.0), trial(2, "complete", 90.0),
        trial(3, "pruned", 20.0), trial(4, "complete", 80.0, same_as=1),
        trial(5, "failed", None, reason="oom: no memory"),
    ]  # fmt: skip
    return {
        "task": "squad", "objective": {"name": "f1", "label": "F1", "maximize": maximize},
        "space": {"learning_rate": "log:0.0001:0.001", "init": "/w/<b>a,/w/$b"}, "training": {"data": "/d", "steps": 3},
        "trials": trials,
        "best": {**trials[2 if maximize else 1], "command": "bertbench train squad --init '/w/<b>a'"},
    }  # fmt: skip
