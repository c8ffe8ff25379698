"""Pages in tests have pictures of one pixel: test_every_figure.py and test_figure.py draw the real ones."""

import base64
from pathlib import Path

import pytest

from analysis.render.figure import Figure

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def pictures_of_one_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(figure: Figure, folder: Path) -> Path:
        path = folder / f"{figure.name}.png"
        path.write_bytes(PIXEL)
        return path

    monkeypatch.setattr("analysis.render.chart_page.write_png", write)
