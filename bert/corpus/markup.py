"""Linear scanners over wikitext that remove non-prose before the parser sees it.

Comments, extension tags, templates, and links to files and categories are found by one pass each over the whole text,
with stacks where they nest, so that no input takes more than linear time. The parser itself is quadratic on some of
them (100,000 unclosed `<ref>`), and several times slower on what is discarded anyway.

Patterns read what nearly all pages consist of: templates and links that are all closed and nested a few levels deep.
Where a text has others, the stacks read it, to the same effect.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

REMOVED_TAGS = [
    "ref", "references", "math", "chem", "ce", "gallery", "timeline", "imagemap", "score", "graph", "hiero",
    "templatedata", "templatestyles", "categorytree", "inputbox", "source", "syntaxhighlight", "pre", "includeonly",
    "table", "mapframe", "maplink", "indicator",
]  # fmt: skip
"""Tags that are removed with their content."""
_BLOCKS = frozenset((
    "p", "div", "li", "ul", "ol", "dl", "dt", "dd", "blockquote", "center", "poem", "hr", "tr", "td", "th", "h1",
    "h2", "h3", "h4", "h5", "h6",
))  # fmt: skip
"""Tags that end a paragraph; every other one is taken out without a trace (`br` leaves a space)."""
_MARK = re.compile(
    # First whole references with no tag in them, the most frequent by far. All begin with one character in front, which
    # the search then looks for alone.
    r"<(?:(?P<reference>ref(?:\s[^<>]*+)?(?:(?<=/)>|(?<!/)>[^<]*+</ref\s*+>))|!--|"
    rf"(?P<special>nowiki|{'|'.join(REMOVED_TAGS)})(?P<inner>\s[^<>]*|/)?>|/?(?P<tag>[a-z][a-z0-9]*)(?:\s[^<>]*|/)?>)",
    re.IGNORECASE,
)
_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in [*REMOVED_TAGS, "nowiki"]}
_MAGIC_CHARACTERS = {ord(character): f"&#{ord(character)};" for character in "'[]{}|<>=*#:;_!-"}
BEFORE_TABLES = " \t:*#"
"""What may stand before the beginning or the end of a table."""
_BRACES = re.compile(r"\{\{+|\}\}+")


def _balanced(levels: int) -> str:
    """Return a pattern of a template that has at most `levels` templates in each other in it."""
    inner = rf"|{_balanced(levels - 1)}" if levels else ""
    return rf"\{{\{{(?<!\{{\{{\{{)(?!\{{)[^{{}}]*+(?:(?:\{{(?!\{{)|\}}(?!\}}){inner})[^{{}}]*+)*+\}}\}}"


_TEMPLATE = re.compile(_balanced(4))
"""A closed template, with two braces before every name in it: where all braces of a text are in such templates, the
stack of `_template_spans` finds the same ones."""
_TABLE_MARK = re.compile(rf"\n[{BEFORE_TABLES}]*+(?:\{{\||\|\}})")
_BRACKETS = re.compile(r"\[\[|\]\]")
_LANGUAGE = r"(?!mw:|wp:)(?:[a-z]{2,3}(?:-[a-z]+){0,2}|simple)"
DEFAULT_PREFIXES = """
    file image media category
    kategorie catégorie categoría categoria categorie kategori luokka kategória kategorija kategorijo kategoria
    kategooria категория категорія катэгорыя категорија κατηγορία קטגוריה تصنيف رده श्रेणी หมวดหมู่ thể_loại kategorio
    分类 分類 カテゴリ 분류 categori catagóir flokkur
"""
"""Namespaces whose links are no text. A dump names those of its own language; further categories of MediaWiki's
languages are listed here, because related languages use them as aliases. Files are known by their names' ends."""
_ENDS_OF_FILES = "jpe?g|png|svg|gif|tiff?|webp|og[gav]|webm|djvu|pdf|midi?|flac|wav|mp3|xcf|stl"
_FILE = rf"[^\[\]{{}}|\n:]{{1,40}}+:[^\[\]{{}}|\n]{{0,300}}\.(?i:{_ENDS_OF_FILES})\s*[|\]]"
"""A page of some namespace whose name is that of a file: such a link shows it, in a dump of any language."""


