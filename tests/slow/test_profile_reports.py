"""The HTML report of real profiles, in a real browser."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.charts import Opened, drawn_charts
from support.cli import ROOT, TINY, Cli

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed"),
]
UNFOLD = "document.querySelectorAll('details').forEach(part => { part.open = true; })"
DLRM = shared_files.TRACES / "kineto/dlrm-8-ranks"


def figures_are_there(page: Any, least: int) -> None:
    assert drawn_charts(page) >= least


def every_table_sorts(page: Any) -> int:
    """Click one numeric heading of every table with several rows; return how many were sorted."""
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    tables = page.locator("div.table table")
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
            heading.locator("button").click()
            orders.append(table.locator("tbody tr").evaluate_all(script))
        assert sorted(orders[0]) in orders and sorted(orders[0], reverse=True) in orders
        done += 1
    return done


@pytest.mark.public
def test_eight_real_ranks(tmp_path: Path, cli: Cli, browser: Any) -> None:
    argv = cli.argv("report", str(DLRM), "--out", str(tmp_path / "report"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    alone = shutil.copy(tmp_path / "report" / "report.html", tmp_path / "alone.html")
    opened = Opened(browser, Path(alone))
    page = opened.page
    page.evaluate(UNFOLD)
    figures_are_there(page, 2)
    assert every_table_sorts(page) >= 8
    waiting = page.locator("table", has=page.get_by_role("columnheader", name="times last"))
    rows = [row.split("\t") for row in waiting.first.inner_text().splitlines()]
    column = rows[0].index("times last")
    assert {row[0]: row[column] for row in rows[1:]}["7"] == "5"
    assert "Tesla V100-SXM2-32GB" in page.inner_text("body")
    opened.close()


def test_a_fresh_run_of_two_ranks_over_gloo(cli: Cli, browser: Any) -> None:
    options = ["--batch-sizes", "2", "--profiler", "torch", "--start", "3", "--stop", "6", "--devices", "2"]
    for words in (
        ("profile", "pretrain", *TINY, *options, "--out", str(cli.out)),
        ("report", str(cli.out)),
    ):
        done = subprocess.run(cli.argv(*words), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    opened = Opened(browser, cli.out / "report" / "report.html")
    page = opened.page
    page.evaluate(UNFOLD)
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
    opened.close()
