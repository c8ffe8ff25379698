"""The few templates whose arguments are words of a sentence, as one table; every other template is removed.

What is lost: the numbers and names that other templates would print, the second unit of `{{convert}}`, the language
name before `{{lang-xx}}`, and all pronunciations (`{{IPA}}` and its like).
"""

import re
from typing import Any

POSITIONS = {
    **dict.fromkeys(("nowrap", "nobr", "nobreak", "nowraplinks", "abbr", "small", "smaller", "big", "larger"), 0),
    **dict.fromkeys(("em", "strong", "sup", "sub", "sc", "smallcaps", "ill", "interlanguage link", "val"), 0),
    **dict.fromkeys(("math", "mvar", "chem2", "quote", "cquote", "blockquote", "quotation", "linktext", "nihongo"), 0),
    **dict.fromkeys(("lang", "wikt-lang", "script", "langr"), 1),
    **dict.fromkeys(("transl", "transliteration", "tlit"), -1),
}
"""Template -> the position of the argument that is printed, from 0, -1 the last."""
WORDS = {
    "'": "'",
    "'s": "'s",
    "ndash": "\N{EN DASH}",
    "spaced ndash": " \N{EN DASH} ",
    "snd": " \N{EN DASH} ",
    "mdash": "\N{EM DASH}",
    "nbsp": " ",
    "!": " ",
    "c.": "c. {0}",
    "circa": "c. {0}",
    "us$": "US${0}",
    "usd": "US${0}",
    "gbp": "£{0}",
    "as of": "As of {dates}",
    "oldstyledate": "{0} {1}",
    "frac": "{0}/{1}",
    "fraction": "{0}/{1}",
}
"""Template -> what it prints; {0} is its first argument, {dates} its dates."""
_CONVERT = ("convert", "cvt")
_RANGES = {"to": " to ", "-": "\N{EN DASH}", "\N{EN DASH}": "\N{EN DASH}", "and": " and ", "or": " or "}
_RANGES |= {"by": " by ", "x": " by ", "to(-)": " to "}
_UNITS = {"sqmi": "square miles", "sqkm": "km²", "km2": "km²", "m2": "m²", "sqft": "square feet", "ft": "feet"}
_UNITS |= {"mi": "miles", "in": "inches", "yd": "yards", "lb": "pounds", "C": "°C", "F": "°F", "acre": "acres"}
_UNITS |= {"km3": "km³", "m3": "m³", "mph": "miles per hour", "kph": "km/h", "nmi": "nautical miles", "oz": "ounces"}
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_NAME = re.compile(r"\{\{\s*([^|{}\n<\[]*?)\s*[|}\n]")
_LANGUAGE = re.compile(r"lang-[a-z]{2,3}(-[a-z]+)*")
MOST_CHARACTERS = 8192
"""A longer template is removed unread."""


def is_kept(template: str) -> bool:
    """Return whether the wikitext of a template begins with a name of the tables."""
    name = _NAME.match(template)
    return name is not None and len(template) <= MOST_CHARACTERS and _is_known(_plain(name[1]))


def expand(template: Any) -> str:
    """Return what a parsed template (mwparserfromhell) prints, as wikitext; empty for one outside the tables."""
    name = _plain(str(template.name))
    if not _is_known(name):
        return ""
    values = [_expanded(parameter.value) for parameter in template.params if not parameter.showkey]
    explicit = {str(parameter.name).strip(): parameter.value for parameter in template.params if parameter.showkey}
    if not values:
        values = [_expanded(explicit[key]) for key in ("1", "2", "3", "text", "quote") if key in explicit]
    if name in WORDS:
        filled = [*values, "", ""]
        words = WORDS[name].format(*filled, dates=_dates(values)) if "{" not in WORDS[name] or values else ""
        return words[:1].lower() + words[1:] if "lc" in explicit else words
    if name in _CONVERT:
        return _converted(values)
    if name == "chem":
        return "".join(values)
    position = POSITIONS.get(name, 0)
    return values[position] if -len(values) <= position < len(values) else ""


def _plain(name: str) -> str:
    return name.strip().replace("_", " ").lower()


def _is_known(name: str) -> bool:
    return (
        name in POSITIONS
        or name in WORDS
        or name in _CONVERT
        or name == "chem"
        or _LANGUAGE.fullmatch(name) is not None
    )


def _expanded(value: Any) -> str:
    """Return an argument as wikitext, the templates in it expanded (the parser bounds how deep they are)."""
    from mwparserfromhell.nodes import Template

    return "".join(expand(node) if isinstance(node, Template) else str(node) for node in value.nodes).strip()


def _dates(values: list[str]) -> str:
    year = values[0] if values else ""
    month = values[1] if len(values) > 1 else ""
    if month.isdigit() and 1 <= int(month) <= 12:
        month = _MONTHS[int(month) - 1]
    day = values[2] if len(values) > 2 else ""
    return " ".join(word for word in (day, month, year) if word)


def _converted(values: list[str]) -> str:
    """Return number (or range) and unit of `{{convert|5|to|10|km|mi}}`."""
    if len(values) >= 4 and values[1] in _RANGES:
        number, unit = f"{values[0]}{_RANGES[values[1]]}{values[2]}", values[3]
    elif len(values) >= 2:
        number, unit = values[0], values[1]
    else:
        return " ".join(values)
    return f"{number} {_UNITS.get(unit, unit)}"
