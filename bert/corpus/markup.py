"""Linear scanners over wikitext: what is no running text goes before the parser sees it.

Comments, extension tags, templates, and links to files and categories are found by one pass each over the whole text,
with stacks where they nest, so that no input takes more than linear time. The parser itself is quadratic on some of
them (100,000 unclosed `<ref>`), and several times slower on what is thrown away anyway.
"""

import re
from collections.abc import Callable, Iterable, Iterator

REMOVED_TAGS = [
    "ref",
    "references",
    "math",
    "chem",
    "ce",
    "gallery",
    "timeline",
    "imagemap",
    "score",
    "graph",
    "hiero",
    "templatedata",
    "templatestyles",
    "categorytree",
    "inputbox",
    "source",
    "syntaxhighlight",
    "pre",
    "includeonly",
    "table",
    "mapframe",
    "maplink",
    "indicator",
]
"""Tags that go with all that is between them."""
_BLOCKS = frozenset(
    [
        "p",
        "div",
        "li",
        "ul",
        "ol",
        "dl",
        "dt",
        "dd",
        "blockquote",
        "center",
        "poem",
        "hr",
        "tr",
        "td",
        "th",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
    ]
)
"""Tags that end a paragraph; every other one is taken out without a trace (`br` leaves a blank)."""
_MARK = re.compile(
    rf"<!--|<(?P<special>nowiki|{'|'.join(REMOVED_TAGS)})(?P<inner>\s[^<>]*|/)?>|</?(?P<tag>[a-z][a-z0-9]*)(?:\s[^<>]*|/)?>",
    re.IGNORECASE,
)
_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in [*REMOVED_TAGS, "nowiki"]}
_MAGIC_CHARACTERS = {ord(character): f"&#{ord(character)};" for character in "'[]{}|<>=*#:;_!-"}
BEFORE_TABLES = " \t:*#"
"""What may stand before the beginning or the end of a table."""
_BRACES = re.compile(r"\{\{+|\}\}+")
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
languages stand here, because sister languages have them as aliases. Files are known by their names' ends."""
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
        name = mark["special"]
        if name is None:
            tag = mark["tag"]
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
            # Remembered, because looking for the end once more for each one would be quadratic.
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
    """Take out each outermost closed link that `prefix` matches behind its `[[`, with all that is in it."""
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


def link_prefix(namespaces: Iterable[str]) -> "re.Pattern[str]":
    """Return what the links start with that are no text.

    That is these namespaces in any letter case, blanks and underscores alike; files of every namespace; and language
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
    """Cut a text into pieces of at most `most` characters, at the end of a line, else at a blank, else anywhere."""
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
    spans: list[tuple[int, int]] = []
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
    """Add a span that ends behind all others; those inside it go."""
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
