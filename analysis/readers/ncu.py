"""CSV output of Nsight Compute (`ncu --csv`), the details page (a row per metric) and the raw page (a row per kernel),
and its reports (.ncu-rep), see ncu_report.

The table may stand anywhere in a log: what the program printed before, and ncu's own ==PROF== lines, are passed over.
"""

import csv
import itertools
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.counters import GLOBAL, LABELS, LOCAL, KernelCounters, KernelRule, rules_file
from analysis.readers.ncu_report import MAGIC, base_unit, counters, is_metric, number, read_report
from analysis.readers.packed import log_lines, read_start
from analysis.readers.registry import Head
from analysis.readers.sqlite_database import unpacked
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_TOOL_LINE = re.compile(r"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)
_RANGES = ("Push/Pop_Range", "Start/Stop_Range")
"""What the names of the two columns hold, "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
and "Id:Domain:Start/Stop_Range:..."; in the order of LABELS."""
# Number of a start/stop range, domain, name, five fields, and the message, which may repeat the name with its colons.
_RANGE = re.compile(r"(?:\d+:)?([^:]*):(.+?)(?:(?::[^:]+){5}:(none|\2|[^:]*))?")
# Columns that say which kernel a row is about. What else the raw page has is a metric.
_ABOUT = {
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size"),
    *("Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name"),
    *("Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"),
}
_HEADER = {"ID", "Kernel Name"}
_KEY = ["Host Name", "Process ID", "ID"]
_ATTRIBUTE = "device__attribute_"
_RULE_KINDS = {"OPT": "optimization", "WRN": "warning", "INF": "information", "ERR": "error"}


def recognises(head: Head) -> bool:
    """Return whether a file is ncu's: a report, or a text whose first 64 KiB have ncu's ==PROF== lines or a header."""
    if head.data.startswith(MAGIC) or _TOOL_LINE.search(head.text):
        return True
    return any(_is_header(line) or "Invocations" in line for line in head.text.splitlines() if "Kernel Name" in line)


def read(path: Path) -> KernelCounters:
    """Read one file, plain or gzip-compressed: a report, or tables, which are joined.

    Values are brought to base units (ns, byte, byte/s, hz). A metric of the details page is named
    "<section>: <metric>", unless its name is ncu's own ("dram__bytes.sum"), which is the same in every section. A time
    that is not in the file is computed from cycles and their rate, where those are.

    Raises:
        InputError: the file is damaged or holds no table of ncu; the message says what it seems to be.
        MissingToolError: it is a report, and the package ncu-report is not installed.
    """
    if read_start(path, len(MAGIC)) == MAGIC:
        with unpacked(path) as report:
            return read_report(report, path)
    problems: list[str] = []
    pages = _pages(path, problems)
    if not pages:
        raise _no_table(path)
    if (rules := rules_file(path)).is_file():
        messages = _pages(rules, problems)
        problems += [] if messages else [str(_no_table(rules))]
        pages += messages
    return _joined(pages, problems)


def _is_header(line: str) -> bool:
    return "Kernel Name" in line and set(next(csv.reader([line]))) >= _HEADER


def _pages(path: Path, problems: list[str]) -> "list[tuple[pd.DataFrame, Sequence[str]]]":
    """Return the tables of a file: cells as texts, and the row of units of a raw page."""
    pages: list[tuple[list[str], list[list[str]], list[str]]] = []
    unended: list[str] = []
    last = [""]

    def lines() -> Iterator[str]:
        for last[0] in itertools.dropwhile(lambda line: not _is_header(line), log_lines(path, unended.append)):
            yield f"{last[0]}\n"

    for row in csv.reader(lines()):
        if set(row) >= _HEADER:
            pages.append((row, [], []))
        elif row and row[0] == "" and not pages[-1][1]:
            pages[-1][2].extend(row)
        elif len(row) > 1 and all(cell.replace(",", "").strip().isdigit() for cell in row[:2]):
            pages[-1][1].append(row)
    if unended and pages and pages[-1][1] and not last[0].endswith('"'):
        pages[-1][1][-1].pop()  # the last value may be cut
    problems += unended
    return [(_page(header, rows, problems), units) for header, rows, units in pages]


def _page(header: Sequence[str], rows: Sequence[list[str]], problems: list[str]) -> "pd.DataFrame":
    import pandas as pd

    good = [row + [""] * (len(header) - len(row)) for row in rows if len(row) <= len(header)]
    if len(good) < len(rows):
        problems.append(f"{len(rows) - len(good):,} lines do not have {len(header)} fields and were skipped")
    names = [next((name for name in _RANGES if name in column), column) for column in header]
    page = pd.DataFrame(good, columns=names, dtype=object)
    return page.assign(**{name: "" for name in (*_KEY, "Section Name", "Metric Unit") if name not in page})


def _joined(pages: "Sequence[tuple[pd.DataFrame, Sequence[str]]]", problems: list[str]) -> KernelCounters:
    import pandas as pd

    keys = pd.concat([page[_KEY] for page, _ in pages], ignore_index=True)
    row_of = keys.groupby(_KEY, sort=False).ngroup()
    launches: dict[int, dict[str, Any]] = {}
    cells, rules = [], []
    start = 0
    for page, units in pages:
        page.index = pd.Index(row_of[start : start + len(page)], name="row")
        start += len(page)
        new = page[~page.index.duplicated()]
        for row, cell in zip(new.index.tolist(), new.to_dict("records"), strict=True):
            launches.setdefault(row, _launch(cell))
        if "Metric Name" not in page:
            metrics = [name for name in map(str, page) if name not in ("", *_ABOUT, *_RANGES) and is_metric(name)]
            by_name = {**dict.fromkeys(metrics, ""), **dict(zip(page.columns, units, strict=False))}
            melted = page[metrics].melt(var_name="name", value_name="text", ignore_index=False).reset_index()
            cells.append(melted.assign(unit=melted["name"].map(by_name)))
            continue
        of_rule = page["Metric Name"] == ""
        of_rules = zip(page.index[of_rule].tolist(), page[of_rule].to_dict("records"), strict=True)
        rules += [_rule(row, cell) for row, cell in of_rules if cell.get("Rule Name") and cell.get("Rule Description")]
        own = page["Metric Name"].str.contains("__|\\.")
        names = page["Metric Name"].where(own, page["Section Name"] + ": " + page["Metric Name"])
        about = page[["Metric Value", "Metric Unit"]].set_axis(["text", "unit"], axis=1).assign(name=names)
        cells.append(about[~of_rule].reset_index())
    values, units_of = _pivoted(pd.concat(cells, ignore_index=True), len(launches), problems)
    return counters([launches[row] for row in range(len(launches))], values, units_of, rules, problems)


def _pivoted(cells: "pd.DataFrame", rows: int, problems: list[str]) -> "tuple[pd.DataFrame, dict[str, str]]":
    """Return a column per metric in base units, and these. Cells are row, name, text and unit of every value."""
    values = cells["text"].map(number).astype("float64")
    odd = cells[values.isna() & cells["text"].str.match(r"\s*(?:n/a|\d[\d.]*,)", case=False)]
    for name, text in odd.drop_duplicates("name")[["name", "text"]].itertuples(index=False):
        problems.append(f"{name} is {text.strip()} for some kernels: this GPU or version of ncu cannot count it")
    bases = {unit: base_unit(unit) for unit in cells["unit"].unique()}
    factor = cells["unit"].map({unit: factor for unit, (factor, _) in bases.items()}).astype("float64")
    cells = cells.assign(value=values * factor)[values.notna()].drop_duplicates(["row", "name"])  # of several sections
    first = cells.drop_duplicates("name")
    wide = cells.pivot(index="row", columns="name", values="value").reindex(index=range(rows), columns=first["name"])
    units = {name: bases[unit][1] for name, unit in zip(first["name"], first["unit"], strict=True)}
    return wide.rename_axis(index=None, columns=None), units


def _launch(row: Mapping[Hashable, str]) -> dict[str, Any]:
    parts = (row.get(f"{_ATTRIBUTE}compute_capability_{part}", "") for part in ("major", "minor"))
    capability = re.fullmatch(r"(\d+)\.(\d+)", (row.get("CC") or ".".join(parts)).strip())
    device = (row.get("Device") or row.get(f"{_ATTRIBUTE}device_index", "")).strip()
    return {
        "process": int(row["Process ID"].replace(",", "")),
        "kernel_id": int(row["ID"].replace(",", "")),
        "name": row["Kernel Name"],
        "device": int(device) if device.isdigit() else None,
        "device_name": row.get(f"{_ATTRIBUTE}display_name"),
        "capability": (int(capability[1]), int(capability[2])) if capability else None,
        **{label: ranges_of(row[name]) for label, name in zip(LABELS, _RANGES, strict=True) if name in row},
    }


def _rule(row: int, cells: Mapping[Hashable, str]) -> KernelRule:
    """Return the message of a rule in a row of the details page, where an estimate is in percent."""
    speedup = number(cells.get("Estimated Speedup", ""))
    estimate = cells.get("Estimated Speedup Type", "").strip().lower()
    return KernelRule(
        row=row,
        rule=cells["Rule Name"],
        section=cells["Section Name"],
        kind=_RULE_KINDS.get(cells.get("Rule Type", "").strip().upper(), ""),
        text=cells["Rule Description"],
        estimate=estimate if estimate in (GLOBAL, LOCAL) and not math.isnan(speedup) else "",
        speedup=None if math.isnan(speedup) else speedup / 100,
    )


@lru_cache(maxsize=65536)
def ranges_of(cell: str) -> tuple[str, ...]:
    """Return the ranges of a cell as "domain@name" (ncu's own way to write them), outermost first.

    A cell holds a thread or range number and, in quotes, each range as the column's name says. A name may hold colons.
    """
    texts = re.findall(r'"([^"]*)"', cell) or [re.sub(r"^\s*\d+\s+", "", cell).strip()]
    matches = (match for text in texts if (match := _RANGE.fullmatch(text)))
    return tuple(f"{match[1]}@{match[3] if match[2] == 'none' else match[2]}" for match in matches)


def _no_table(path: Path) -> InputError:
    """Return what is wrong with a file without a table."""
    begin = read_start(path, 1 << 16).decode(errors="replace")
    if errors := re.findall(r"^==(?:ERROR|WARNING)== *(.*)", begin, re.MULTILINE):
        return InputError("tool-failed", f"{path} has no table, because ncu failed: {' '.join(errors)[:600]}")
    return InputError(
        "file-format",
        f"{path} has no table of single kernels (no line with the columns ID and Kernel Name): give the output of "
        "`ncu --csv` without --print-summary",
    )