def remove_tags(text: str) -> str:
    """Take out comments and tags, and the content of `REMOVED_TAGS`; what `<nowiki>` protects becomes entities."""
    parts: list[str] = []
    unclosed: set[str] = set()
    position = 0
    while (mark := _MARK.search(text, position)) is not None:
        parts.append(text[position : mark.start()])
        position = mark.end()
        reference, name, tag = mark.group("reference", "special", "tag")
        if reference is not None:
            if "ref" in unclosed:
                parts.append(" ")
            continue
        if name is None:
            if tag is None:
                # A comment without an end reaches to the end of the page.
                end = text.find("-->", position)
                position = len(text) if end < 0 else end + 3
            elif (tag := tag.lower()) == "br":
                parts.append(" ")
            elif tag in _BLOCKS:
                parts.append("\n")
            continue
        name = name.lower()
        if name in unclosed or (mark["inner"] or "").endswith("/"):
            parts.append(" " if name in unclosed else "")
            continue
        closing = _CLOSING[name].search(text, position)
        if closing is None:
            # Remembered, because looking for the end again for each one would be quadratic.
            unclosed.add(name)
            parts.append(" ")
            continue
        if name == "nowiki":
            parts.append(text[position : closing.start()].translate(_MAGIC_CHARACTERS))
        position = closing.end()
    parts.append(text[position:])
    return "".join(parts)


def replace_templates(text: str, expand: Callable[[str], str]) -> str:
    """Replace each outermost closed template (and `{{{argument}}}`) by `expand(its wikitext)`; open ones stay."""
    return _replace(text, _template_spans(text), expand)


def remove_links(text: str, prefix: "re.Pattern[str]") -> str:
    """Take out each outermost closed link that `prefix` matches after its `[[`, with all that is in it."""
    if "[[[" not in text:
        simple, whole = _removed_link(prefix)
        rest = whole.sub("", text)
        if simple.search(rest) is None:
            return rest
    spans: list[tuple[int, int]] = []
    stack: list[tuple[int, bool]] = []
    for match in _BRACKETS.finditer(text):
        if match[0] == "[[":
            stack.append((match.start(), prefix.match(text, match.end()) is not None))
        elif stack:
            start, is_removed = stack.pop()
            if is_removed:
                _add_span(spans, start, match.end())
    return _replace(text, spans, lambda link: "")


@lru_cache(maxsize=8)
def _removed_link(prefix: "re.Pattern[str]") -> "tuple[re.Pattern[str], re.Pattern[str]]":
    """Return what begins a link to remove, and such a link with at most one level of links in it."""
    begin = rf"\[\[(?={prefix.pattern})"
    single = r"\[(?!\[)|\](?!\])"
    inner = rf"\[\[[^\[\]]*+(?:(?:{single})[^\[\]]*+)*+\]\]"
    return re.compile(begin), re.compile(rf"{begin}[^\[\]]*+(?:(?:{single}|{inner})[^\[\]]*+)*+\]\]")


def link_prefix(namespaces: Iterable[str]) -> "re.Pattern[str]":
    """Return what the links start with that are no text.

    That is these namespaces in any letter case, spaces and underscores alike; files of every namespace; and language
    codes.
    """
    given = {name.strip(" _").lower().replace("_", " ") for name in (*DEFAULT_PREFIXES.split(), *namespaces)} - {""}
    either = "|".join(re.escape(name).replace(r"\ ", "[ _]+") for name in sorted(given))
    # Most links have no colon, and end here.
    return re.compile(rf"[\s_]*(?=[^\[\]{{}}|\n:]{{1,80}}+:)(?:(?i:{either})[ _]*:|{_LANGUAGE}:|{_FILE})")


def unclosed_tables(text: str) -> frozenset[int]:
    """Return the numbers of the lines that begin a table without an end."""
    begun: list[int] = []
    if "{|" not in text:
        return frozenset()
    text = "\n" + text
    number, position = -1, 0
    for mark in _TABLE_MARK.finditer(text):
        number += text.count("\n", position, mark.end())
        position = mark.end()
        if text[position - 1] == "|":
            begun.append(number)
        elif begun:
            begun.pop()
    return frozenset(begun)


