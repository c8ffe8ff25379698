"""Convert the wikitext of one page to plain paragraphs.

Whole-text scanners (`markup.py`) take out what is no running text; headings, sections of references and tables are
taken out line by line; links and kept templates of each paragraph are then resolved, the simple ones by patterns, the
others by the parser (mwparserfromhell). As in MediaWiki, lines in a row are one paragraph, and a list item is one line.

What is kept: a paragraph when it ends like a sentence or has at least 8 words; a list item (`*`, `#`, `:`), the
definition after a term (`; term : definition`) or a line that begins with a space when it ends like a sentence and has
at least 5 words (a script without spaces: 20 characters). Terms, headings, titles, captions, galleries, formulas and
tables are not sentences and go. A table that is never closed ends at the next heading, or where a paragraph that is
kept follows an empty line.

What is lost besides: the result of every template outside the tables of `markup.py`, formulas (their sentence
stays, with a gap), bare web addresses, `|` signs that nothing protects, and all after a comment without an end.
"""

import html
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from bert.corpus import markup

MOST_CHARACTERS = 2**20
"""A longer page is cut into pieces of at most this many characters before it is read."""
_MOST_PARSED = 8192
"""Characters given to the parser at once: it is quadratic in unclosed links, so their number is bounded."""
_MOST_OPEN = 32
"""More unclosed brackets than this in one line are no links."""
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
_REDIRECT = re.compile(r"\s*#\s*\w+\s*:?\s*\[\[")
# Two patterns, because one search for either would try every character.
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:disambig\w*|dab|disamb|hndis|geodis|(?:human name|place name|\w+) disambiguation|begriffsklärung|"
    r"homonymie|desambiguación|desambiguação|disambigua|doorverwijspagina|ujednoznacznienie|неоднозначность|aimai)"
    r"\s*[|}]",
    re.IGNORECASE,
)
_DISAMBIGUATION_WORD = re.compile("__DISAMBIG__", re.IGNORECASE)
_HEADING = re.compile(r"(={1,6})\s*(.*?)\s*={1,6}\s*$")
# Of 10<sup>18</sup> the text is 10^18, not 1018.
_POWER = re.compile(r"<sup>(?<=\d<sup>)([-+\u2212\u2013]?\d{1,9})</sup>")
_MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
_QUOTES = re.compile(r"'{2,}")
_VARIANT = re.compile(r"-\{(?:[^{}:;|]*[:|])?([^{};]*)[^{}]*\}-")
_SIMPLE_LINK = re.compile(r"\[\[([^\[\]{}|\n]{1,300}+)(?:\|([^\[\]{}|\n]{0,300}+))?\]\]")
"""A link with nothing nested in it, as nearly all are: read without the parser, to the same effect."""
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
_PLAIN_WORDS = 8
_ITEM_WORDS = 5
_ITEM_CHARACTERS = 20


def is_redirect(text: str) -> bool:
    """Return whether a page begins as a redirect, in any language (`#REDIRECT [[`, `#WEITERLEITUNG [[`)."""
    return _REDIRECT.match(text) is not None


def is_disambiguation(text: str) -> bool:
    """Return whether a page says that it only lists what its title may mean."""
    return _DISAMBIGUATION.search(text) is not None or _DISAMBIGUATION_WORD.search(text) is not None


@dataclass(slots=True)
class Page:
    """The prose of a page."""

    paragraphs: list[str] = field(default_factory=list)
    """Its plain paragraphs, whitespace normalized; none when it has no running text."""
    unclosed_tables: int = 0


def read_page(text: str, namespaces: tuple[str, ...] = ()) -> Page:
    """Return the running text of a page.

    Args:
        text: its wikitext.
        namespaces: names of the namespaces whose links are no text (files, categories), in the language of the dump;
            those of `markup.DEFAULT_PREFIXES` always are.
    """
    prefix = _prefix(namespaces)
    parser = _Parser()
    page = Page()
    for block in _blocks(_running_lines(text, prefix, parser, page)):
        paragraph = _paragraph(block, parser, prefix)
        if paragraph:
            page.paragraphs.append(paragraph)
    return page


def paragraphs(text: str, namespaces: tuple[str, ...] = ()) -> list[str]:
    """Return the paragraphs of `read_page`."""
    return read_page(text, namespaces).paragraphs


def _blocks(lines: Iterator[str]) -> Iterator[str]:
    """Join plain lines in a row; list items and lines that begin with a space stay alone."""
    block: list[str] = []
    length = 0
    for line in lines:
        is_plain = bool(line) and line[0] not in _ALONE
        if block and (not is_plain or length > MOST_CHARACTERS):
            yield " ".join(block)
            block, length = [], 0
        if is_plain:
            block.append(line)
            length += len(line)
        elif line:
            yield line
    if block:
        yield " ".join(block)


@lru_cache(maxsize=8)
def _prefix(namespaces: tuple[str, ...]) -> "re.Pattern[str]":
    return markup.link_prefix(namespaces)


def _running_lines(text: str, prefix: "re.Pattern[str]", parser: "_Parser", page: Page) -> Iterator[str]:
    """Yield the lines outside tables and sections of references; headings and tables become empty lines."""
    depth = 0
    skipped = 7  # The level of the heading that began a section to leave out; 7 is below all.
    is_unclosed = is_behind_blank = False
    for piece in markup.pieces_of(text, MOST_CHARACTERS):
        body = _without_blocks(piece, prefix, parser)
        unclosed = markup.unclosed_tables(body)
        page.unclosed_tables += len(unclosed)
        if not depth and not is_unclosed and "{|" not in body:
            skipped = yield from _outside_sections(body, skipped)
            continue
        for number, line in enumerate(body.split("\n")):
            stripped = line.lstrip(markup.BEFORE_TABLES) if depth or "{|" in line else line
            if is_unclosed:
                if is_behind_blank and _is_prose(line):
                    depth, is_unclosed = 0, False
                is_behind_blank = not stripped
            if stripped.startswith("{|"):
                depth += 1
                is_unclosed = is_unclosed or number in unclosed
                yield ""
            elif line.startswith("="):
                if (heading := _heading(line)) is not None:
                    # A heading ends a table that somebody forgot to close.
                    depth, is_unclosed = 0, False
                    skipped = _skipped_below(heading, skipped)
                    yield ""
                elif not depth and skipped == 7:
                    yield line
            elif depth:
                if stripped.startswith("|}"):
                    depth -= 1
                    if not depth and skipped == 7:
                        yield stripped[2:]
            elif skipped == 7:
                yield line


def _outside_sections(body: str, skipped: int) -> Generator[str, None, int]:
    """Yield the lines of a text without tables as `_running_lines` does; return the level of the last heading."""
    before, *sections = ("\n" + body).split("\n=")
    if before and skipped == 7:
        yield from before[1:].split("\n")
    for section in sections:
        line, end, lines = section.partition("\n")
        line = "=" + line
        if (heading := _heading(line)) is not None:
            skipped = _skipped_below(heading, skipped)
            yield ""
        elif skipped == 7:
            yield line
        if end and skipped == 7:
            yield from lines.split("\n")
    return skipped


def _heading(line: str) -> "re.Match[str] | None":
    return _HEADING.match(line) if len(line) < 1000 else None


def _skipped_below(heading: "re.Match[str]", skipped: int) -> int:
    """Return the level of the section that is left out after a heading, 7 for none."""
    level = len(heading[1])
    if level > skipped:
        return skipped
    return level if heading[2].strip("' ").lower() in _SKIPPED_SECTIONS else 7


def _is_prose(line: str) -> bool:
    if not line or line[0] in "|!={" or line[0] in _ALONE:
        return False
    return line.count(" ") + 1 >= _PLAIN_WORDS or (
        line.count(" ") + 1 >= _ITEM_WORDS and _SENTENCE_END.search(line, max(0, len(line) - 20)) is not None
    )


def _without_blocks(piece: str, prefix: "re.Pattern[str]", parser: "_Parser") -> str:
    if "<" in piece:
        piece = _POWER.sub(r"^\1", piece)
        piece = markup.remove_tags(piece)
    if "{{" in piece:
        piece = markup.replace_templates(piece, parser.template)
    if "[[" in piece:
        piece = markup.remove_links(piece, prefix)
    if "__" in piece:
        piece = _MAGIC_WORD.sub("", piece)
    return piece


def _paragraph(line: str, parser: "_Parser", prefix: "re.Pattern[str]") -> str:
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
    text = _plain(line, parser, prefix)
    if not text:
        return ""
    ends = _SENTENCE_END.search(text, max(0, len(text) - 20)) is not None
    if not is_item:
        return text if (ends and len(text) > 3) or text.count(" ") + 1 >= _PLAIN_WORDS else ""
    is_long = text.count(" ") + 1 >= _ITEM_WORDS or (not text.isascii() and len(text) >= _ITEM_CHARACTERS)
    return text if ends and is_long else ""


def _plain(line: str, parser: "_Parser", prefix: "re.Pattern[str]") -> str:
    if "''" in line:
        line = _without_quotes(line)
    # One character is faster to look for than two, and most lines have none of these.
    if "{" in line and "-{" in line:
        line = _VARIANT.sub(r"\1", line)
    if "[" in line and "[[" in line:
        line = _SIMPLE_LINK.sub(_label, line)
    if "[" in line or ("{" in line and "{{" in line):
        line = parser.inline(line)
        if "[[" in line:
            line = _without_open_links(line, prefix)
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
    if _has_hole(text):
        for pattern, by in _HOLES:
            text = pattern.sub(by, text)
        text = " ".join(text.split())
    return text.lstrip(",;:.) ") if text[:1] in ",;:.)" and not text.startswith("...") else text


