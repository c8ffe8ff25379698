"""Reports and their charts, as HTML."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from analysis.render.figure import Figure, figure_html
from analysis.run_views import page as page_of
from records.run import RunDirectory


def report_page(run: RunDirectory, **options: Any) -> Path:
    """Write the report of a run, as `bertbench report` does; return the page."""
    return Path(page_of([run.path], **options).document["report"])


SVG = "{http://www.w3.org/2000/svg}"


def svg_of(figure: Figure) -> Xml.Element:
    """Return the HTML of a figure, parsed."""
    return Xml.fromstring(figure_html(figure))


def titles(figure: Figure) -> dict[str, list[list[str]]]:
    """Return the lines that hovering over each value shows, by the name of its series."""
    shown: dict[str, list[list[str]]] = {}
    for group in svg_of(figure).iter(f"{SVG}g"):
        texts = [(title.text or "").split("\n") for title in group.iter(f"{SVG}title")]
        if group.get("data-series") and texts:
            shown.setdefault(group.attrib["data-series"], []).extend(texts)
    return shown


def values(figure: Figure, series: str, line: int = 2) -> list[float]:
    """Return the numbers in a line of what hovering over each value of a series shows."""
    return [float(lines[line].rsplit(": ", 1)[-1].split(" ")[0].replace(",", "")) for lines in titles(figure)[series]]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21 (WCAG 2.2: "relative luminance", "contrast ratio")."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
