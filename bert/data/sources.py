"""Named data sources: their terms, the files of each by the lists that servers publish, and their download.

Nothing here goes stale with the next dump; only SQuAD, which does not change, is written down.
"""

import base64
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from bert.data.download import PART, DownloadError, RemoteFile, Server, size_of
from bert.data.finished import Counts, Finished, Stage
from bert.data.pool import Progress
from common.atomic import write_json, write_text
from common.errors import UsageError
from common.locks import locked
from common.reading import read_json
from common.registry import lookup

PLAN_FILE = "plan.json"
_VERSION = 1
Read = Callable[[str], bytes]
"""Returns what an address below the source's base holds. Raises DownloadError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteOptions:
    """Which part of a source to download, and from where."""

    language: str = "en"
    """Wikipedia: language code as in its address, such as en, de or simple."""
    date: str = "latest"
    """Wikipedia: date of the dump, YYYYMMDD, or latest; a folder keeps the dump it started with."""
    books_limit: int | None = None
    """pg19: number of books to download, from the start of the list; default all."""
    mirror: str = ""
    """Base URL of a mirror; default the original, or an environment variable named after the data set, such as
    BERTBENCH_WIKIPEDIA_URL."""
    contact: str = ""
    """E-mail address or web page for the User-Agent, which Wikimedia requests; default the environment variable
    BERTBENCH_CONTACT."""

    def __post_init__(self) -> None:
        """Refuse an invalid dump, number of books or contact."""
        for option, pattern, needed in (
            ("language", r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", "a code such as en or zh-yue"),
            ("date", r"latest|20\d{6}", "`latest` or YYYYMMDD"),
            ("books_limit", r"None|[1-9]\d*", "at least 1"),
            ("contact", r"[\x20-\x7e]*", "an e-mail address or a web page"),
        ):
            if not re.fullmatch(pattern, str(getattr(self, option))):
                flag = option.replace("_", "-")
                raise UsageError("option-value", f"--{flag} {getattr(self, option)!r} must be {needed}")

    @property
    def wiki(self) -> str:
        """Name of the database, such as enwiki."""
        return self.language.replace("-", "_") + "wiki"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSource:
    """One name of `bertbench data download`."""

    name: str
    what: str
    terms: tuple[str, ...]
    """The license and its conditions, a line each."""
    base: str = ""
    """Address that --mirror replaces."""
    connections: int = 1
    settings: tuple[str, ...] = ()
    """Options that choose its files."""
    plan: Callable[[Read, RemoteOptions], list[RemoteFile]] | None = None
    """Lists the files; None if this program does not fetch it."""
    instead: str = ""
    """How to get it where this program does not."""


def obtain(name: str, folder: Path, options: RemoteOptions, progress: Progress) -> tuple[Finished, int]:
    """Download the files of a source into `folder`/`name`; return them, and the bytes that came in this call.

    The list of files is kept there, so that a second call continues with the same files although a newer dump has come
    out. `progress` is called with "download NAME", the bytes there, and the bytes in all (None = not published).

    Raises UsageError (an unknown name, or one that this program does not fetch; the message says how to get it),
    InputError (the folder was made with other options, or the server refuses or stays away), StorageError, LockedError.
    """
    source = named(name)
    base = options.mirror or os.environ.get(f"BERTBENCH_{name.upper().replace('-', '_')}_URL") or source.base
    if not re.fullmatch(r"https?://[\x21-\x7e]+", base):
        raise UsageError("option-value", f"--mirror {base!r} must be an http:// or https:// address")
    contact = options.contact or os.environ.get("BERTBENCH_CONTACT") or "pretraining data for BERT"
    # In the form that Wikimedia's policy asks for.
    server = Server(base.rstrip("/"), f"bertbench/{version('bertbench')} ({contact}) Python-urllib")
    target = folder / name
    with locked(target, "another download", "wait for it, or give another folder"):
        settings = {setting: getattr(options, setting) for setting in source.settings}
        stage = Stage(target, f"download {name}", _VERSION, settings, "")
        finished = stage.finished()
        if finished is not None:
            return finished, 0
        files = _planned(source, server, options, target)
        received = _fetch(source, server, files, target, progress)
        return stage.complete([file.name for file in files], Counts()), received


def named(name: str) -> NamedSource:
    """Return a source that this program fetches. Raises UsageError, which says how to get the others."""
    source = lookup(SOURCES, name, "name of data")
    if source.plan is None:
        raise UsageError("option-choice", f"bertbench does not download {name}: {source.instead}")
    return source


def _planned(source: NamedSource, server: Server, options: RemoteOptions, target: Path) -> list[RemoteFile]:
    """Return the files of a source: those of an earlier call, else those that the server lists now."""
    plan = target / PLAN_FILE
    if not plan.exists():
        assert source.plan is not None
        try:
            files = source.plan(server.read, options)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DownloadError(
                "download-mismatch", f"a list of {server.base} has an unexpected format ({error!r}): use another mirror"
            ) from error
        terms = "\n".join(f"- {line}" for line in source.terms)
        write_text(target / "TERMS.md", f"# {source.name}\n\n{source.what}\n\nFrom {server.base}\n\n{terms}\n")
        write_json(plan, {"files": [asdict(file) for file in files]})
    return [RemoteFile(**entry) for entry in read_json(plan)["files"]]


def _fetch(source: NamedSource, server: Server, files: list[RemoteFile], target: Path, progress: Progress) -> int:
    """Download what is missing, a few files at a time; return the bytes that came over the network."""
    missing = [file for file in files if not (target / file.name).exists()]
    there = sum(size_of(target / (file.name + end)) for file in files for end in ("", PART))
    sizes = [file.size for file in files if file.size is not None]
    total = sum(sizes) if len(sizes) == len(files) else None
    lock, received = threading.Lock(), 0

    def tell(count: int) -> None:
        nonlocal received
        with lock:
            received += count
            progress(f"download {source.name}", there + received, total)

    with ThreadPoolExecutor(source.connections) as executor:
        futures = [executor.submit(server.fetch, file, target / file.name, tell) for file in missing]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            server.stop.set()
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    return received


# Multistream before plain: its bz2 streams of 100 pages can be unpacked side by side. Parts before the single file: a
# wrong checksum costs one of them, they are published earlier, and two come at a time.
_JOBS = ("articlesmultistreamdump", "articlesmultistreamdumprecombine", "articlesdump", "articlesdumprecombine")


def _dump(read: Read, options: RemoteOptions) -> list[RemoteFile]:
    """Return the files of the newest finished pages-articles dump."""
    dates = _dates(read, f"{options.wiki}/", options.date)
    for date in dates:
        folder = f"{options.wiki}/{date}/"
        pattern = re.compile(rf"{options.wiki}-{date}-pages-articles(-multistream)?\d*\.xml(-p\d+p\d+)?\.bz2")
        status = _optional(read, folder + "dumpstatus.json")
        jobs = json.loads(status)["jobs"] if status else {}
        for job in (jobs[name] for name in _JOBS if name in jobs and jobs[name]["status"] == "done"):
            about = {name: entry for name, entry in job["files"].items() if pattern.fullmatch(name)}
            if about:
                names = sorted(about, key=_first_page)
                return [RemoteFile(folder + name, about[name]["size"], about[name]["sha1"]) for name in names]
    raise DownloadError(
        "download-failed",
        f"{options.wiki} has no finished dump of {' or '.join(dates)}: give another --date, or use wikipedia-exports",
    )


def _exports(read: Read, options: RemoteOptions) -> list[RemoteFile]:
    """Return the files of the newest finished MediaWiki Content File Export, current pages."""
    root = f"other/mediawiki_content_current/{options.wiki}/"
    dates = _dates(read, root, options.date, "-")
    for date in dates:
        folder = f"{root}{date}/xml/bzip2/"
        listing = (_optional(read, folder + "SHA256SUMS") or b"").decode()
        line = rf"([0-9a-f]{{64}})[ *]+(?:\./)?({options.wiki}-{date}-p\d+p\d+\.xml\.bz2)"
        sums = {match[2]: match[1] for row in listing.splitlines() if (match := re.fullmatch(line, row.strip()))}
        if sums:
            return [RemoteFile(folder + name, None, sums[name]) for name in sorted(sums, key=_first_page)]
    raise DownloadError(
        "download-failed", f"{options.wiki} has no finished export of {' or '.join(dates)}: give another --date"
    )


def _dates(read: Read, folder: str, date: str, between: str = "") -> list[str]:
    """Return the date that is asked for, or those that the page of a folder links to, the newest first."""
    if date != "latest":
        return [between.join((date[:4], date[4:6], date[6:]))]
    pattern = rf"""href=["']?(?:[^"'>\s]*/)?(20\d\d{between}\d\d{between}\d\d)/?["'>\s]"""
    dates = sorted(set(re.findall(pattern, read(folder).decode("utf-8", "replace"))), reverse=True)
    if not dates:
        raise DownloadError("download-failed", f"{folder} lists no dumps: give --date or another --mirror")
    return dates


def _optional(read: Read, address: str) -> bytes | None:
    try:
        return read(address)
    except DownloadError as error:
        if error.status != 404:
            raise
        return None


def _first_page(name: str) -> int:
    match = re.search(r"-p(\d+)p", name)
    return int(match[1]) if match else 0


# Sizes and sums as TensorFlow Datasets and Hugging Face datasets (v1.1), Hugging Face datasets and ParlAI (v2.0) state.
_SQUAD = [
    RemoteFile("train-v1.1.json", 30288272, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"),
    RemoteFile("dev-v1.1.json", 4854279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
    RemoteFile("train-v2.0.json", 42123633, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"),
    RemoteFile("dev-v2.0.json", 4370528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
]


def _books(read: Read, options: RemoteOptions) -> list[RemoteFile]:
    """Return the books of PG-19, training split, by the pages of the bucket's list."""
    fields = quote("nextPageToken,items(name,size,md5Hash)", safe="(),")
    first = address = f"storage/v1/b/deepmind-gutenberg/o?prefix=train/&maxResults=1000&fields={fields}"
    files: list[RemoteFile] = []
    while address and (options.books_limit is None or len(files) < options.books_limit):
        page = json.loads(read(address))
        for item in page.get("items", []):
            if re.fullmatch(r"train/\d+\.txt", item["name"]):
                digest = base64.b64decode(item["md5Hash"]).hex()
                files.append(RemoteFile(f"deepmind-gutenberg/{item['name']}", int(item["size"]), digest))
        token = page.get("nextPageToken")
        address = f"{first}&pageToken={quote(token, safe='')}" if token else ""
    return files[: options.books_limit]


