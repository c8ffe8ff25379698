"""Named data sources: their terms, and their files from the lists that the servers publish.

Nothing here goes stale with the next dump; only SQuAD, which does not change, is written down.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from bert.data.remote.download import Checksum
from bert.data.remote.web import DownloadError
from common.errors import UsageError

Ask = Callable[[str], bytes]
"""Returns what an address below the source's base holds. Raises DownloadError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which part of a source is wanted."""

    language: str = "en"
    """Wikipedia: language code as in its address, such as en, de or simple."""
    date: str = "latest"
    """Wikipedia: date of the dump, YYYYMMDD, or latest; a folder keeps the dump it started with."""
    books_limit: int | None = None
    """pg19: number of books to download, from the start of the list; default all."""

    def __post_init__(self) -> None:
        """Refuse an invalid dump or number of books."""
        if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", self.language):
            raise UsageError(
                "option-value", f"--language {self.language!r} must be the code of a Wikipedia, such as en or zh-yue"
            )
        if self.date != "latest" and not re.fullmatch(r"20\d{6}", self.date):
            raise UsageError("option-value", f"--date {self.date!r} must be `latest` or YYYYMMDD")
        if self.books_limit is not None and self.books_limit < 1:
            raise UsageError("option-value", f"--books-limit {self.books_limit} must be at least 1")

    @property
    def wiki(self) -> str:
        """Name of the database, such as enwiki."""
        return self.language.replace("-", "_") + "wiki"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source."""

    name: str
    """Where it goes, relative to the source's folder, with `/`."""
    address: str
    """Where it is, relative to the source's base."""
    size: int | None
    """Bytes, where published."""
    checksum: Checksum | None
    """What it hashes to, where published."""


# --- Wikipedia --------------------------------------------------------------------------------------------------------

# Multistream before plain: its bz2 streams of 100 pages can be unpacked side by side. Parts before the single file: a
# wrong checksum costs one of them, they are published earlier, and two come at a time.
_JOBS = ("articlesmultistreamdump", "articlesmultistreamdumprecombine", "articlesdump", "articlesdumprecombine")
_DUMP = r"{wiki}-{date}-pages-articles(-multistream)?\d*\.xml(-p(\d{{1,18}})p\d+)?\.bz2"


def plan_dump(ask: Ask, choice: Choice) -> list[RemoteFile]:
    """Return the files of a pages-articles dump. Raises DownloadError."""
    dates = [choice.date] if choice.date != "latest" else _dates(ask, f"{choice.wiki}/", r"20\d{6}", choice)
    for date in dates:
        found = _dump_files(ask, choice.wiki, date)
        if found:
            return found
    raise DownloadError(
        "download-failed",
        f"{choice.wiki} has no finished dump of {' or '.join(dates)}: give another --date or --mirror, or "
        "download wikipedia-exports",
    )


def _dump_files(ask: Ask, wiki: str, date: str) -> list[RemoteFile]:
    folder = f"{wiki}/{date}/"
    pattern = re.compile(_DUMP.format(wiki=re.escape(wiki), date=date))
    status = _optional(ask, folder + "dumpstatus.json")
    sums: dict[str, str] | None = None
    if status is None:
        sums = _sums(_optional(ask, f"{folder}{wiki}-{date}-sha1sums.txt") or b"", 40)
        # A list of sums grows while the dump is written: only the files that are made last say that it is whole.
        names = (f"{wiki}-{date}-pages-articles-multistream.xml.bz2", f"{wiki}-{date}-pages-articles.xml.bz2")
        known: dict[str, Any] = {name: {} for name in [name for name in names if name in sums][:1]}
    else:
        known = _finished(status, pattern)
    if known and sums is None and not all(entry.get("sha1") for entry in known.values()):
        sums = _sums(_optional(ask, f"{folder}{wiki}-{date}-sha1sums.txt") or b"", 40)
    files = []
    for name in sorted(known, key=lambda name: (_first_page(pattern, name), name)):
        digits = known[name].get("sha1") or (sums or {}).get(name)
        checksum = Checksum("sha1", str(digits).lower()) if digits else None
        size = known[name].get("size")
        files.append(
            RemoteFile(f"{wiki}-{date}/{name}", folder + name, size if isinstance(size, int) else None, checksum)
        )
    return files


def _finished(status: bytes, pattern: "re.Pattern[str]") -> dict[str, Any]:
    """Return name -> entry of the best finished job in dumpstatus.json."""
    try:
        jobs = json.loads(status)["jobs"]
        for job in _JOBS:
            entry = jobs.get(job) or {}
            if entry.get("status") != "done":
                continue
            found = {name: dict(about) for name, about in entry["files"].items() if pattern.fullmatch(name)}
            if found:
                return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(
            "download-mismatch", f"dumpstatus.json has an unexpected format ({error!r}): use another --mirror"
        ) from error
    return {}


