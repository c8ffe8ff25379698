"""Charts of a page in a browser."""

import time
from typing import Any


def drawn_charts(page: Any) -> int:
    """Draw every chart of a page; return how many there are. Each has a panel with an SVG of some size."""
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    charts = page.locator(".chart")
    end = time.monotonic() + 60
    while page.locator(".chart[data-drawn]").count() < charts.count():
        assert time.monotonic() < end, "charts are not drawn"
        page.wait_for_timeout(50)
    for number in range(charts.count()):
        sizes = charts.nth(number).locator("svg.marks").evaluate_all(
            "found => found.map(picture => [picture.clientWidth, picture.clientHeight])"
        )  # fmt: skip
        assert sizes and all(width > 100 and height > 40 for width, height in sizes), sizes
    return int(charts.count())