_WIKIPEDIA_TERMS = (
    "Text: Creative Commons Attribution-ShareAlike 4.0 and, for most of it, the GNU Free Documentation License.",
    "If you redistribute the text, changed or not, credit Wikipedia and its authors and keep the license.",
    "https://dumps.wikimedia.org/legal.html, https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use",
    "The server may refuse programs without contact details (--contact, BERTBENCH_CONTACT), and limits connections.",
)
_GUTENBERG_TERMS = (
    "The books are in the public domain in the United States; elsewhere, check the law of your country.",
    "Read https://www.gutenberg.org/policy/license.html before you redistribute files that carry the trademark.",
)
_WIKIPEDIA = NamedSource(
    name="wikipedia",
    what="articles of one Wikipedia: the pages-articles dump (XML, bz2); English: over 20 GB",
    base="https://dumps.wikimedia.org",
    terms=_WIKIPEDIA_TERMS,
    connections=2,
    settings=("language", "date"),
    plan=_dump,
)
_ALL = (
    _WIKIPEDIA,
    replace(
        _WIKIPEDIA,
        name="wikipedia-exports",
        what="the same from the successor of the dumps, the MediaWiki Content File Exports; larger: all namespaces",
        plan=_exports,
    ),
    NamedSource(
        name="squad",
        what="SQuAD 1.1 and 2.0, training and development sets (JSON), 82 MB",
        base="https://rajpurkar.github.io/SQuAD-explorer/dataset",
        terms=(
            "Creative Commons Attribution-ShareAlike 4.0; the paragraphs are from Wikipedia.",
            "https://rajpurkar.github.io/SQuAD-explorer/",
        ),
        plan=lambda read, options: _SQUAD,
    ),
    NamedSource(
        name="pg19",
        what="books, instead of BookCorpus: 28,602 of Project Gutenberg from before 1919, one .txt each, 11.5 GB",
        base="https://storage.googleapis.com",
        terms=(
            "The collection (DeepMind, https://github.com/google-deepmind/pg19): Apache License 2.0.",
            _GUTENBERG_TERMS[0],
            "Its authors advise against general-purpose use: language and views are dated.",
        ),
        connections=8,
        settings=("books_limit",),
        plan=_books,
    ),
    NamedSource(
        name="gutenberg",
        what="books: all of Project Gutenberg, in any language",
        terms=_GUTENBERG_TERMS,
        instead="its site is for people, and this address for programs (two seconds between requests): wget -w 2 -m -H "
        "'https://www.gutenberg.org/robot/harvest?filetypes[]=txt&langs[]=en'; then give the folder of .txt files",
    ),
    NamedSource(
        name="bookcorpusopen",
        what="books: 17,868 from smashwords.com, collected as a replacement for BookCorpus; 6.6 GB as text",
        terms=("No license: the authors hold the rights, under the terms of https://www.smashwords.com/about/tos.",),
        instead="no one who holds the rights offers it; the card of `bookcorpusopen` at Hugging Face says where it is",
    ),
    NamedSource(
        name="bookcorpus",
        what="the books BERT was trained on; no longer distributed",
        terms=("No license; see https://arxiv.org/abs/2105.05241 for what is known about it.",),
        instead="its authors no longer distribute it; use pg19 or gutenberg, or any folder of .txt files",
    ),
)
SOURCES: Mapping[str, NamedSource] = {source.name: source for source in _ALL}
"""Every name `bertbench data download` knows."""
