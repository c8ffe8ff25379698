"""Pictures of one pixel for tests of what pages say."""

import base64
from pathlib import Path

import pytest
from support.examples import DRAWS_ALL

from analysis.render.figure import Figure

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def pictures_of_one_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figure of a page in `make test`; `make test-slow` draws them."""

    def write(figure: Figure, folder: Path) -> Path:
        path = folder / f"{figure.name}.png"
        path.write_bytes(PIXEL)
        return path

    if not DRAWS_ALL:
        monkeypatch.setattr("analysis.render.chart_page.write_png", write)
