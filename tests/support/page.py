"""The page of a run."""

from pathlib import Path
from typing import Any

from analysis.render.pages import write_report
from records.run import RunDirectory


def report_page(run: RunDirectory, **options: Any) -> Path:
    """Write the report of a run, as `bertbench report` does; return the page."""
    return write_report(run, **options)[0]
