"""Data by their names: which files servers have of them, and what comes when servers are not as they should be."""

import base64
import hashlib
import json
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from support.file_server import Fault, Site
from support.refusals import refused

from bert.data.remote import obtain as obtaining
from bert.data.remote.obtain import RemoteOptions, obtain
from bert.data.remote.sources import SOURCES, Choice
from bert.data.remote.web import Transfer

ROOT = Path(__file__).resolve().parents[3]
QUICK = Transfer(first_wait_seconds=0.001, longest_wait_seconds=0.01, timeout_seconds=5.0, attempts=3)


pytestmark = pytest.mark.usefixtures("no_remote_variables")


def add_dump(
    site: Site, wiki: str, date: str, jobs: dict[str, list[str]], state: str = "done", sha1: bool = True
) -> None:
    """Put a dump in the form of dumps.wikimedia.org on the server."""
    folder, sums, status = f"/{wiki}/{date}/", [], {}
    for job, names in jobs.items():
        entries: dict[str, Any] = {}
        for name in names:
            full = f"{wiki}-{date}-{name}"
            content = random.Random(full).randbytes(200_000)
            site.files[folder + full] = content
            digits = hashlib.sha1(content).hexdigest()
            sums.append(f"{digits}  {full}\n")
            entries[full] = {"size": len(content), "url": folder + full, "md5": "0" * 32}
            if sha1:
                entries[full]["sha1"] = digits
        status[job] = {"status": state, "updated": "2026-11-03 01:02:03", "files": entries}
    site.files[folder + "dumpstatus.json"] = json.dumps({"version": "0.8", "jobs": status}).encode()
    site.files[folder + f"{wiki}-{date}-sha1sums.txt"] = "".join(sums).encode()
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


def wikipedia(site: Site, folder: Path, **options: Any) -> list[Path]:
    return obtain("wikipedia", folder, RemoteOptions(mirror=site.base, **options), None, QUICK).files


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
        assert path.parent == tmp_path / "wikipedia" / "enwiki-20261101"
        assert path.read_bytes() == site.files[f"/enwiki/20261101/{path.name}"]
    assert not any("index" in path for path in site.paths())
    assert "ShareAlike 4.0" in (tmp_path / "wikipedia" / "TERMS.md").read_text()


def test_latest_stays_the_dump_that_was_begun_and_a_finished_one_needs_no_network(site: Site, tmp_path: Path) -> None:
    add_dump(site, "simplewiki", "20261101", SMALL)
    first = wikipedia(site, tmp_path, language="simple")
    add_dump(site, "simplewiki", "20261120", SMALL)
    asked = len(site.asked)
    assert wikipedia(site, tmp_path, language="simple") == first and len(site.asked) == asked
    (tmp_path / "wikipedia" / "plan-simplewiki-latest.json").unlink()
    assert "20261120" in wikipedia(site, tmp_path, language="simple")[0].name


