"""Every figure of the suite is drawn, small, and switched by its legend."""

from pathlib import Path

import pytest
from every_figure import every_figure
from support.charts import SVG, svg_of
from support.examples import DRAWS_ALL

from analysis.render import charts


@pytest.mark.more
@pytest.mark.filterwarnings("error")
def test_every_figure_is_drawn_and_its_legend_names_its_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seventh in `make test`."""
    for number, figure in enumerate(every_figure(tmp_path, monkeypatch)):
        if not DRAWS_ALL and number % 7:
            continue
        assert charts.write_png(figure, tmp_path).read_bytes().startswith(b"\x89PNG"), figure.name
        root = svg_of(figure)
        keys, series = ({one.get(name) for one in root.iter()} for name in ("data-key", "data-series"))
        assert keys <= series and [*root.iter(f"{SVG}title")], figure.name
        assert len(charts.figure_html(figure)) < 250_000, figure.name
