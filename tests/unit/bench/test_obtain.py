"""Data by their names: which files servers have of them, and what comes when servers are not as they should be."""

import base64
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.file_server import Site
from support.refusals import refused

from bert.data import download
from bert.data.sources import SOURCES, RemoteOptions, obtain

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.usefixtures("no_remote_variables")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(download, "ATTEMPTS", 3)


def add_dump(site: Site, wiki: str, date: str, jobs: dict[str, list[str]], state: str = "done") -> None:
    """Put a dump in the form of dumps.wikimedia.org on the server."""
    folder, status = f"/{wiki}/{date}/", {}
    for job, names in jobs.items():
        entries: dict[str, Any] = {}
        for name in names:
            full = f"{wiki}-{date}-{name}"
            content = random.Random(full).randbytes(200_000)
            site.files[folder + full] = content
            digits = hashlib.sha1(content).hexdigest()
            entries[full] = {"size": len(content), "url": folder + full, "md5": "0" * 32, "sha1": digits}
        status[job] = {"status": state, "updated": "2026-11-03 01:02:03", "files": entries}
    site.files[folder + "dumpstatus.json"] = json.dumps({"version": "0.8", "jobs": status}).encode()
    listing = site.files.get(f"/{wiki}/", b"<a href='../'>../</a>\n<a href='latest/'>latest/</a>\n")
    site.files[f"/{wiki}/"] = listing + f'<a href="{date}/">{date}/</a>  03-Nov-2026\n'.encode()


PARTS = [f"pages-articles-multistream{n}.xml-p{a}p{b}.bz2" for n, a, b in ((1, 1, 9), (10, 200, 300), (2, 10, 199))]
INDEXES = [name.replace("multistream", "multistream-index").replace(".xml", ".txt") for name in PARTS]
LARGE = {
    "articlesmultistreamdump": [*PARTS, *INDEXES],
    "articlesmultistreamdumprecombine": ["pages-articles-multistream.xml.bz2"],
    "articlesdump": ["pages-articles1.xml-p1p300.bz2"],
    "articlesdumprecombine": ["pages-articles.xml.bz2"],
}
SMALL = {"articlesmultistreamdump": ["pages-articles-multistream.xml.bz2", "pages-articles-multistream-index.txt.bz2"]}


def get(name: str, site: Site, folder: Path, **options: Any) -> tuple[Path, ...]:
    return obtain(name, folder, RemoteOptions(mirror=site.base, **options), lambda *_: None)[0].files


def wikipedia(site: Site, folder: Path, **options: Any) -> tuple[Path, ...]:
    return get("wikipedia", site, folder, **options)


def add_bucket(site: Site, books: int, page: int) -> None:
    """Put books in the form of Google Cloud Storage on the server, `page` a page of the list."""
    names = sorted(f"train/{number}.txt" for number in range(10, 10 + books))
    for name in names:
        site.files[f"/deepmind-gutenberg/{name}"] = f"The book {name}.\n".encode() * 50
    base = (
        "/storage/v1/b/deepmind-gutenberg/o?prefix=train/&maxResults=1000&fields=nextPageToken,items(name,size,md5Hash)"
    )
    for start in range(0, books, page):
        items = [{"name": "train/"}, {"name": "train/../../etc.txt"}] if start == 0 else []
        for name in names[start : start + page]:
            content = site.files[f"/deepmind-gutenberg/{name}"]
            md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
            items.append({"name": name, "size": str(len(content)), "md5Hash": md5})
        answer = {"items": items, **({"nextPageToken": f"t={start + page}"} if start + page < books else {})}
        site.files[base + (f"&pageToken=t%3D{start}" if start else "")] = json.dumps(answer).encode()


