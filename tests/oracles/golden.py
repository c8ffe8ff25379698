"""The recorded run in golden-run/, and copies of it with other step times."""

import csv
import shutil
from pathlib import Path

from frozen import rows_of

GOLDEN = Path(__file__).parent / "golden-run"
TIMES = ("step_time_ms", "data_wait_ms", "forward_ms", "backward_ms", "communication_ms", "optimizer_ms")


def with_step_times(folder: Path, factor: float) -> Path:
    """Copy the recorded run with its step times multiplied."""
    shutil.copytree(GOLDEN, folder)
    for path in folder.glob("trials/*/steps-*.csv"):
        rows = rows_of(path)
        for row in rows:
            row.update({name: repr(float(row[name]) * factor) for name in TIMES if row.get(name)})
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder
