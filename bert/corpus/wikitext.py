"""Convert the wikitext of one page to plain paragraphs.

Comments, tags, templates and links are replaced over the whole text, those inside others first; headings, sections of
references and tables are taken out line by line. As in MediaWiki, lines in a row are one paragraph, and a list item is
one line. No pattern takes more than linear time on any input: a repetition ends where what it looks for begins again.

What is kept: a paragraph when it ends like a sentence or has at least 8 words; a list item (`*`, `#`, `:`), the
definition after a term (`; term : definition`) or a line that begins with a space when it ends like a sentence and has
at least 5 words (a script without spaces: 20 characters). Terms, headings, titles, captions, galleries, formulas and
tables are not sentences and go, and so does the result of every template outside the tables at the end.
"""

import html
import re
from collections.abc import Iterator
from functools import lru_cache

_REMOVED_TAGS = [
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
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_ELEMENT = re.compile(
    rf"<({'|'.join(_REMOVED_TAGS)}|nowiki)\b(?:[^<>]*/>"
    r"|[^<>]*+>([^<]*+(?:<(?!/?\1\b(?![^<>]*/>))[^<]*+)*+)</\1\s*+>)",
    re.IGNORECASE,
)
"""A tag that is removed, to its end; one with the same tag open in it is not closed."""
_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)(?:\s[^<>]*|/)?>", re.IGNORECASE)
_MAGIC_CHARACTERS = {ord(character): f"&#{ord(character)};" for character in "'[]{}|<>=*#:;_!-"}
# Of 10<sup>18</sup> the text is 10^18, not 1018.
_POWER = re.compile(r"<sup>(?<=\d<sup>)([-+\u2212\u2013]?\d{1,9})</sup>")

_MOST_NESTED = 8
"""Rounds in which templates and links are replaced; what is nested deeper is left as text."""


def _balanced(levels: int) -> str:
    """Return a pattern of a template that has at most `levels` templates in each other in it."""
    inner = rf"|{_balanced(levels - 1)}" if levels else ""
    return rf"\{{\{{[^{{}}]*+(?:(?:\{{(?!\{{)|\}}(?!\}}){inner})[^{{}}]*+)*+\}}\}}"


_ARGUMENT = re.compile(r"\{\{\{[^{}]*+\}\}\}")
_TEMPLATE = re.compile(_balanced(4))
_EXTERNAL_LINK = re.compile(r"\[(?:(?:https?|ftp|mailto):|//)[^\s\[\]]*+(?:[^\S\n]++([^\[\]\n]*+))?\]", re.IGNORECASE)
_LINK = re.compile(r"\[\[([^\[\]]*+(?:(?:\[(?!\[)|\](?!\]))[^\[\]]*+)*+)\]\]")

_LANGUAGE = r"(?!mw:|wp:)(?:[a-z]{2,3}(?:-[a-z]+){0,2}|simple)"
_PREFIXES = """
    file image media category
    kategorie catégorie categoría categoria categorie kategori luokka kategória kategorija kategorijo kategoria
    kategooria категория категорія катэгорыя категорија κατηγορία קטגוריה تصنيف رده श्रेणी หมวดหมู่ thể_loại kategorio
    分类 分類 カテゴリ 분류 categori catagóir flokkur
"""
"""Namespaces whose links are no text. A dump names those of its own language; further categories of MediaWiki's
languages are listed here, because related languages use them as aliases. Files are known by their names' ends."""
_ENDS_OF_FILES = "jpe?g|png|svg|gif|tiff?|webp|og[gav]|webm|djvu|pdf|midi?|flac|wav|mp3|xcf|stl"
_FILE = rf"[^\[\]{{}}|\n:]{{1,40}}+:[^\[\]{{}}|\n]{{0,300}}\.(?i:{_ENDS_OF_FILES})\s*(?:[|\]]|\Z)"
"""A page of some namespace whose name is that of a file: such a link shows it, in a dump of any language."""

_SKIPPED_SECTIONS = frozenset(
    line.strip()
    for line in """
    see also, references, external links, external link, further reading, notes, notes and references, bibliography,
    footnotes, citations, sources, works cited, references and notes, explanatory notes, general references,
    siehe auch, einzelnachweise, weblinks, literatur, anmerkungen, quellen, fußnoten,
    voir aussi, références, liens externes, notes et références, bibliographie, articles connexes, annexes,
    véase también, referencias, enlaces externos, bibliografía, notas,
    voci correlate, collegamenti esterni, note, bibliografia, altri progetti,
    ver também, referências, ligações externas, zie ook, externe links, bronnen, noten, referenties,
    zobacz też, przypisy, linki zewnętrzne, se även, referenser, externa länkar,
    см. также, примечания, ссылки, литература, 関連項目, 脚注, 外部リンク, 参考文献, 参见, 参考资料, 外部链接
    """.replace("\n", " ").split(",")
)
# Two patterns, because one search for either would try every character.
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:disambig\w*|dab|disamb|hndis|geodis|(?:human name|place name|\w+) disambiguation|begriffsklärung|"
    r"homonymie|desambiguación|desambiguação|disambigua|doorverwijspagina|ujednoznacznienie|неоднозначность|aimai)"
    r"\s*[|}]",
    re.IGNORECASE,
)
_DISAMBIGUATION_WORD = re.compile("__DISAMBIG__", re.IGNORECASE)
_HEADING = re.compile(r"(={1,6})\s*(.{0,999}?)\s*={1,6}\s*$")
_MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
_VARIANT = re.compile(r"-\{(?:[^{}:;|]*[:|])?([^{};]*)[^{}]*\}-")
_BROKEN = re.compile(
    r"\{\{+|\}\}+|\[\[[^\[\]|]{0,200}\||\[\[|\]\]|\{\||\|\}|"
    r"</?(?:ref|br|small|span|div|sub|sup|nowiki|gallery|math|b|i|u)\b[^<>]{0,200}>?",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\[?\b(?:https?|ftp)://[^\s\]]*\]?")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_UNWANTED = re.compile("[\x00-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff\ufffe\uffff\ud800-\udfff]")
_HOLES = (
    # No pattern can begin inside what it has begun to read before: that would be quadratic.
    (re.compile(r"([(\[]) ?(?:[,;:] ?)++"), r"\1"),
    (re.compile(r"(?<![,;: ])(?: ?[,;:])++ ?([)\]])"), r"\1"),
    (re.compile(r"(?<![,; ])[,;](?: ?[,;])++(?= )"), ","),
    (re.compile(r"\( "), "("),
    (re.compile(r" \)"), ")"),
    (re.compile(r" ?(?:\(\)|\[\])"), ""),
    (re.compile(r" ([,.])(?= |$)"), r"\1"),
)
"""Where something was taken out."""
# Where one of them may match: each begins with its character, which is several times faster to search than a set.
_HOLE_AT = tuple(
    (pattern[1] if pattern[0] == "\\" else pattern[0], re.compile(pattern))
    for pattern in (
        r",(?: ?[,;]|(?<= ,)(?: |$))",
        r"\([ ,;:)\]]",
        r"\)(?<=[ ,;:]\))",
        r"\.(?<= \.)(?: |$)",
        r"; ?[,;]",
        r"\[ ?[,;:)\]]",
        r"\](?:(?<=[,;:]\])|(?<=[,;:] \]))",
    )
)
_ENDS = ".!?\N{HORIZONTAL ELLIPSIS}\u3002\uff01\uff1f\uff61\u0964\u061f\u06d4"
"""What ends a sentence, also in Chinese, Japanese, Hindi, Arabic and Urdu."""
_SENTENCE_END = re.compile(rf"[{_ENDS}][\"'\u201d\u2019\u00bb\u203a\u300d\u300f)\] ]*$")
_LIST = "*#:;"
_TERM = re.compile(r";[^:\[\]{}\n]{0,300}:")
_ALONE = "*#:;| \t-"
_BEFORE_TABLES = " \t:*#"
_PLAIN_WORDS = 8
_ITEM_WORDS = 5
_ITEM_CHARACTERS = 20


def is_disambiguation(text: str) -> bool:
    """Return whether a page says that it only lists what its title may mean."""
    return _DISAMBIGUATION.search(text) is not None or _DISAMBIGUATION_WORD.search(text) is not None


def paragraphs(text: str, namespaces: tuple[str, ...] = ()) -> list[str]:
    """Return the running text of a page, whitespace normalized; links to these `namespaces` (files, categories; their
    names in the language of the dump) are no text."""
    if "<" in text:
        text = _without_tags(text)
    if "{{" in text:
        text = _without_templates(text)
    if "''" in text:
        text = "\n".join(_without_quotes(line) if "''" in line else line for line in text.split("\n"))
    if "[" in text:
        text = _without_links(text, _link_prefix(namespaces))
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    return [paragraph for block in _blocks(_running_lines(text)) if (paragraph := _paragraph(block))]


def _without_tags(text: str) -> str:
    """Take out comments and tags, and the content of `_REMOVED_TAGS`; what `<nowiki>` protects becomes entities."""
    if "<!--" in text:
        text = _COMMENT.sub("", text)
    text = _ELEMENT.sub(_element, _POWER.sub(r"^\1", text))
    return _TAG.sub(_tag, text)


def _element(match: "re.Match[str]") -> str:
    return (match[2] or "").translate(_MAGIC_CHARACTERS) if match[1].lower() == "nowiki" else ""


def _tag(match: "re.Match[str]") -> str:
    name = match[2].lower()
    if name in _BLOCKS:
        return "\n"
    return " " if name == "br" or (not match[1] and name in _REMOVED_TAGS) else ""


def _without_templates(text: str) -> str:
    if "{{{" in text:
        text = _ARGUMENT.sub("", text)
    for _ in range(_MOST_NESTED):
        text, count = _TEMPLATE.subn(_template, text)
        if not count:
            break
    return text


def _without_links(text: str, prefix: "re.Pattern[str]") -> str:
    """Replace links by their labels, and take out those that `prefix` matches after the brackets, closed or not."""

    def shown(link: "re.Match[str]") -> str:
        if prefix.match(link[1]) is not None:
            return ""
        target, _, label = link[1].partition("|")
        return label or target.lstrip(":")

    text = _EXTERNAL_LINK.sub(r"\1", text)
    for _ in range(_MOST_NESTED):
        text, count = _LINK.subn(shown, text)
        if not count:
            break
    if "[[" in text:
        text = re.sub(rf"\[\[(?={prefix.pattern}).*", "", text)
    return text


@lru_cache(maxsize=8)
def _link_prefix(namespaces: tuple[str, ...]) -> "re.Pattern[str]":
    """Return what the links start with that are no text: these namespaces, files, and codes of languages."""
    given = {name.strip(" _").lower().replace("_", " ") for name in (*_PREFIXES.split(), *namespaces)} - {""}
    either = "|".join(re.escape(name).replace(r"\ ", "[ _]+") for name in sorted(given))
    # Most links have no colon, and end here.
    return re.compile(rf"[\s_]*(?=[^\[\]{{}}|\n:]{{1,80}}+:)(?:(?i:{either})[ _]*:|{_LANGUAGE}:|{_FILE})")


def _running_lines(text: str) -> Iterator[str]:
    """Yield the lines outside tables and sections of references; headings and tables become empty lines."""
    depth = 0
    skipped = 7  # The level of the heading that began a section to leave out; 7 is below all.
    for line in text.split("\n"):
        if line.startswith("=") and (heading := _HEADING.match(line)) is not None:
            depth = 0  # a heading ends a table that somebody forgot to close
            level = len(heading[1])
            if level <= skipped:
                skipped = level if heading[2].strip("' ").lower() in _SKIPPED_SECTIONS else 7
            yield ""
            continue
        if depth or "{|" in line:
            stripped = line.lstrip(_BEFORE_TABLES)
            if stripped.startswith("{|"):
                depth += 1
                yield ""
                continue
            if depth:
                depth -= stripped.startswith("|}")
                line = stripped[2:] if not depth else ""
        if skipped == 7:
            yield line


def _blocks(lines: Iterator[str]) -> Iterator[str]:
    """Join plain lines in a row; list items and lines that begin with a space stay alone."""
    block: list[str] = []
    for line in lines:
        if line and line[0] not in _ALONE:
            block.append(line)
            continue
        if block:
            yield " ".join(block)
            block = []
        if line:
            yield line
    if block:
        yield " ".join(block)


def _paragraph(line: str) -> str:
    first = line[0]
    if first == "|" or (first == "-" and line.startswith("----")):
        return ""
    is_item = first in _LIST or first.isspace()
    if first == ";":
        term = _TERM.match(line)
        if term is None:
            return ""
        line = line[term.end() :].strip()
    elif is_item:
        line = line.lstrip("*#:; \t")
    text = _plain(line)
    if not text:
        return ""
    ends = _SENTENCE_END.search(text, max(0, len(text) - 20)) is not None
    if not is_item:
        return text if (ends and len(text) > 3) or text.count(" ") + 1 >= _PLAIN_WORDS else ""
    is_long = text.count(" ") + 1 >= _ITEM_WORDS or (not text.isascii() and len(text) >= _ITEM_CHARACTERS)
    return text if ends and is_long else ""


def _plain(line: str) -> str:
    # One character is faster to look for than two, and most lines have none of these.
    if "{" in line and "-{" in line:
        line = _VARIANT.sub(r"\1", line)
    if "://" in line:
        line = _ADDRESS.sub("", line)
    if "{" in line or "[" in line or "<" in line or "}" in line or "]" in line:
        line = _BROKEN.sub("", line)
    if "|" in line:
        line = line.replace("|", " ")
    if "&" in line:
        line = _ENTITY.sub(lambda entity: html.unescape(entity[0]), line)
    # All other whitespace and all of _UNWANTED is not printable.
    is_normal = line.isprintable() and "  " not in line
    text = line.strip(" ") if is_normal else _UNWANTED.sub("", " ".join(line.split()))
    if any(character in text and pattern.search(text) is not None for character, pattern in _HOLE_AT):
        for pattern, by in _HOLES:
            text = pattern.sub(by, text)
        text = " ".join(text.split())
    return text.lstrip(",;:.) ") if text[:1] in ",;:.)" and not text.startswith("...") else text


def _without_quotes(line: str) -> str:
    """Take out the quotes of bold and italics. Where both are left open, one of bold is an apostrophe and italics."""
    if "''''" in line:
        line = re.sub("(?<!')''''(?!')", "'", line)
    both, line = line.count("'''''"), line.replace("'''''", "")
    bold = line.count("'''")
    italics = line.count("''") - bold
    if (bold + both) % 2 and (italics + both) % 2:
        after_letter = r"(?<= [^ '])'''"  # MediaWiki prefers l'''Iliade'' to the first one
        line = re.sub(after_letter if re.search(after_letter, line) else "'''", "'", line, count=1)
    return line.replace("'''", "").replace("''", "")


# Templates that print words of a sentence: units, dates, quotations, text in other languages.
_PRINTED_ARGUMENTS = {
    **dict.fromkeys(("nowrap", "nobr", "nobreak", "nowraplinks", "abbr", "small", "smaller", "big", "larger"), 0),
    **dict.fromkeys(("em", "strong", "sup", "sub", "sc", "smallcaps", "ill", "interlanguage link", "val"), 0),
    **dict.fromkeys(("math", "mvar", "chem2", "quote", "cquote", "blockquote", "quotation", "linktext", "nihongo"), 0),
    **dict.fromkeys(("lang", "wikt-lang", "script", "langr"), 1),
    **dict.fromkeys(("transl", "transliteration", "tlit"), -1),
}
"""Template -> the position of the argument that is printed, from 0, -1 the last."""
_PRINTED_WORDS = {
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
_KNOWN = {*_PRINTED_ARGUMENTS, *_PRINTED_WORDS, *_CONVERT, "chem"}
_MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
_TEMPLATE_NAME = re.compile(r"\s*([^|{}\n<\[]*?)\s*(?:[|\n]|\Z)")
_TEMPLATE_ARGUMENT = re.compile(r"\|((?:[^|\[]++|\[\[[^\]]*+\]\]|\[)*+)")
_LANGUAGE_TEMPLATE = re.compile(r"lang-[a-z]{2,3}(-[a-z]+)*")
_MOST_TEMPLATE_CHARACTERS = 8192
"""A longer template is removed unread."""


def _template(found: "re.Match[str]") -> str:
    """Return the wikitext that a template prints, "" for one outside the tables."""
    template = found[0][2:-2]
    match = _TEMPLATE_NAME.match(template)
    if match is None or len(template) > _MOST_TEMPLATE_CHARACTERS or not _is_known(name := _template_name(match[1])):
        return ""
    if "{{" in template:
        template = _without_templates(template)
    values: list[str] = []
    named: dict[str, str] = {}
    for argument in _TEMPLATE_ARGUMENT.findall(template, match.end(1)):
        key, equals, value = argument.partition("=")
        if equals:
            named[key.strip()] = value.strip()
        else:
            values.append(key.strip())
    values = values or [named[key] for key in ("1", "2", "3", "text", "quote") if key in named]
    if name in _PRINTED_WORDS:
        form = _PRINTED_WORDS[name] if values or "{" not in _PRINTED_WORDS[name] else ""
        words = form.format(*values, "", "", dates=_dates(values))
        return words[:1].lower() + words[1:] if "lc" in named else words
    if name in _CONVERT:
        return _converted(values)
    if name == "chem":
        return "".join(values)
    position = _PRINTED_ARGUMENTS.get(name, 0)
    return values[position] if -len(values) <= position < len(values) else ""


@lru_cache(maxsize=4096)
def _template_name(name: str) -> str:
    return name.strip().replace("_", " ").lower()


@lru_cache(maxsize=4096)
def _is_known(name: str) -> bool:
    return name in _KNOWN or _LANGUAGE_TEMPLATE.fullmatch(name) is not None


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