def test_the_newest_finished_dump_is_taken_in_multistream_parts_in_order_of_pages(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261001", SMALL)
    add_dump(site, "enwiki", "20261101", LARGE)
    add_dump(site, "enwiki", "20261120", LARGE, state="in-progress")
    paths = wikipedia(site, tmp_path)
    names = [f"enwiki-20261101-{PARTS[index]}" for index in (0, 2, 1)]
    assert [path.name for path in paths] == names
    for path in paths:
        assert path.parent == tmp_path / "wikipedia"
        assert path.read_bytes() == site.files[f"/enwiki/20261101/{path.name}"]
    assert not any("index" in path for path in site.paths())
    assert "ShareAlike 4.0" in (tmp_path / "wikipedia" / "TERMS.md").read_text()


def test_latest_stays_the_dump_that_was_begun_and_a_finished_one_needs_no_network(site: Site, tmp_path: Path) -> None:
    add_dump(site, "simplewiki", "20261101", SMALL)
    first = wikipedia(site, tmp_path, language="simple")
    add_dump(site, "simplewiki", "20261120", SMALL)
    asked = len(site.asked)
    assert wikipedia(site, tmp_path, language="simple") == first and len(site.asked) == asked
    with refused("folder-occupied", "simple", "de"):
        wikipedia(site, tmp_path, language="de")


def test_a_dump_that_is_not_there_or_not_finished_is_explained(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261120", LARGE, state="waiting")
    for date in ("latest", "20261120", "20200101"):
        with refused("download-failed", "enwiki", "dump of 20", "wikipedia-exports", "--date"):
            wikipedia(site, tmp_path / date, date=date)
    with refused("download-failed", "xxwiki", "HTTP 404"):
        wikipedia(site, tmp_path / "xx", language="xx")
    site.files["/enwiki/20261120/dumpstatus.json"] = b"<html>"
    with refused("download-mismatch", site.base):
        wikipedia(site, tmp_path / "latest")
    site.files["/enwiki/"] = b"nothing"
    with refused("download-failed", "enwiki/", "--date", "--mirror"):
        wikipedia(site, tmp_path / "latest")


def test_exports_take_every_file_of_the_list_of_sums(site: Site, tmp_path: Path) -> None:
    root = "/other/mediawiki_content_current/enwiki/"
    site.files[root] = b'<a href="2026-10-01/">a</a><a href="2026-11-01/">b</a>'
    sums = []
    for pages in ("p10p99", "p1p9"):
        content = random.Random(pages).randbytes(1000)
        name = f"enwiki-2026-10-01-{pages}.xml.bz2"
        site.files[f"{root}2026-10-01/xml/bzip2/{name}"] = content
        sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    site.files[root + "2026-10-01/xml/bzip2/SHA256SUMS"] = "\n".join(sums).encode()
    for date in ("latest", "20261001"):
        paths = get("wikipedia-exports", site, tmp_path / date, date=date)
        assert [path.name for path in paths] == [f"enwiki-2026-10-01-{pages}.xml.bz2" for pages in ("p1p9", "p10p99")]
    with refused("download-failed", "enwiki", "2026-11-01", "--date"):
        get("wikipedia-exports", site, tmp_path, date="20261101")


def test_books_come_page_by_page(site: Site, tmp_path: Path) -> None:
    add_bucket(site, 25, page=10)
    few = get("pg19", site, tmp_path / "few", books_limit=12)
    assert [path.name for path in few] == [f"{number}.txt" for number in range(10, 22)]
    assert few[0].read_text().startswith("The book train/10.txt.") and few[0].parent == tmp_path / "few" / "pg19"
    assert len(get("pg19", site, tmp_path / "every")) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "../x"}, "--language"),
        ({"language": "EN"}, "--language"),
        ({"date": "2026-11-01"}, "YYYYMMDD"),
        ({"books_limit": 0}, "--books-limit"),
    ],
)
def test_choices_that_name_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with refused("option-value", message):
        RemoteOptions(**options)
    assert RemoteOptions(language="zh-min-nan").wiki == "zh_min_nanwiki"


def test_squad_is_as_published() -> None:
    plan = SOURCES["squad"].plan
    assert plan is not None
    files = plan(lambda address: b"", RemoteOptions())
    assert sum(file.size or 0 for file in files) == 81_636_712
    assert {file.name for file in files} == {f"{part}-v{v}.json" for part in ("train", "dev") for v in ("1.1", "2.0")}