def _has_hole(text: str) -> bool:
    return any(character in text and pattern.search(text) is not None for character, pattern in _HOLE_AT)


def _label(link: "re.Match[str]") -> str:
    return link[2] or link[1].lstrip(":")


def _without_open_links(line: str, prefix: "re.Pattern[str]") -> str:
    """Cut a line at a link to a file or category that was never closed."""
    position = line.find("[[")
    while position >= 0:
        if prefix.match(line, position + 2):
            return line[:position]
        position = line.find("[[", position + 2)
    return line


def _without_quotes(line: str) -> str:
    """Take out the quotes of bold and italics as MediaWiki reads them; apostrophes beside them stay.

    2 are italics, 3 bold, 4 an apostrophe and bold, 5 both, more are apostrophes and both. Where italics and bold are
    both left open, one bold mark is an apostrophe and italics (`''Emma'''s`): the first after a word of one letter,
    else the first after a longer word, else the first.
    """
    if "''''" not in line:
        bold = line.count("'''")
        if not bold % 2 or not (line.count("''") - bold) % 2:
            return line.replace("'''", "").replace("''", "")
    return _without_runs_of_quotes(line)


def _without_runs_of_quotes(line: str) -> str:
    """Take out quotes as `_without_quotes`, also where apostrophes stay."""
    runs = list(_QUOTES.finditer(line))
    italics = sum(len(run[0]) != 3 and len(run[0]) != 4 for run in runs)
    bold = sum(len(run[0]) >= 3 for run in runs)
    apostrophe = None
    if italics % 2 and bold % 2:
        candidates = [run for run in runs if len(run[0]) in (3, 4)]
        ranks = [(_rank(line, run.start()), run.start()) for run in candidates]
        apostrophe = min(ranks)[1] if ranks else None
    parts: list[str] = []
    position = 0
    for run in runs:
        count = len(run[0])
        kept = 1 if count == 4 else max(0, count - 5)
        parts.append(line[position : run.start()] + "'" * (kept + (run.start() == apostrophe)))
        position = run.end()
    parts.append(line[position:])
    return "".join(parts)


def _rank(line: str, start: int) -> int:
    if start == 0 or line[start - 1] == " ":
        return 2
    return 0 if start == 1 or line[start - 2] == " " else 1


class _Parser:
    """mwparserfromhell, given one line or template at a time."""

    def __init__(self) -> None:
        # Imported here: the start-up of the command line does not pay for it.
        from mwparserfromhell import nodes
        from mwparserfromhell.parser import ParserError

        self._nodes = nodes
        self._errors = (ParserError, RecursionError)
        self._parser = _new_parser()

    def template(self, wikitext: str) -> str:
        """Return what an outermost template prints, as wikitext."""
        if not markup.is_kept(wikitext):
            return ""
        simple = markup.expand_simple(wikitext)
        if simple is not None:
            return simple
        code = self._parse(wikitext)
        node = code.nodes[0] if code is not None and code.nodes else None
        return markup.expand(node) if isinstance(node, self._nodes.Template) else ""

    def inline(self, line: str) -> str:
        """Resolve links and templates of a line; what cannot be parsed is left as it is."""
        if line.count("[") - line.count("]") > _MOST_OPEN:
            return line.replace("[", " ")
        if line.count("{{") - line.count("}}") > _MOST_OPEN:
            line = line.replace("{{", " ")
        parts: list[str] = []
        for chunk in markup.pieces_of(line, _MOST_PARSED):
            code = self._parse(chunk)
            try:
                parts.append(chunk if code is None else self._text(code))
            except RecursionError:
                parts.append(chunk)
        return "".join(parts)

    def _parse(self, wikitext: str) -> Any:
        try:
            return self._parser.parse(wikitext, 0, True)
        except self._errors:
            self._parser = _new_parser()
            return None

    def _text(self, code: Any) -> str:
        nodes = self._nodes
        parts: list[str] = []
        for node in code.nodes:
            kind = type(node)
            if kind is nodes.Text:
                parts.append(node.value)
            elif kind is nodes.Wikilink:
                label = node.text
                if label is None or not label.nodes:
                    parts.append(self._text(node.title).lstrip(":"))
                else:
                    parts.append(self._text(label))
            elif kind is nodes.ExternalLink:
                if node.title is not None:
                    parts.append(self._text(node.title))
            elif kind is nodes.Template:
                parts.append(markup.expand(node))
            elif kind is nodes.Tag:
                if node.contents is not None:
                    parts.append(self._text(node.contents))
            elif kind is nodes.HTMLEntity:
                parts.append(str(node))
            elif kind is nodes.Heading:
                parts.append(self._text(node.title))
        return "".join(parts)


def _new_parser() -> Any:
    from mwparserfromhell.parser import Parser

    return Parser()  # type: ignore[no-untyped-call]
