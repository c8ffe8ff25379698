"""What a report says of steps that were taken apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.load import LoadedTrial
from analysis.report import tables
from analysis.report.drawing import Picture
from analysis.report.light_figures import draw_waterfalls, taken_apart
from analysis.report.light_text import ceilings_text, components_table, floor_sentence, waterfall_table


@dataclass(frozen=True, kw_only=True, slots=True)
class LightPart:
    """The section about one step."""

    sentence: str
    """What it came to."""
    ceilings: str
    """What the device reaches."""
    picture: Picture
    """The waterfall."""
    waterfall: tables.Table
    """Its bars."""
    components: tables.Table
    """Every part."""


def light_parts(trials: Sequence[LoadedTrial], folder: Path) -> list[LightPart]:
    """Draw and tabulate every step of a run that was taken apart, and write both tables of each as CSV files.

    Args:
        trials: all of the run.
        folder: where the PNGs and CSVs go.

    Raises:
        StorageError: a picture or a table cannot be written.
    """
    found = []
    measured = taken_apart(trials)
    for number, (trial, picture) in enumerate(zip(measured, draw_waterfalls(folder, measured), strict=True)):
        row = trial.row
        tables.write_csv(folder / f"waterfall-{number}.csv", row["waterfall"])
        tables.write_csv(folder / f"components-{number}.csv", row["components"])
        found.append(
            LightPart(
                sentence=floor_sentence(row),
                ceilings=ceilings_text(row),
                picture=picture,
                waterfall=waterfall_table(row["waterfall"]),
                components=components_table(row["components"]),
            )
        )
    return found