def plan_exports(ask: Ask, choice: Choice) -> list[RemoteFile]:
    """Return the files of a MediaWiki Content File Export, current pages. Raises DownloadError."""
    root = f"other/mediawiki_content_current/{choice.wiki}/"
    if choice.date == "latest":
        dates = _dates(ask, root, r"20\d\d-\d\d-\d\d", choice)
    else:
        dates = [f"{choice.date[:4]}-{choice.date[4:6]}-{choice.date[6:]}"]
    for date in dates:
        folder = f"{root}{date}/xml/bzip2/"
        sums = _sums(_optional(ask, folder + "SHA256SUMS") or b"", 64)
        pattern = re.compile(rf"({re.escape(choice.wiki)})-{date}-p(\d{{1,18}})p\d+\.xml\.bz2")
        names = sorted(filter(pattern.fullmatch, sums), key=lambda name: (_first_page(pattern, name), name))
        if names:
            target = f"{choice.wiki}-{date}/"
            return [RemoteFile(target + name, folder + name, None, Checksum("sha256", sums[name])) for name in names]
    raise DownloadError(
        "download-failed",
        f"{choice.wiki} has no finished export of {' or '.join(dates)}: give another --date or --mirror",
    )


def _dates(ask: Ask, folder: str, pattern: str, choice: Choice) -> list[str]:
    try:
        page = ask(folder).decode("utf-8", "replace")
    except DownloadError as error:
        if error.status != 404:
            raise
        raise DownloadError(error.code, f"{error}; is {choice.language!r} the code of a Wikipedia?", 404) from error
    dates = sorted(set(re.findall(rf"""href=["']?(?:[^"'>\s]*/)?({pattern})/?["'>\s]""", page)), reverse=True)
    if not dates:
        raise DownloadError("download-failed", f"{folder} lists no dumps: give --date or another --mirror")
    return dates


def _optional(ask: Ask, address: str) -> bytes | None:
    try:
        return ask(address)
    except DownloadError as error:
        if error.status not in (404, 410):
            raise
        return None


def _sums(text: bytes, digits: int) -> dict[str, str]:
    """Return name -> checksum of a list as sha1sum and sha256sum write it."""
    lines = text.decode("utf-8", "replace").splitlines()
    found = (re.fullmatch(rf"([0-9a-fA-F]{{{digits}}})[ *]+(?:\./)?(\S+)", line.strip()) for line in lines)
    return {match[2]: match[1].lower() for match in found if match}


def _first_page(pattern: "re.Pattern[str]", name: str) -> int:
    match = pattern.fullmatch(name)
    groups = match.groups() if match else ()
    return int(groups[-1] or 0) if groups else 0


# --- SQuAD ------------------------------------------------------------------------------------------------------------

