"""Charts of a report in a real browser: what hovering shows, the legend by mouse and keys, width, silence."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.charts import Opened, drawn_charts
from support.fake_run import write_sweep
from support.page import report_page

from analysis import wording

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed"),
]
LEGIBLE = """texts => Math.min(...texts.map(
    one => one.ownerSVGElement.getScreenCTM().a * parseFloat(getComputedStyle(one).fontSize)))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_page(write_sweep(tmp_path_factory.mktemp("run"), batches=(8, 16), worlds=(1, 2), count=15, rounds=3))


@pytest.fixture(scope="module", params=[(1280, "light"), (1280, "dark"), (390, "light")], ids=str)
def opened(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Opened]:
    """One page per width and scheme; a test leaves it as it was."""
    width, scheme = request.param
    page = Opened(browser, report, width, scheme)
    yield page
    page.close()


def test_hovering_shows_what_the_csv_has(opened: Opened, report: Path) -> None:
    with (report.parent / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("implementation", "micro_batch_size", "world_size"))
        groups.setdefault(key, []).append(float(row["samples_per_second"]))
    medians = {wording.fine(sorted(values)[len(values) // 2]) for values in groups.values()}
    chart = opened.page.locator(".chart").first
    titles = chart.locator("title").all_text_contents()
    assert {title.rsplit(": ", 1)[1].split(" (")[0] for title in titles} == medians
    mark = chart.locator("use:has(title)").first
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    at = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    script = "([x, y]) => document.elementFromPoint(x, y).querySelector('title').textContent"
    assert opened.page.evaluate(script, at) in titles


def test_the_legend_hides_and_shows_series_by_mouse_and_keys(opened: Opened) -> None:
    chart = opened.page.locator(".chart").first
    key = chart.locator("[role=button]").first
    marks = chart.locator(f"[data-series='{key.get_attribute('data-key')}']").first
    assert marks.is_visible() and key.get_attribute("aria-pressed") == "true"
    key.click()
    assert not marks.is_visible() and key.get_attribute("aria-pressed") == "false"
    key.press("Enter")
    assert marks.is_visible() and key.get_attribute("aria-pressed") == "true"


def test_charts_fit_or_scroll_in_their_frame_and_their_words_are_legible(opened: Opened) -> None:
    page = opened.page
    assert drawn_charts(page) == 3
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator(".chart text").evaluate_all(LEGIBLE) >= 7.5
    labels = page.locator(".chart").evaluate_all("charts => charts.map(one => one.getAttribute('aria-label'))")
    assert len(set(labels)) == 3 and all(labels)
