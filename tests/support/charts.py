"""Pages and their charts in a browser."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


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


def comes_true(page: Any, holds: Callable[[], bool]) -> bool:
    """Return whether something holds, at once or within 10 s: a page answers what is done to it a little later."""
    end = time.monotonic() + 10
    while not holds():
        if time.monotonic() > end:
            return False
        page.wait_for_timeout(50)
    return True


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