# Sizes and sums as TensorFlow Datasets and Hugging Face datasets (v1.1), Hugging Face datasets and ParlAI (v2.0) state.
_SQUAD = {
    "train-v1.1.json": (30288272, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"),
    "dev-v1.1.json": (4854279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
    "train-v2.0.json": (42123633, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"),
    "dev-v2.0.json": (4370528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
}


def plan_squad(ask: Ask, choice: Choice) -> list[RemoteFile]:
    """Return the files of SQuAD 1.1 and 2.0."""
    return [RemoteFile(name, name, size, Checksum("sha256", digits)) for name, (size, digits) in _SQUAD.items()]


# --- PG-19 ------------------------------------------------------------------------------------------------------------

_PAGE_BOOKS = 1000


def plan_pg19(ask: Ask, choice: Choice) -> list[RemoteFile]:
    """Return the books of PG-19, training split. Raises DownloadError."""
    files: list[RemoteFile] = []
    wanted, token, pages = choice.books_limit, "", 0
    while wanted is None or len(files) < wanted:
        fields = quote("nextPageToken,items(name,size,md5Hash)", safe="(),")
        address = f"storage/v1/b/deepmind-gutenberg/o?prefix=train/&maxResults={_PAGE_BOOKS}&fields={fields}"
        try:
            page = json.loads(ask(address + (f"&pageToken={quote(token, safe='')}" if token else "")))
            files += [_book(item) for item in page.get("items", []) if re.fullmatch(r"train/\d+\.txt", item["name"])]
            token, pages = str(page.get("nextPageToken") or ""), pages + 1
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise DownloadError(
                "download-mismatch", f"the list of books is unexpected ({error!r}): use another --mirror"
            ) from error
        if not token or pages > 1000:
            break
    if not files:
        raise DownloadError("download-mismatch", "the list of books is empty: use another --mirror")
    return files[:wanted]


def _book(item: dict[str, Any]) -> RemoteFile:
    name, digits = item["name"], item.get("md5Hash")
    checksum = Checksum("md5", base64.b64decode(digits, validate=True).hex()) if digits else None
    size = int(item["size"]) if "size" in item else None
    return RemoteFile(name, f"deepmind-gutenberg/{name}", size, checksum)


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSource:
    """One name of `bertbench data download`."""

    name: str
    """As it is given."""
    what: str
    """What it is, in a line."""
    base: str = ""
    """Address that --mirror replaces; empty if nothing is fetched."""
    terms: tuple[str, ...]
    """The license and its conditions, a line each."""
    needs: str = ""
    """Size, where a source states it."""
    connections: int = 1
    key: Callable[[Choice], str] = lambda choice: "all"
    """Tells choices apart that lead to different files."""
    plan: Callable[[Ask, Choice], list[RemoteFile]] | None = None
    """Finds the files; None if this program does not fetch it."""
    instead: tuple[str, ...] = ()
    """How to get it where this program does not, a line each."""


_WIKIPEDIA_TERMS = (
    "Text: Creative Commons Attribution-ShareAlike 4.0 and, for most of it, the GNU Free Documentation License.",
    "If you redistribute the text, changed or not, credit Wikipedia and its authors and keep the license.",
    "https://dumps.wikimedia.org/legal.html, https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use",
    "The server asks programs for contact details in the User-Agent (--contact, BERTBENCH_CONTACT), may refuse "
    "those without, and limits connections per address; bertbench uses two.",
)
_GUTENBERG_TERMS = (
    "The books are in the public domain in the United States; elsewhere, check the law of your country.",
    "Project Gutenberg is a trademark: read https://www.gutenberg.org/policy/license.html before you redistribute "
    "files that carry the name.",
)

_WIKIPEDIA = NamedSource(
    name="wikipedia",
    what="articles of one Wikipedia: the pages-articles dump (XML, bz2)",
    base="https://dumps.wikimedia.org",
    terms=_WIKIPEDIA_TERMS,
    needs="reported before the download starts; English: over 20 GB",
    connections=2,
    key=lambda choice: f"{choice.wiki}-{choice.date}",
    plan=plan_dump,
)
SOURCES: dict[str, NamedSource] = {
    source.name: source
    for source in (
        _WIKIPEDIA,
        replace(
            _WIKIPEDIA,
            name="wikipedia-exports",
            what="the same from the MediaWiki Content File Exports, the successor of the dumps; all namespaces",
            needs="larger than wikipedia: pages of all namespaces; the list gives no sizes",
            plan=plan_exports,
        ),
        NamedSource(
            name="squad",
            what="SQuAD 1.1 and 2.0, training and development sets (JSON)",
            base="https://rajpurkar.github.io/SQuAD-explorer/dataset",
            terms=(
                "Creative Commons Attribution-ShareAlike 4.0; the paragraphs are from Wikipedia.",
                "https://rajpurkar.github.io/SQuAD-explorer/",
            ),
            needs="82 MB",
            plan=plan_squad,
        ),
        NamedSource(
            name="pg19",
            what="books, instead of BookCorpus: 28,602 from Project Gutenberg, published before 1919, one .txt each",
            base="https://storage.googleapis.com",
            terms=(
                "The collection (DeepMind, https://github.com/google-deepmind/pg19): Apache License 2.0.",
                _GUTENBERG_TERMS[0],
                "Its authors advise against general-purpose use: language and views are dated.",
            ),
            needs="11.5 GB; --books-limit N takes the first N of the list",
            connections=8,
            key=lambda choice: "all" if choice.books_limit is None else f"first-{choice.books_limit}",
            plan=plan_pg19,
        ),
        NamedSource(
            name="gutenberg",
            what="books: all of Project Gutenberg, in any language",
            terms=_GUTENBERG_TERMS,
            instead=(
                "Project Gutenberg's site is for human visitors; programs may use its mirrors, or the address below "
                "with two seconds between requests (https://www.gutenberg.org/policy/robot_access.html):",
                "  wget -w 2 -m -H 'https://www.gutenberg.org/robot/harvest?filetypes[]=txt&langs[]=en'",
                "Unpack the .zip files and give the folder of .txt files to `bertbench data pretrain --input`, which "
                "removes their headers and footers.",
            ),
        ),
        NamedSource(
            name="bookcorpusopen",
            what="books: 17,868 from smashwords.com, collected as a replacement for BookCorpus",
            terms=(
                "No license: the authors hold the rights, under the terms of smashwords.com "
                "(https://www.smashwords.com/about/tos); find out yourself whether you may train on them.",
            ),
            needs="2.4 GB compressed, 6.6 GB as text",
            instead=(
                "Not downloaded by bertbench: no one who holds the rights offers it. The card of the data set "
                "`bookcorpusopen` at Hugging Face gives its location; put the .txt files into a folder and give that "
                "to `bertbench data pretrain --input`.",
            ),
        ),
        NamedSource(
            name="bookcorpus",
            what="the books BERT was trained on; no longer distributed",
            terms=("No license; see https://arxiv.org/abs/2105.05241 for what is known about it.",),
            instead=(
                "Its authors no longer distribute it. Use pg19 or gutenberg instead, or give any folder of .txt "
                "files to `bertbench data pretrain --input`.",
            ),
        ),
    )
}
"""Every name `bertbench data download` knows."""
