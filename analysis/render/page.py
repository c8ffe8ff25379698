"""A page as data (sections of blocks), and the one way to write it: a file that opens anywhere, without network.

Figures, style and script are inside the page; the figures also lie beside it as PNG.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import Finding, distinct_names
from analysis.render import figure as charts
from analysis.render import tables
from analysis.render.figure import Figure
from common.atomic import remove_left_overs, write_text

if TYPE_CHECKING:
    import markupsafe

PAGE = "report.html"
MOST_ROWS = 200
"""Most rows that a page holds of the table of a finding."""
_HERE = Path(__file__).parent
_UNIT = r"%|×|(?:[nµm]?s|[kMGT]i?B|[kMGTP]?FLOP|W|J)\b"  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph unlike others. In every text, what is in backticks is set apart."""

    text: str
    style: str
    """"headline", "faint", "decides" or "badge caution"."""


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


Files = dict[str, Callable[[Path], None]]
"""Path of a file beside a page, relative to its folder -> its writer."""
Block = tables.Block | Text | Cards | Items | Figures | Section
"""Blocks that a terminal also shows (tables, facts, plain lines, sentences), and blocks of pages alone."""


def listed(texts: Sequence[str]) -> list[Block]:
    """Return texts as a list, equal ones once; nothing where there are none."""
    return [Items(list(dict.fromkeys(texts)))] if texts else []


def advice_blocks(advice: Sequence[Advice]) -> list[Block]:
    """Return what to do first, and what then."""
    texts = [one.text for one in advice]
    return [Section("Do this first", [*texts[:1], *listed(texts[1:])], "first")] if texts else []


def finding_panel(finding: Finding, figures: Sequence[Figure], prefix: str = "", folder: str = "") -> Section:
    """Return a finding as a section: its sentence, its figures, and at most MOST_ROWS rows of its table.

    `prefix` begins the anchor, where a page shows several sources; `folder` has its files, below that of the page.
    """
    blocks: list[Block] = [finding.sentence] if finding.sentence else []
    blocks += [Figures(figures, folder)] if figures else []
    if len(finding.table):
        csv = "/".join(filter(None, (folder, f"{finding.name}.csv")))
        blocks.append(tables.of_frame(finding.name, finding.table[:MOST_ROWS], csv=csv))
    left = len(finding.table) - MOST_ROWS
    blocks += [Text(f"{left:,} more rows are in {finding.name}.csv", "faint")] if left > 0 else []
    return Section(finding.title, blocks, anchor=f"{prefix}{finding.name}")


def finding_files(findings: Sequence[Finding], folder: str = "") -> Files:
    """Return the files of the tables of findings."""
    return {f"{folder}{one.name}.csv": partial(tables.write_frame, frame=one.table) for one in findings}


def write_page(
    folder: Path, title: str, eyebrow: str, sections: Sequence[Section], files: Files | None = None
) -> list[Path]:
    """Write a page with its files; return them: the page, `files`, figures, a CSV file for each other table.

    Everything from outside is escaped. Raises StorageError.
    """
    remove_left_overs(folder, "profiles/*")
    for name, write in (files or {}).items():
        write(folder / name)
    path, *others = _write(folder, title, eyebrow, sections)
    return [path, *(folder / name for name in files or {}), *others]


def _write(folder: Path, title: str, eyebrow: str, sections: Sequence[Section]) -> list[Path]:
    import jinja2
    import markupsafe

    shown = [section for section in sections if section.blocks]
    titles = [section.title or "Answer" for section in shown]
    anchors = distinct_names([re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title in titles])
    anchors = [section.anchor or f"part-{name}" for section, name in zip(shown, anchors, strict=True)]
    pictures: list[Path] = []
    csvs: list[Path] = []
    uses: Counter[str] = Counter()
    figures: Counter[str] = Counter()

    def drawn(figure: Figure, below: str) -> markupsafe.Markup:
        figures[figure.name] += 1  # ids in the page come from the name
        figure = replace(figure, name=f"{figure.name}-{figures[figure.name]}") if figures[figure.name] > 1 else figure
        pictures.append(charts.write_png(figure, folder / below))
        return markupsafe.Markup(charts.figure_html(figure))  # noqa: S704 # nosec B704 # its text is escaped

    def link(table: tables.Table) -> str:
        """Return the address of a table's CSV file, which is written where it has none yet."""
        path = table.csv
        if not path:
            uses[table.name] += 1
            path = f"tables/{table.name}{f'-{uses[table.name]}' if uses[table.name] > 1 else ''}.csv"
            csvs.append(folder / path)
            tables.write_csv(csvs[-1], table.csv_rows())
        return quote(path, errors="surrogateescape")

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "marked_up": _marked_up,
        "drawn": drawn,
        "kind": lambda block: type(block).__name__,
        "csv": link,
        "sort_key": tables.sort_key,
    }
    css, js = ((_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js"))
    text = environment.get_template("page.html").render(
        title=title,
        eyebrow=eyebrow,
        parts=list(zip(anchors, titles, shown, strict=True)),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        css=f"{css}\n{charts.style()}",
        js=js,
    )
    path = folder / PAGE
    write_text(path, text.encode("utf-8", "replace").decode())  # names of files may be no UTF-8
    return [path, *pictures, *csvs]


def _marked_up(text: str) -> "markupsafe.Markup":
    """Escape a text; set what is in backticks apart, and keep options, and numbers with their units, in one line."""
    import markupsafe

    numbers = re.sub(rf"(?<=\d) (?={_UNIT})", "\N{NO-BREAK SPACE}", text)
    commands = re.sub("`([^`<]+)`", r"<code>\1</code>", str(markupsafe.escape(numbers)))
    options = re.sub("--[a-z][a-z-]*", r'<span class="option">\g<0></span>', commands)
    return markupsafe.Markup(options)  # noqa: S704 # nosec B704 # it is escaped
