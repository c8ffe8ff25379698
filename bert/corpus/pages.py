"""The pages of a unit: XML in, paragraph text and counts out; pure, so that workers can do it."""

import re
from dataclasses import dataclass
from typing import Any

from bert.corpus import wikitext
from bert.corpus.dumps import Header, Unit, split_pages
from bert.data.stages import Counts

PAGES = "pages"
REDIRECTS = "redirects"
OTHERS = "pages of other namespaces"
OTHER_MODELS = "pages that are no wikitext"
DISAMBIGUATIONS = "disambiguation pages"
EMPTY = "pages without a paragraph"
INVALID = "pages that are no valid XML, left out"
OVERSIZED = "pages over 1 MiB, cut before they were parsed"
UNCLOSED_TABLES = "tables that are never closed"
CONTROLS = "control characters taken out"
DOCUMENTS = "documents"
PARAGRAPHS = "paragraphs"
CHARACTERS = "characters"
_CONTROL_BYTES = bytes(code for code in range(32) if code not in (9, 10, 13))
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_TITLE = re.compile(rb"<title>([^<]*)</title>")
_TEXT = re.compile(rb"<text[\s>/]")


@dataclass(frozen=True, slots=True)
class Work:
    """A unit on its way to a worker."""

    part: str
    """Name of the part file that its text goes to."""
    unit: Unit
    """The pages."""
    header: Header
    """Of the dump."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a worker made of a unit."""

    part: str
    """Name of the part file."""
    end: int
    """How far the dump was read."""
    text: bytes
    """Paragraph text in UTF-8, a document each page."""
    counts: dict[str, Any]
    """JSON form of `Counts`."""


def extract_unit(work: Work) -> Text:
    """Turn the pages of a unit into paragraph text. Raises InputError: its compressed data are damaged."""
    counts = Counts()
    data = work.unit.pages()
    clean = data.translate(None, _CONTROL_BYTES)
    if len(clean) < len(data):
        counts.add(CONTROLS, len(data) - len(clean))
    parts: list[str] = []
    for page in split_pages(clean):
        counts.add(PAGES)
        found = _paragraphs(page, work.header, counts)
        if found:
            parts.append("\n".join(found) + "\n\n")
            counts.add(DOCUMENTS)
            counts.add(PARAGRAPHS, len(found))
            counts.add(CHARACTERS, sum(map(len, found)))
    return Text(work.part, work.unit.end, "".join(parts).encode("utf-8"), counts.to_json())


def _paragraphs(page: bytes, header: Header, counts: Counts) -> list[str]:
    """Return the paragraphs of one page, and count why there are none."""
    text_at = _TEXT.search(page)
    head = page[: text_at.start()] if text_at else page
    namespace = _NAMESPACE.search(head)
    # Decided on the bytes: most pages of a full dump are not articles, and parsing them would cost more than that.
    if namespace is not None and namespace[1].strip(b"-0"):
        counts.add(OTHERS)
        return []
    if b"<redirect" in head:
        counts.add(REDIRECTS)
        return []
    parsed = _parse(page)
    title = _title(page)
    if parsed is None:
        counts.add(INVALID, example=title)
        return []
    text, model = parsed
    if namespace is None and _is_in(title, header):
        counts.add(OTHERS)
    elif model not in ("", "wikitext"):
        counts.add(OTHER_MODELS)
    elif wikitext.is_redirect(text):
        counts.add(REDIRECTS)
    elif wikitext.is_disambiguation(text):
        counts.add(DISAMBIGUATIONS)
    else:
        if len(text) > wikitext.MOST_CHARACTERS:
            counts.add(OVERSIZED, example=title)
        found = wikitext.read_page(text, header.hidden)
        counts.add(UNCLOSED_TABLES, found.unclosed_tables, example=title)
        if not found.paragraphs:
            counts.add(EMPTY)
        return found.paragraphs
    return []


def _parse(page: bytes) -> tuple[str, str] | None:
    """Return the wikitext of the last revision and its model; None where the page is no valid XML."""
    # The standard parser: expat refuses entities that grow without bound, and a page declares none.
    from xml.etree import ElementTree  # nosec B405 # see above

    try:
        root = ElementTree.fromstring(page)  # noqa: S314 # nosec B314 # see above
    except (ElementTree.ParseError, ValueError):
        return None
    texts, models = list(root.iter("text")), list(root.iter("model"))
    text = (texts[-1].text or "") if texts else ""
    return text, ((models[-1].text or "").strip() if models else "")


def _title(page: bytes) -> str:
    title = _TITLE.search(page)
    return title[1].decode("utf-8", "replace") if title else "a page without a title"


def _is_in(title: str, header: Header) -> bool:
    """Return whether a title belongs to a namespace, for old dumps that do not say it apart."""
    prefix, colon, _ = title.partition(":")
    return bool(colon) and prefix in header.others
