"""A page as data (sections of blocks), and the one way to write it: a file that opens anywhere, without network.

Figures, style and script are inside the page; the figures also lie beside it as PNG.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from analysis.diagnose.finding import Finding
from analysis.render import charts, tables
from analysis.render.figure import Figure
from analysis.render.finding_tables import table_of
from analysis.wording import in_order
from common.atomic import remove_left_overs, storage_errors, write_text
from common.locks import locked

if TYPE_CHECKING:
    import markupsafe

PAGE = "report.html"
MOST_ROWS = 200
"""Most rows that a page holds of the table of a finding."""
_OPEN_ROWS = 16
"""Most rows of a finding's table that are shown unfolded."""
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
class Badge:
    """A short note that stands out: the machine was disturbed, a result is not conclusive."""

    text: str
    style: Literal["caution", "good", "plain"] = "caution"


@dataclass(frozen=True, slots=True)
class Callout:
    """A box with what the reader must not miss, such as what to do first."""

    title: str
    blocks: "Sequence[Block]"
    style: Literal["first", "plain"] = "first"


@dataclass(frozen=True, slots=True)
class Gallery:
    """Figures, half ones beside each other."""

    figures: Sequence[Figure]
    folder: str = ""
    """Folder of their files, relative to that of the page."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list; an item may begin with a link to a panel: (anchor, its words, text)."""

    rows: Sequence[tuple[str, str, str]]
    start: int = 0
    """Number of the first item; 0 for a list without numbers."""


@dataclass(frozen=True, slots=True)
class Caution:
    """A caution: what, where, and what to do."""

    messages: Sequence[str]
    where: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Details:
    """Folded blocks."""

    summary: str
    blocks: "Sequence[Block]"
    heading: bool = False
    """The summary is as large as the title of a section."""


@dataclass(frozen=True, slots=True)
class Article:
    """Blocks that belong together, with a title and an anchor if given."""

    title: str
    blocks: "Sequence[Block]"
    anchor: str = ""
    style: str = "panel"


Block = tables.Block | Prose | Heading | Cards | Badge | Callout | Gallery | Items | Caution | Details | Article
"""Blocks that a terminal also shows (tables, facts, plain lines, sentences), and blocks of pages alone."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page."""

    title: str
    blocks: Sequence[Block]
    style: str = ""
    """"answer" for what a page is opened for."""


@dataclass(frozen=True, slots=True)
class Page:
    """Content of one HTML file; sections without blocks are left out."""

    title: str
    eyebrow: str
    sections: Sequence[Section]


def finding_panel(
    finding: Finding, figures: Sequence[Figure], prefix: str = "", folder: str = ""
) -> Article:  # fmt: skip
    """Return a finding as blocks: its sentence, its figures, and at most MOST_ROWS rows of its table.

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
        shown = replace(table_of(finding, MOST_ROWS), csv="/".join(filter(None, (folder, f"{finding.name}.csv"))))
        rows = len(shown.rows)
        folded = Details(f"{rows} row{'s' if rows != 1 else ''}", [shown])
        blocks.append(folded if figures or rows > _OPEN_ROWS else shown)
        left = len(finding.table) - MOST_ROWS
        if left > 0:
            blocks.append(Prose(f"{left:,} more rows are in {finding.name}.csv", "faint"))
    return Article(finding.title, blocks, f"{prefix}{finding.name}")


@dataclass(frozen=True, slots=True)
class _Part:
    """One entry of the table of contents."""

    anchor: str
    title: str


class _Outline:
    """Gives every section of a page its own anchor, and lists the anchors."""

    def __init__(self, page: Page) -> None:
        self._taken = {block.anchor for section in page.sections for block in section.blocks
                       if isinstance(block, Article) and block.anchor}  # fmt: skip
        self.anchors: dict[int, str] = {}
        """Anchor of each section and each fold, by identity."""
        self.parts: list[_Part] = []
        for section in page.sections:
            if not section.blocks:
                continue
            title = section.title or ("Answer" if section.style == "answer" else "")
            if title:
                self._add(section, title)
            for block in section.blocks:
                if isinstance(block, Details) and block.heading:
                    self._add(block, block.summary)

    def of(self, thing: object) -> str:
        """Return the anchor of a section or a fold, "" if it has none."""
        return self.anchors.get(id(thing), "")

    def _add(self, thing: object, title: str) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"
        anchor, number = name, 1
        while anchor in self._taken:
            number += 1
            anchor = f"{name}-{number}"
        self._taken.add(anchor)
        self.anchors[id(thing)] = anchor
        self.parts.append(_Part(anchor, title))


class _Tables:
    """Writes a CSV file for each table of a page that has none yet; `link` returns its address."""

    def __init__(self, folder: Path) -> None:
        self.written: list[Path] = []
        self._folder = folder
        self._names: dict[str, int] = {}

    def link(self, table: tables.Table) -> str:
        """Return the address of a table's CSV file, relative to the page. Raises StorageError."""
        path = table.csv
        if not path:
            number = self._names[table.name] = self._names.get(table.name, 0) + 1
            path = f"tables/{table.name}{f'-{number}' if number > 1 else ''}.csv"
            tables.write_csv(self._folder / path, table.csv_rows())
            self.written.append(self._folder / path)
        return quote(path, errors="surrogateescape")


@contextmanager
def report_folder(folder: Path, given: bool = True) -> Iterator[None]:
    """Lock the folder while files are written; first remove partial files of killed processes.

    Another report into the same folder waits. A folder that nothing came of is not left behind.

    Args:
        folder: where the report is written.
        given: the user named the folder, which may then be a link; a folder in it, or one in a run directory, may not.
    """
    for place in (*(() if given else (folder,)), *folder.glob("*"), *folder.glob("profiles/*")):
        if place.is_symlink() and place.is_dir():
            with storage_errors(place):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    try:
        with locked(folder, "another report", "wait for it, or give another --out", wait=True, name=_LOCK, remove=True):
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
    pictures: list[Path] = []

    def drawn(figure: Figure, below: str) -> markupsafe.Markup:
        pictures.append(charts.write_png(figure, folder / below))
        return markupsafe.Markup(charts.figure_html(figure))  # noqa: S704 # nosec B704 # its text is escaped

    csvs, outline = _Tables(folder), _Outline(page)
    environment.filters |= {
        "options": _mark_options,
        "drawn": drawn,
        "kind": lambda block: type(block).__name__,
        "csv": csvs.link,
        "anchor": outline.of,
    }
    css, js = ((_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js"))
    files = {"css": f"{css}\n{charts.style()}", "js": f"{js}\n{charts.script()}"}
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = environment.get_template("page.html").render(page=page, written=written, parts=outline.parts, **files)
    path = folder / PAGE
    encodable = in_order(text).encode("utf-8", "replace").decode()  # names of files may hold bytes that are no UTF-8
    write_text(path, encodable)
    return [path, *pictures, *csvs.written]


def _mark_options(text: str) -> "markupsafe.Markup":
    """Escape `text`, and set commands in backticks and options apart so that options are not broken over lines."""
    import markupsafe

    escaped = str(markupsafe.escape(text))
    marked = re.sub(
        r"`([^`<]+)`|--[a-z][a-z-]*(?: \d+)?", lambda found: f"<code>{found[1] or found[0]}</code>", escaped
    )
    return markupsafe.Markup(marked)  # noqa: S704 # nosec B704 # its text is escaped
