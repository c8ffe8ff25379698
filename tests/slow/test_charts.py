"""Charts of a report in a real browser: what hover, keys and the table say, zoom, legend, width, contrast, silence."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.charts import Opened, comes_true, drawn_charts
from support.fake_run import write_sweep
from support.page import report_page

from analysis import wording
from analysis.render.chart_colours import contrast

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_page(write_sweep(tmp_path_factory.mktemp("run"), batches=(8, 16), worlds=(1, 2), count=15, rounds=3))


@pytest.fixture(scope="module", params=[1280, 390])
def opened(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Opened]:
    """One page per width with its charts drawn; a test leaves it as it was."""
    found = Opened(browser, report, request.param)
    assert drawn_charts(found.page) == 5
    yield found
    found.close()


def first_panel(opened: Opened) -> Any:
    panel = opened.page.locator(".chart").first.locator(".panel-chart").first
    panel.scroll_into_view_if_needed()
    return panel


def marks(panel: Any) -> list[tuple[float, float]]:
    """Return the middles of the marks of points on the screen."""
    script = """found => found.filter(mark => mark.getAttribute("opacity") !== "0")
        .map(mark => mark.getBoundingClientRect())
        .map(box => [box.x + box.width / 2, box.y + box.height / 2])"""
    places = panel.locator("g.mark-symbol path").evaluate_all(script)
    return sorted((round(x, 1), round(y, 1)) for x, y in places)


def rates(report: Path) -> set[str]:
    """Samples per second of each configuration, the median of its rounds, in the digits that hover shows."""
    with (report.parent / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("implementation", "micro_batch_size", "world_size"))
        groups.setdefault(key, []).append(float(row["samples_per_second"]))
    return {wording.fine(sorted(values)[len(values) // 2]) for values in groups.values()}


def test_hover_keys_and_table_say_what_the_csv_has(opened: Opened, report: Path) -> None:
    page, panel, wanted = opened.page, first_panel(opened), rates(report)
    said = set()
    for x, y in marks(panel):
        page.mouse.move(x, y)
        tip = panel.locator(".tip")
        tip.wait_for()
        said.add(tip.locator("dd").nth(1).inner_text())
    assert said == wanted
    page.mouse.move(0, 0)
    panel.locator(".plot").focus()
    read = set()
    for key in ("ArrowRight", "ArrowRight", *["ArrowDown", "ArrowLeft", "ArrowRight"] * 4):
        page.keyboard.press(key)
        read.add(panel.locator(".tip dd").nth(1).inner_text())
        assert panel.locator(".tip").get_attribute("aria-live") == "polite"
    assert read == wanted
    chart = page.locator(".chart").first
    chart.locator("summary").click()
    chart.locator("tbody tr").first.wait_for()
    assert set(chart.locator("tbody td:nth-child(3)").all_inner_texts()) == wanted
    chart.locator("summary").click()


def test_zoom_and_legend_work_and_the_zoom_is_reset(opened: Opened) -> None:
    page, panel = opened.page, first_panel(opened)
    chart = page.locator(".chart").first
    before, reset = marks(panel), chart.get_by_role("button", name="Reset zoom")
    assert reset.is_disabled()
    chart.get_by_role("button", name="Zoom in").click()
    assert comes_true(page, lambda: reset.is_enabled() and marks(panel) != before)
    reset.click()
    page.mouse.move(0, 0)
    assert comes_true(page, lambda: reset.is_disabled() and marks(panel) == before)
    box = panel.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 25, steps=4)
    page.mouse.up()
    assert comes_true(page, reset.is_enabled), "a drag zooms"
    panel.locator(".plot").press("0")
    assert comes_true(page, lambda: marks(panel) == before)
    key = chart.locator(".key").first
    key.click()
    assert comes_true(page, lambda: 0 < len(marks(panel)) < len(before))
    assert key.get_attribute("aria-pressed") == "false"
    key.press("Enter")
    assert comes_true(page, lambda: marks(panel) == before)
    assert key.get_attribute("aria-pressed") == "true"


def test_every_plot_is_named_after_its_figure(opened: Opened) -> None:
    plots = opened.page.locator(".chart .plot").evaluate_all(
        """found => found.map(plot => [plot.closest("figure").querySelector("h3").textContent,
            plot.getAttribute("aria-label"), plot.getAttribute("role")])"""
    )
    assert len(plots) >= 5
    assert [plot for plot in plots if not plot[1].startswith(plot[0]) or plot[2] != "application"] == []
    assert len({label for _, label, _ in plots}) == len(plots)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen_and_words_have_contrast(opened: Opened, scheme: str) -> None:
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    wide = """found => found.map(mark => mark.getBoundingClientRect().right)
        .filter(right => right > document.documentElement.clientWidth).length"""
    assert page.locator(".chart svg.marks text").evaluate_all(wide) == 0
    colours = """found => [...new Set(found.filter(one => one.textContent.trim())
        .map(one => getComputedStyle(one)[one instanceof SVGElement ? 'fill' : 'color']))]"""
    paper = page.locator("section").first.evaluate("one => getComputedStyle(one).backgroundColor")
    words = page.locator(
        ".chart button:enabled, .chart p, .chart summary, .chart g.role-axis text, .chart .tip"
    ).evaluate_all(colours)
    assert words
    assert {colour: ratio for colour in words if (ratio := contrast(in_hex(colour), in_hex(paper))) < 4.5} == {}
    labels = page.locator(".chart").nth(3).locator("g.mark-rect path, g.mark-text text").evaluate_all(
        """found => found.map(one => [one.tagName, getComputedStyle(one).fill, getComputedStyle(one).opacity,
            ...Object.values(one.getBoundingClientRect().toJSON())])"""
    )  # fmt: skip
    bars = [one for one in labels if one[0] == "path"]
    checked = 0
    for _, ink, opacity, x, y, width, height, *_ in (one for one in labels if one[0] == "text"):
        under = [bar for bar in bars if bar[3] <= x + width / 2 <= bar[3] + bar[5] and bar[4] <= y + height / 2
                 <= bar[4] + bar[6]]  # fmt: skip
        if opacity != "0" and under:
            assert contrast(in_hex(ink), in_hex(under[-1][1])) >= 4.5
            checked += 1
    assert checked >= 4


def in_hex(colour: str) -> str:
    """#rrggbb of rgb(r, g, b)."""
    return "#" + "".join(f"{int(part):02x}" for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def test_a_tap_shows_a_value(browser: Any, report: Path) -> None:
    found = Opened(browser, report, 390, has_touch=True, is_mobile=True)
    assert drawn_charts(found.page) == 5
    panel = first_panel(found)
    x, y = marks(panel)[0]
    found.page.touchscreen.tap(x, y)
    assert panel.locator(".tip dd").nth(1).inner_text() in rates(report)
    found.close()


def test_without_scripts_the_pictures_beside_the_page_are_shown(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("noscript img").count() == 5
    assert all(box["width"] > 100 for box in (one.bounding_box() for one in page.locator("noscript img").all()))
    context.close()
