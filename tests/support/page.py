"""The page of a run."""

from pathlib import Path
from typing import Any

from analysis.run_views import page
from records.run import RunDirectory


def report_page(run: RunDirectory, **options: Any) -> Path:
    """Write the report of a run, as `bertbench report` does; return the page."""
    return Path(page([run.path], **options).document["report"])
