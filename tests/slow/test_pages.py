"""Pages in a real browser: width, contrast, silence, charts and their legend, filter, sort, contents, CSV files."""

import csv
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support import fake_run
from support.charts import contrast, report_page
from support.commands import document
from support.fake_run import ENVIRONMENT, EVALUATED, START_NS, write_sweep, write_training, write_trial
from support.rings import Machine, write_collectives
from support.shared_files import OWN

from analysis import wording
from records.run import RunDirectory
from records.training import TrainRun
from records.trial import Trial

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed"),
]
NAMES = ("run", "projection", "training", "profile")
DAY_NS = 86_400 * fake_run.SECOND
LEAST_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3."""


class Opened:
    """A page, and what it loaded and complained about."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light", **more: Any) -> None:
        self.path, self.width = path, width
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # a busy machine draws slowly
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.wrong.append(request.url))
        self.page.goto(path.as_uri())

    def close(self) -> None:
        """Close the page; nothing but itself was loaded, and nothing was wrong."""
        self.context.close()
        assert self.wrong == [self.path.as_uri()]


def drawn_charts(page: Any) -> int:
    """Return how many charts a page has; each has an SVG of some size."""
    sizes = page.locator(".chart svg").evaluate_all(
        "pictures => pictures.map(one => one.getBoundingClientRect()).map(box => [box.width, box.height])"
    )
    assert all(width > 100 and height > 40 for width, height in sizes), sizes
    return len(sizes)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind that is made of run directories."""
    folder, runs = tmp_path_factory.mktemp("pages"), []
    for day, scale in enumerate((1.0, 1.3, 1.3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fake_run, "START_NS", START_NS + day * DAY_NS)
            runs.append(
                write_sweep(folder / f"night-{day}", batches=(8, 16), worlds=(1,), count=15, rounds=3, scale=scale)
            )
        for trial in runs[-1].trials():
            record = {**ENVIRONMENT, "schema_version": 1, "git_commit": f"{day}" * 40}
            trial.env_json.write_text(json.dumps(record))
    write_trial(runs[0], Trial(preset="mini", precision="bf16", micro_batch_size=64), status="oom", reason="no memory")
    machine, cluster = Machine(), folder / "cluster"
    for ranks in (1, 2, 4):
        machine.write_steps(cluster, ranks, seed=ranks)
        if ranks > 1:
            write_collectives(cluster, ranks, machine.alpha_us, machine.bandwidth_gb_s)
    training = write_training(folder / "training", [EVALUATED, {**EVALUATED, "applied_steps": 40}])
    return {
        "run": report_page(runs[0]),
        "projection": report_page(RunDirectory(cluster), project=(8, 16)),
        "training": report_page(TrainRun(training.path.parents[1]).run),
        "profile": Path(document("report", OWN / "kineto/nccl-4-ranks", "--out", folder / "profile")["report"]),
    }


@pytest.fixture(scope="module", params=[(name, width) for name in NAMES for width in (1280, 390)],
                ids=lambda one: f"{one[0]}-{one[1]}")  # fmt: skip
def opened(request: pytest.FixtureRequest, browser: Any, reports: dict[str, Path]) -> Iterator[Opened]:
    """A page of each kind at each width, which the tests of this file share."""
    name, width = request.param
    found = Opened(browser, reports[name], width)
    yield found
    found.close()


@pytest.fixture
def wide(browser: Any, reports: dict[str, Path]) -> Iterator[Opened]:
    """The page of a run at 1280 px."""
    found = Opened(browser, reports["run"])
    yield found
    found.close()


LEGIBLE = """texts => Math.min(...texts.map(
    one => one.ownerSVGElement.getScreenCTM().a * parseFloat(getComputedStyle(one).fontSize)))"""
# Of each visible element with words of its own: [its color and opacity, the backgrounds behind it, its words].
COLOURS = """() => [...document.querySelectorAll("body *")].filter(one => !one.closest("svg, script, noscript") &&
    one.checkVisibility() && !one.matches(":disabled") &&
    [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())).map(one => {
  const papers = [];
  let opacity = 1;
  for (let part = one; part; part = part.parentElement) {
    const style = getComputedStyle(part);
    papers.push(style.backgroundColor);
    opacity *= Number(style.opacity);
  }
  return [getComputedStyle(one).color, opacity, papers, one.textContent.trim().slice(0, 40)];
}).concat([...document.querySelectorAll("input")].filter(one => one.checkVisibility()).map(one =>
  [getComputedStyle(one, "::placeholder").color, 1, [getComputedStyle(one).backgroundColor], one.placeholder]))"""


def channels(colour: str) -> list[float]:
    """Red, green, blue, alpha of rgb(r, g, b) or rgba(r, g, b, a)."""
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")]
    return [*parts[:3], parts[3] if len(parts) > 3 else 1.0]


def over(top: Sequence[float], below: Sequence[float], opacity: float = 1.0) -> list[float]:
    alpha = top[3] * opacity
    return [alpha * one + (1 - alpha) * other for one, other in zip(top[:3], below[:3], strict=True)] + [1.0]


def in_hex(colour: Sequence[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in colour[:3])


def too_faint(page: Any) -> dict[str, float]:
    """Words with less contrast than LEAST_CONTRAST; at least twenty are looked at."""
    found = page.evaluate(COLOURS)
    assert len(found) >= 20
    faint = {}
    for ink, opacity, papers, words in found:
        paper = [255.0, 255.0, 255.0, 1.0]
        for one in reversed(papers):
            paper = over(channels(one), paper)
        ratio = contrast(in_hex(over(channels(ink), paper, opacity)), in_hex(paper))
        if ratio < LEAST_CONTRAST:
            faint[words] = round(ratio, 2)
    return faint


def test_nothing_overflows_and_all_words_have_contrast(opened: Opened) -> None:
    page = opened.page
    for folded in page.locator("details").all():
        folded.evaluate("one => { one.open = true; }")
    charts = drawn_charts(page)
    assert charts >= 1 and page.locator(".chart text").evaluate_all(LEGIBLE) >= 7.5
    labels = page.locator(".chart").evaluate_all("charts => charts.map(one => one.getAttribute('aria-label'))")
    assert len(set(labels)) == charts and all(labels)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    inside = """found => found.filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth)
        .map(one => one.outerHTML.slice(0, 80))"""
    assert page.locator("h1, h2, h3, p, .badge, .scroll, .tools, figure, li").evaluate_all(inside) == []
    rows = page.locator("tbody tr")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert too_faint(page) == {}, scheme
        if rows.count():
            rows.first.hover()
            assert too_faint(page) == {}, scheme


def test_hovering_shows_what_the_csv_has(wide: Opened) -> None:
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in read(wide.path.parent / "results.csv"):
        if row["status"] == "ok":
            key = tuple(row[name] for name in ("implementation", "micro_batch_size", "world_size"))
            groups.setdefault(key, []).append(float(row["samples_per_second"]))
    medians = {wording.fine(sorted(values)[len(values) // 2]) for values in groups.values()}
    chart = wide.page.locator(".chart").first
    titles = chart.locator("title").all_text_contents()
    assert {title.rsplit(": ", 1)[1].split(" (")[0] for title in titles} == medians
    mark = chart.locator("use:has(title)").first
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    at = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    script = "([x, y]) => document.elementFromPoint(x, y).querySelector('title').textContent"
    assert wide.page.evaluate(script, at) in titles


def test_the_legend_hides_and_shows_series_by_mouse_and_keys(opened: Opened) -> None:
    chart = opened.page.locator(".chart", has=opened.page.locator("[role=button]")).first
    key = chart.locator("[role=button]").first
    marks = chart.locator(f"[data-series='{key.get_attribute('data-key')}']").first
    assert marks.is_visible() and key.get_attribute("aria-pressed") == "true"
    key.click()
    assert not marks.is_visible() and key.get_attribute("aria-pressed") == "false"
    key.press("Enter")
    assert marks.is_visible() and key.get_attribute("aria-pressed") == "true"


def test_contents_lead_to_every_section_and_unfold_it(opened: Opened) -> None:
    page = opened.page
    links = page.locator("nav a")
    assert links.count() >= 3
    for link in links.all():
        link.click()
        anchor = link.get_attribute("href")[1:]
        place = page.locator(f"[id='{anchor}']")
        place.wait_for(state="visible")
        top, bottom = place.evaluate("one => [one.getBoundingClientRect().top, one.getBoundingClientRect().bottom]")
        assert top < 900 and bottom > 0, anchor
        assert place.evaluate("one => one.tagName !== 'DETAILS' || one.open"), anchor


def shown_forms(value: str) -> set[str]:
    """How a value of a CSV file may be written in a table."""
    try:
        number = float(value)
    except ValueError:
        return {value}
    if not math.isfinite(number):
        return {value}
    forms = [*wording.FORMS.values(), wording.ratio, lambda one: f"{one:.3f}", lambda one: f"{100 * one:+.1f} %"]
    return {value, *(form(number) for form in forms)}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_table_shows_the_values_of_its_csv_file(opened: Opened) -> None:
    boxes = opened.page.locator("div.table")
    compared = 0
    for box in boxes.all():
        path = opened.path.parent / unquote(box.locator(".tools a").get_attribute("href"))
        rows = read(path)
        trials = box.locator("tbody tr").evaluate_all("found => found.map(row => row.dataset.trial || '')")
        texts = box.locator("tbody tr").evaluate_all(
            "found => found.map(row => [...row.cells].map(cell => [cell.textContent.trim(), "
            "cell.classList.contains('number') && cell.dataset.sort !== '-inf']))"
        )
        if not any(trials):
            assert len(rows) == len(texts), path.name
        by_trial = {row.get("trial_id", ""): row for row in rows}
        for place, (trial, cells) in enumerate(zip(trials, texts, strict=True)):
            row = by_trial[trial] if trial in by_trial and trial else rows[place]
            known = {form for value in row.values() for form in shown_forms(value)}
            known |= {str(int(row["round"]) + 1)} if row.get("round") else set()  # from 1 for people, from 0 in files
            for text, is_number in cells:
                if is_number:
                    text = text.removesuffix("*")  # marks the best trial of a search
                    # "2 cuda on 2 nodes" and "8 x 4" begin with the value.
                    for part in [text] if text in known else text.split("\N{EN DASH}"):
                        assert part in known or part.split(" ")[0] in known, (path.name, text, row)
                        compared += 1
    assert compared >= 4


def numbers(box: Any, column: int) -> list[float]:
    script = "(found, column) => found.filter(row => !row.hidden).map(row => row.cells[column].dataset.sort)"
    return [float(text) for text in box.locator("tbody tr").evaluate_all(script, column)]


# The first numeric column of a page that has different values: [table, column].
TO_SORT = """() => [...document.querySelectorAll("div.table")].flatMap((box, place) =>
  [...box.querySelectorAll("thead th")].map((heading, column) => [place, column])
    .filter(([, column]) => box.querySelectorAll("thead th")[column].classList.contains("number") &&
      new Set([...box.querySelectorAll("tbody tr")].map(row => row.cells[column].dataset.sort)).size > 1))[0]"""


def test_a_click_and_enter_sort_by_value(opened: Opened) -> None:
    place, column = opened.page.evaluate(TO_SORT)
    box = opened.page.locator("div.table").nth(place)
    headings = box.locator("thead th")
    before, heading = numbers(box, column), headings.nth(column)
    heading.locator("button").click()
    assert numbers(box, column) == sorted(before, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    opened.page.keyboard.press("Enter")
    assert numbers(box, column) == sorted(before) and heading.get_attribute("aria-sort") == "ascending"
    other = headings.nth(0 if column else 1)
    other.locator("button").focus()
    opened.page.keyboard.press("Space")
    assert other.get_attribute("aria-sort") and heading.get_attribute("aria-sort") is None


def test_the_filter_finds_trials_and_words_by_mouse_and_keyboard(wide: Opened) -> None:
    page = wide.page
    box = page.locator("div.table", has=page.locator("tr[data-trial]")).first
    rows, field, found = box.locator("tbody tr"), box.locator("label input"), box.locator("output")
    total = rows.count()
    identity = rows.nth(2).get_attribute("data-trial")
    field.click()
    page.keyboard.type(identity)
    shown = rows.evaluate_all("found => found.filter(row => row.checkVisibility()).map(row => row.dataset.trial)")
    assert shown == [identity] and found.inner_text().startswith(f"1 of {total}")
    page.keyboard.press("Escape")
    assert field.input_value() == "" and box.locator("tbody tr:visible").count() == total
    page.evaluate("document.activeElement.blur()")
    for _ in range(300):
        page.keyboard.press("Tab")
        if field.evaluate("one => one === document.activeElement"):
            break
    page.keyboard.type("HF")
    visible = box.locator("tbody tr:visible")
    assert 0 < visible.count() < total and all("hf" in text for text in visible.all_inner_texts())
    page.keyboard.type(" nothing-like-this")
    assert visible.count() == 0
