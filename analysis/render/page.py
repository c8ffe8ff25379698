"""A page as data (sections of blocks), and the one way to write it: a file that opens anywhere, without network.

Figures, style and script are inside the page; the figures also lie beside it as PNG.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import Finding, distinct_names
from analysis.render import charts, tables
from analysis.render.figure import Figure
from common.atomic import remove_left_overs, storage_errors, write_text
from common.locks import locked

if TYPE_CHECKING:
    import markupsafe

PAGE = "report.html"
MOST_ROWS = 200
"""Most rows that a page holds of the table of a finding."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph unlike others. In every text, options and commands in backticks are set apart."""

    text: str
    style: str
    """"headline", "faint", "decides", or "badge" with "good" or "caution"."""


@dataclass(frozen=True, slots=True)
class Cards:
    """A few numbers that count: name, value, and a note where there is one."""

    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Items:
    """A list; an item may begin with a link: (anchor, its words, text)."""

    rows: Sequence[str | tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures, half ones beside each other."""

    figures: Sequence[Figure]
    folder: str = ""
    """Folder of their files, relative to that of the page."""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks that belong together; left out without blocks. Its long tables are folded, beside figures all."""

    title: str
    blocks: "Sequence[Block]"
    style: str = ""
    """"answer" for what a page is opened for, "first" for what to do first."""
    folded: bool = False
    anchor: str = ""


Block = tables.Block | Text | Cards | Items | Figures | Section
"""Blocks that a terminal also shows (tables, facts, plain lines, sentences), and blocks of pages alone."""


@dataclass(frozen=True, slots=True)
class Page:
    """Content of one HTML file."""

    title: str
    eyebrow: str
    sections: Sequence[Section]


def listed(texts: Sequence[str]) -> list[Block]:
    """Return texts as a list, equal ones once; nothing where there are none."""
    return [Items(list(dict.fromkeys(texts)))] if texts else []


def advice_blocks(advice: Sequence[Advice]) -> list[Block]:
    """Return what to do first, and what then."""
    texts = [one.text for one in advice]
    return [Section("Do this first", [*texts[:1], *listed(texts[1:])], "first")] if texts else []


def finding_panel(finding: Finding, figures: Sequence[Figure], prefix: str = "", folder: str = "") -> Section:
    """Return a finding as a section: its sentence, its figures, and at most MOST_ROWS rows of its table.

    Args:
        finding: finding to show.
        figures: of it.
        prefix: begins the anchor, where a page shows several sources.
        folder: of the files of figures and tables, below that of the page.
    """
    blocks: list[Block] = [finding.sentence] if finding.sentence else []
    blocks += [Figures(figures, folder)] if figures else []
    if len(finding.table):
        file = "/".join(filter(None, (folder, f"{finding.name}.csv")))
        blocks.append(tables.of_frame(finding.name, finding.table[:MOST_ROWS], csv=file))
    left = len(finding.table) - MOST_ROWS
    blocks += [Text(f"{left:,} more rows are in {finding.name}.csv", "faint")] if left > 0 else []
    return Section(finding.title, blocks, anchor=f"{prefix}{finding.name}")


class _Files:
    """Writes a CSV file for each table of a page that has none yet; `link` returns its address."""

    def __init__(self, folder: Path) -> None:
        self.written: list[Path] = []
        self._folder = folder
        self._names: list[str] = []

    def link(self, table: tables.Table) -> str:
        """Return the address of a table's CSV file, relative to the page. Raises StorageError."""
        path = table.csv
        if not path:
            self._names.append(table.name)
            number = self._names.count(table.name)
            path = f"tables/{table.name}{f'-{number}' if number > 1 else ''}.csv"
            tables.write_csv(self._folder / path, table.csv_rows())
            self.written.append(self._folder / path)
        return quote(path, errors="surrogateescape")


@contextmanager
def report_folder(folder: Path, given: bool = True) -> Iterator[None]:
    """Lock the folder while files are written; first remove partial files of killed processes.

    Another report into the same folder waits. A folder that nothing came of is not left behind. Only a folder that the
    user gave may be a link.
    """
    for place in (*(() if given else (folder,)), *folder.glob("*"), *folder.glob("profiles/*")):
        if place.is_symlink() and place.is_dir():
            with storage_errors(place):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    try:
        with locked(
            folder, "another report", "wait for it, or give another --out", wait=True, name=".report.lock", remove=True
        ):
            for place in (folder, *folder.glob("profiles/*")):
                remove_left_overs(place)
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def write_page(page: Page, folder: Path) -> list[Path]:
    """Write a page, its figures and the CSV files of its tables into a folder; return the files, the page first.

    Everything from outside is escaped.
    """
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = [section for section in page.sections if section.blocks]
    titles = [section.title or "Answer" for section in shown]
    anchors = distinct_names([re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title in titles])
    anchors = [section.anchor or f"part-{name}" for section, name in zip(shown, anchors, strict=True)]
    pictures: list[Path] = []

    def drawn(figure: Figure, below: str) -> markupsafe.Markup:
        pictures.append(charts.write_png(figure, folder / below))
        return markupsafe.Markup(charts.figure_html(figure))  # noqa: S704 # nosec B704 # its text is escaped

    files = _Files(folder)
    css, js = ((_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js"))
    environment.filters |= {
        "options": _mark_options,
        "drawn": drawn,
        "kind": lambda block: type(block).__name__,
        "csv": files.link,
        "sort_key": tables.sort_key,
    }
    text = environment.get_template("page.html").render(
        page=page,
        parts=list(zip(anchors, titles, shown, strict=True)),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        css=f"{css}\n{charts.style()}",
        js=f"{js}\n{charts.script()}",
    )
    path = folder / PAGE
    write_text(path, text.encode("utf-8", "replace").decode())  # names of files may be no UTF-8
    return [path, *pictures, *files.written]


def _mark_options(text: str) -> "markupsafe.Markup":
    """Escape a text, and set commands in backticks and options apart so that options are not broken over lines."""
    import markupsafe

    escaped = str(markupsafe.escape(text))
    marked = re.sub(r"`([^`<]+)`|--[a-z][a-z-]*(?: \d+)?", lambda one: f"<code>{one[1] or one[0]}</code>", escaped)
    return markupsafe.Markup(marked)  # noqa: S704 # nosec B704 # its text is escaped
