"""The HTML report of real profiles, in a real browser."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.charts import drawn_charts
from support.cli import ROOT, TINY, Cli

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed"),
]
DLRM = shared_files.TRACES / "kineto/dlrm-8-ranks"


@pytest.fixture
def open_page() -> Iterator[Any]:
    """Return a function that opens a page and a list of what went wrong on it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        wrong: list[str] = []

        def open_at(path: Path) -> tuple[Any, list[str]]:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
            page.goto(path.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
            return page, wrong

        yield open_at
        browser.close()


def figures_are_there(page: Any, least: int) -> None:
    assert drawn_charts(page) >= least


def every_table_sorts(page: Any) -> int:
    """Click one numeric heading of every table with several rows; return how many were sorted."""
    tables = page.locator("table.sortable")
    done = 0
    for number in range(tables.count()):
        table = tables.nth(number)
        numeric = table.locator("th.number")
        if table.locator("tbody tr").count() < 2 or numeric.count() == 0:
            continue
        heading = numeric.last
        column = heading.evaluate("cell => cell.cellIndex")
        script = f"rows => rows.map(row => Number(row.cells[{column}].dataset.sort.replace('-inf', '-1e300')))"
        orders = []
        for _ in range(2):
            heading.click()
            orders.append(table.locator("tbody tr").evaluate_all(script))
        assert sorted(orders[0]) in orders and sorted(orders[0], reverse=True) in orders
        done += 1
    return done


@pytest.mark.skipif(not DLRM.is_dir(), reason="../shared/traces is not here")
def test_eight_real_ranks(tmp_path: Path, cli: Cli, open_page: Any) -> None:
    argv = cli.argv("report", str(DLRM), "--out", str(tmp_path / "report"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    alone = shutil.copy(tmp_path / "report" / "report.html", tmp_path / "alone.html")
    page, wrong = open_page(Path(alone))
    figures_are_there(page, 4)
    assert every_table_sorts(page) >= 8
    text = page.inner_text("body")
    for said in (
        "Rank 7 arrived last in 5 of 8 collectives",
        "8 of 8",
        "Tesla V100-SXM2-32GB",
        "What if communication",
    ):
        assert said in text
    assert wrong == []


def test_a_fresh_run_of_two_ranks_over_gloo(cli: Cli, open_page: Any) -> None:
    options = ["--batch-sizes", "2", "--profiler", "torch", "--start", "3", "--stop", "6", "--devices", "2"]
    for words in (
        ("profile", "pretrain", *TINY, *options, "--out", str(cli.out)),
        ("report", str(cli.out)),
    ):
        done = subprocess.run(cli.argv(*words), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    page, wrong = open_page(cli.out / "report" / "report.html")
    figures_are_there(page, 3)
    assert every_table_sorts(page) >= 5
    text = page.inner_text("body")
    for said in (
        "Where the time goes",
        "Why the CPU does not compute",
        "Longest operators",
        "Communication by rank",
        "all_reduce",
    ):
        assert said in text, said
    assert wrong == []
