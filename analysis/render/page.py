"""A page as data (sections of blocks), and the one way to write it: a file that opens anywhere, without network.

Figures, style and script are inside the page; the figures also lie beside it as PNG.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.diagnose.finding import Finding
from analysis.render import tables
from analysis.render.chart_page import ChartsOfPage
from analysis.render.figure import Figure
from analysis.render.finding_tables import table_of
from common.atomic import remove_left_overs, write_text
from common.locks import locked

if TYPE_CHECKING:
    import markupsafe

PAGE = "report.html"
MOST_ROWS = 200
"""Rows of the table of a finding that a page holds."""
_OPEN_ROWS = 16
"""Rows of a finding's table that are shown without being asked for."""
_HERE = Path(__file__).parent
_LOCK = ".report.lock"


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph that is not like others; as in them, options and commands in backticks are set apart."""

    text: str
    style: str
    """"faint", "decides", "meaning" or "headline"."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading within a section."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Cards:
    """A few numbers that count: name, value, and a note where there is one."""

    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Gallery:
    """Figures, half ones beside each other."""

    figures: Sequence[Figure]
    folder: str = ""
    """Where their files lie, below that of the page."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list; an item may begin with a link to a panel: (anchor, its words, text)."""

    rows: Sequence[tuple[str, str, str]]
    start: int = 0
    """The number of the first one; 0 for a list without numbers."""


@dataclass(frozen=True, slots=True)
class Caution:
    """What is doubtful, where, and what to do."""

    messages: Sequence[str]
    where: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are shown when they are asked for."""

    summary: str
    blocks: "Sequence[Block]"
    heading: bool = False
    """The summary is as large as the title of a section."""


@dataclass(frozen=True, slots=True)
class Article:
    """Blocks that belong together, under a title of their own where they have one, to link to."""

    title: str
    blocks: "Sequence[Block]"
    anchor: str = ""
    style: str = "panel"


Block = tables.Block | Prose | Heading | Cards | Gallery | Items | Caution | Details | Article
"""What a terminal shows too (tables, facts, lines as they are, sentences), and what a page alone has."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page."""

    title: str
    blocks: Sequence[Block]
    style: str = ""
    """"answer" for what a page is opened for."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one HTML file shows; sections without blocks are left out."""

    title: str
    eyebrow: str
    sections: Sequence[Section]


def finding_panel(
    finding: Finding, figures: Sequence[Figure], prefix: str = "", folder: str = ""
) -> Article:  # fmt: skip
    """Return what a page shows of a finding: what it means, its figures, and its table, MOST_ROWS rows at most.

    Args:
        finding: what an analysis said.
        figures: of it.
        prefix: begins the anchor, where a page shows several sources.
        folder: of the figures' files, below that of the page.
    """
    blocks: list[Block] = [Prose(finding.sentence, "meaning")] if finding.sentence else []
    if figures:
        blocks.append(Gallery(figures, folder))
    if len(finding.table):
        shown = table_of(finding, MOST_ROWS)
        rows = len(shown.rows)
        folded = Details(f"{rows} row{'s' if rows != 1 else ''}", [shown])
        blocks.append(folded if figures or rows > _OPEN_ROWS else shown)
        left = len(finding.table) - MOST_ROWS
        if left > 0:
            blocks.append(Prose(f"{left:,} more rows are in {finding.name}.csv", "faint"))
    return Article(finding.title, blocks, f"{prefix}{finding.name}")


@contextmanager
def report_folder(folder: Path) -> Iterator[None]:
    """Hold the folder while its files are written, and first remove what killed processes left half written.

    Another report into the same folder waits. A folder that nothing came of is not left behind.

    Raises:
        StorageError: it cannot be made or written.
    """
    try:
        with locked(folder, "another report", "wait for it, or give another --out", wait=True, name=_LOCK, remove=True):
            for place in (folder, *folder.glob("profiles/*")):
                remove_left_overs(place)
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def write_page(page: Page, folder: Path) -> list[Path]:
    """Write a page and its figures into a folder; return the files, the page first. Everything from outside is escaped.

    Raises:
        StorageError: a file cannot be written.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = ChartsOfPage(folder)
    environment.filters |= {"options": _mark_options, "drawn": charts.add, "kind": lambda block: type(block).__name__}
    files = {name: (_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = environment.get_template("page.html").render(page=page, written=written, charts=charts, **files)
    path = folder / PAGE
    write_text(path, text.encode("utf-8", "replace").decode())  # names of files may hold bytes that are no UTF-8
    return [path, *charts.pictures]


def _mark_options(text: str) -> "markupsafe.Markup":
    """Escape `text`, and set commands in backticks and options apart so that options are not broken over lines."""
    import markupsafe

    escaped = str(markupsafe.escape(text))
    marked = re.sub(
        r"`([^`<]+)`|--[a-z][a-z-]*(?: \d+)?", lambda found: f"<code>{found[1] or found[0]}</code>", escaped
    )
    return markupsafe.Markup(marked)  # noqa: S704 # nosec B704 # its text is escaped
