"""Cells of CSV tables that people open in a spreadsheet."""

from typing import Any


def inert(value: Any) -> Any:
    """Return a cell of a table that people open: a text that a spreadsheet would run as a formula gets an apostrophe.

    Names in traces are whatever somebody called them: =HYPERLINK(...) is one.
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
