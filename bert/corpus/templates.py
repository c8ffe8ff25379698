"""Templates of wikitext that print words of a sentence: units, dates, quotations, text in other languages."""

import re
from collections.abc import Callable
from functools import lru_cache

_POSITIONS = {
    **dict.fromkeys(("nowrap", "nobr", "nobreak", "nowraplinks", "abbr", "small", "smaller", "big", "larger"), 0),
    **dict.fromkeys(("em", "strong", "sup", "sub", "sc", "smallcaps", "ill", "interlanguage link", "val"), 0),
    **dict.fromkeys(("math", "mvar", "chem2", "quote", "cquote", "blockquote", "quotation", "linktext", "nihongo"), 0),
    **dict.fromkeys(("lang", "wikt-lang", "script", "langr"), 1),
    **dict.fromkeys(("transl", "transliteration", "tlit"), -1),
}
"""Template -> the position of the argument that is printed, from 0, -1 the last."""
_WORDS = {
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
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
_NAME = re.compile(r"\s*([^|{}\n<\[]*?)\s*(?:[|\n]|\Z)")
_ARGUMENT = re.compile(r"\|((?:[^|\[]++|\[\[[^\]]*+\]\]|\[)*+)")
_LANGUAGE_NAME = re.compile(r"lang-[a-z]{2,3}(-[a-z]+)*")
_MOST_CHARACTERS = 8192
"""A longer template is removed unread."""


def printed(template: str, expanded: Callable[[str], str]) -> str:
    """Return the wikitext that a template prints, "" for one outside the tables.

    Args:
        template: what is between its braces.
        expanded: replaces the templates in its arguments.
    """
    match = _NAME.match(template)
    if match is None or len(template) > _MOST_CHARACTERS or not _is_known(name := _plain(match[1])):
        return ""
    if "{{" in template:
        template = expanded(template)
    values: list[str] = []
    named: dict[str, str] = {}
    for argument in _ARGUMENT.findall(template, match.end(1)):
        key, equals, value = argument.partition("=")
        if equals:
            named[key.strip()] = value.strip()
        else:
            values.append(key.strip())
    values = values or [named[key] for key in ("1", "2", "3", "text", "quote") if key in named]
    if name in _WORDS:
        words = _WORDS[name].format(*values, "", "", dates=_dates(values)) if "{" not in _WORDS[name] or values else ""
        return words[:1].lower() + words[1:] if "lc" in named else words
    if name in _CONVERT:
        return _converted(values)
    if name == "chem":
        return "".join(values)
    position = _POSITIONS.get(name, 0)
    return values[position] if -len(values) <= position < len(values) else ""


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    return name.strip().replace("_", " ").lower()


@lru_cache(maxsize=4096)
def _is_known(name: str) -> bool:
    return (
        name in _POSITIONS
        or name in _WORDS
        or name in _CONVERT
        or name == "chem"
        or _LANGUAGE_NAME.fullmatch(name) is not None
    )


def _dates(values: list[str]) -> str:
    year, month, day = [*values, "", "", ""][:3]
    if month.isdigit() and 1 <= int(month) <= 12:
        month = _MONTHS[int(month) - 1]
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