def pieces_of(text: str, most: int) -> Iterator[str]:
    """Cut a text into pieces of at most `most` characters, at the end of a line, else at a space, else anywhere."""
    start = 0
    while len(text) - start > most:
        end = start + most
        cut = max(text.rfind("\n", start, end), start)
        if cut == start:
            cut = text.rfind(" ", start, end)
        cut = end if cut <= start else cut + 1
        yield text[start:cut]
        start = cut
    yield text[start:]


def _template_spans(text: str) -> list[tuple[int, int]]:
    """Match runs of braces as MediaWiki does: at most three of the inner ones close at a time."""
    spans = [template.span() for template in _TEMPLATE.finditer(text)]
    outside = _replace(text, spans, lambda template: " ")
    if "{{" not in outside and "}}" not in outside:
        return spans
    spans = []
    stack: list[list[int]] = []
    for match in _BRACES.finditer(text):
        start, end = match.span()
        if text[start] == "{":
            stack.append([start, end - start])
            continue
        while end - start >= 2 and stack:
            opened = stack[-1]
            count = min(3, end - start, opened[1])
            opened[1] -= count
            start += count
            _add_span(spans, opened[0] + opened[1], start)
            if opened[1] < 2:
                stack.pop()
    return spans


def _add_span(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a span that ends after all others; those inside it go."""
    while spans and spans[-1][0] >= start:
        spans.pop()
    spans.append((start, end))


def _replace(text: str, spans: list[tuple[int, int]], by: Callable[[str], str]) -> str:
    parts: list[str] = []
    position = 0
    for start, end in spans:
        parts.append(text[position:start])
        parts.append(by(text[start:end]))
        position = end
    parts.append(text[position:])
    return "".join(parts)


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
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
_NAME = re.compile(r"\{\{\s*([^|{}\n<\[]*?)\s*[|}\n]")
_LINK = r"\[\[[^\[\]{}<>|\n:=/]++(?:\|[^\[\]{}<>|\n:=/]*+)?\]\]"
_SIMPLE_TEMPLATE = re.compile(rf"\{{\{{[^\[\]{{}}<>|\n:=]*+(?:\|(?:[^\[\]{{}}<>|\n:]++|{_LINK})*+)*+\}}\}}")
"""A template in which nothing but links has a meaning to the parser."""
_PARAMETER = re.compile(r"\|((?:[^|\[]++|\[\[[^\]]*+\]\])*+)")
_LANGUAGE_NAME = re.compile(r"lang-[a-z]{2,3}(-[a-z]+)*")
MOST_TEMPLATE_CHARACTERS = 8192
"""A longer template is removed unread."""


def is_kept(template: str) -> bool:
    """Return whether the wikitext of a template begins with a name of the tables."""
    name = _NAME.match(template)
    return name is not None and len(template) <= MOST_TEMPLATE_CHARACTERS and _is_kept_name(name[1])


@lru_cache(maxsize=4096)
def _is_kept_name(name: str) -> bool:
    return _is_known(_plain(name))


def expand(template: Any) -> str:
    """Return what a parsed template (mwparserfromhell) prints, as wikitext; empty for one outside the tables."""
    name = _plain(str(template.name))
    if not _is_known(name):
        return ""
    values = [_expanded(parameter.value) for parameter in template.params if not parameter.showkey]
    explicit = {
        str(parameter.name).strip(): _expanded(parameter.value) for parameter in template.params if parameter.showkey
    }
    return _printed(name, values, explicit)


def expand_simple(template: str) -> str | None:
    """Return what `expand` does for the wikitext of a template that holds only text and plain links, else None."""
    name = _NAME.match(template)
    if name is None or _SIMPLE_TEMPLATE.fullmatch(template) is None:
        return None
    values: list[str] = []
    explicit: dict[str, str] = {}
    for parameter in _PARAMETER.findall(template, name.end() - 1, len(template) - 2):
        key, equals, value = parameter.partition("=")
        if equals:
            explicit[key.strip()] = value.strip()
        else:
            values.append(key.strip())
    return _printed(_plain(name[1]), values, explicit)


def _printed(name: str, values: list[str], explicit: dict[str, str]) -> str:
    """Return what a template of the tables prints.

    Args:
        name: as in the tables.
        values: its arguments without a name, as wikitext.
        explicit: its arguments by their names.
    """
    if not values:
        values = [explicit[key] for key in ("1", "2", "3", "text", "quote") if key in explicit]
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
        or _LANGUAGE_NAME.fullmatch(name) is not None
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