def test_a_finished_file_is_not_read_again_unless_it_was_touched(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dump(site, "dewiki", "20261101", SMALL)
    (path,) = wikipedia(site, tmp_path, language="de", date="20261101")
    read: list[Path] = []
    real = obtaining.is_whole
    monkeypatch.setattr(obtaining, "is_whole", lambda path, *rest: read.append(path) or real(path, *rest))
    wikipedia(site, tmp_path, language="de", date="20261101")
    assert read == []
    path.write_bytes(b"x" * 200_000)
    wikipedia(site, tmp_path, language="de", date="20261101")
    assert read == [path] and path.read_bytes() == site.files["/dewiki/20261101/" + path.name]


def test_checksums_come_from_the_list_where_the_status_has_none(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261101", LARGE, sha1=False)
    wikipedia(site, tmp_path / "a")
    plan = json.loads((tmp_path / "a/wikipedia/plan-enwiki-latest.json").read_text())
    assert all(file["checksum"]["kind"] == "sha1" and file["size"] == 200_000 for file in plan["files"])
    del site.files["/enwiki/20261101/enwiki-20261101-sha1sums.txt"]
    found = obtain("wikipedia", tmp_path / "b", RemoteOptions(mirror=site.base), None, QUICK)
    assert len(found.unchecked) == 3 and len(found.files) == 3


def test_a_wrong_file_on_the_server_is_refused_and_one_on_its_way_beside_it_is_kept(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261101", LARGE)
    site.faults[f"/enwiki/20261101/enwiki-20261101-{PARTS[2]}"] = deque([Fault(wait_seconds=0.5)])
    bad = f"/enwiki/20261101/enwiki-20261101-{PARTS[1]}"
    site.files[bad] = b"x" * 200_000
    with refused("download-mismatch", bad, "sha1", ".wrong"):
        wikipedia(site, tmp_path)
    folder = tmp_path / "wikipedia" / "enwiki-20261101"
    assert sorted(path.name for path in folder.glob("*.bz2")) == sorted(f"enwiki-20261101-{PARTS[n]}" for n in (0, 2))
    assert [path.name for path in folder.glob("*.wrong")] == [f"enwiki-20261101-{PARTS[1]}.wrong"]


def test_a_dump_that_is_not_there_or_not_finished_is_explained(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261120", LARGE, state="waiting")
    for date in ("latest", "20261120", "20200101"):
        with refused("download-failed", "enwiki", "dump of 20", "wikipedia-exports", "--date"):
            wikipedia(site, tmp_path, date=date)
    with refused("download-failed", "'xx'", "HTTP 404"):
        wikipedia(site, tmp_path, language="xx")
    site.files["/enwiki/20261120/dumpstatus.json"] = b"<html>"
    with refused("download-mismatch", "dumpstatus.json"):
        wikipedia(site, tmp_path)
    site.files["/enwiki/"] = b"nothing"
    with refused("download-failed", "enwiki/", "--date", "--mirror"):
        wikipedia(site, tmp_path)


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
        options = RemoteOptions(mirror=site.base, date=date)
        paths = obtain("wikipedia-exports", tmp_path / date, options, None, QUICK).files
        assert [path.name for path in paths] == [f"enwiki-2026-10-01-{pages}.xml.bz2" for pages in ("p1p9", "p10p99")]
    with refused("download-failed", "enwiki", "2026-11-01", "--date"):
        obtain("wikipedia-exports", tmp_path, RemoteOptions(mirror=site.base, date="20261101"), None, QUICK)


def test_books_come_page_by_page_and_a_larger_limit_keeps_what_is_there(site: Site, tmp_path: Path) -> None:
    add_bucket(site, 25, page=10)
    few = obtain("pg19", tmp_path, RemoteOptions(mirror=site.base, books_limit=12), None, QUICK).files
    assert [path.name for path in few] == [f"{number}.txt" for number in range(10, 22)]
    assert few[0].read_text().startswith("The book train/10.txt.") and few[0].parent == tmp_path / "pg19" / "train"
    every = obtain("pg19", tmp_path, RemoteOptions(mirror=site.base), None, QUICK)
    assert len(every.files) == 25 and every.files[:12] == tuple(few) and every.unchecked == ()
    books = [path for path in site.paths() if path.startswith("/deepmind-gutenberg/")]
    assert len(books) == len(set(books)) == 25


def test_a_disk_too_small_is_noticed_before_anything_is_fetched(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dump(site, "enwiki", "20261101", LARGE)
    monkeypatch.setattr(obtaining.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 500_000})())
    with refused("disk-full", "wikipedia", "0.0 GB"):
        wikipedia(site, tmp_path)
    assert not list(tmp_path.rglob("*.bz2*"))


def test_a_plan_cannot_lead_out_of_the_folder(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261101", LARGE)
    plan = tmp_path / "wikipedia" / "plan-enwiki-latest.json"
    plan.parent.mkdir()
    entry = {"name": "../../escaped", "address": "x", "size": 1, "checksum": None}
    plan.write_text(json.dumps({"version": 1, "files": [entry]}))
    assert len(wikipedia(site, tmp_path)) == 3


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
        Choice(**options)
    assert Choice(language="zh-min-nan").wiki == "zh_min_nanwiki"


def test_squad_is_as_published() -> None:
    plan = SOURCES["squad"].plan
    assert plan is not None
    files = plan(lambda address: b"", Choice())
    assert sum(file.size or 0 for file in files) == 81_636_712
    assert {file.name for file in files} == {f"{part}-v{v}.json" for part in ("train", "dev") for v in ("1.1", "2.0")}


def test_a_server_that_is_busy_for_a_while_is_waited_for(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261101", SMALL)
    (address,) = [path for path in site.files if path.endswith("multistream.xml.bz2")]
    site.faults["/enwiki/"] = deque([Fault(503)])
    site.faults[address] = deque([Fault(429), Fault(cut=70_000)])
    assert wikipedia(site, tmp_path)[0].read_bytes() == site.files[address]
