"""Dumps of every form give the same pages; what ends too early or is no dump is said clearly."""

import bz2
import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.refusals import refused

from bert.corpus import dumps
from bert.corpus.dumps import Dump, split_pages
from common.errors import Code

HEAD = (
    '<mediawiki xml:lang="de">\n<siteinfo><namespaces><namespace key="0" />'
    '<namespace key="6" case="x">Datei</namespace>'
    '<namespace key="14">Kategorie</namespace></namespaces></siteinfo>\n'
)
END = "</mediawiki>\n"


def page(number: int, length: int = 3000) -> str:
    text = " ".join(f"word{(number * 7919 + place * 104729) % 99991}" for place in range(length // 10))
    return (
        f"<page><title>Page {number}</title><ns>0</ns><revision><text>{text} \N{EURO SIGN}.</text></revision></page>\n"
    )


def xml(count: int = 40) -> str:
    return HEAD + "".join(map(page, range(count))) + END


def expected(count: int = 40) -> list[bytes]:
    return [page(number).strip().encode() for number in range(count)]


def read(path: Path, keep: bool = False) -> list[bytes]:
    return [found for unit in Dump(path, keep).units() for found in split_pages(unit.pages())]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def multistream(parts: list[str]) -> bytes:
    return b"".join(bz2.compress(part.encode()) for part in parts)


def page_streams(count: int = 40, each: int = 4) -> list[str]:
    pages = [page(number) for number in range(count)]
    return [HEAD, *("".join(pages[at : at + each]) for at in range(0, count, each)), END]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "UNIT_BYTES", 10_000)
    monkeypatch.setattr(dumps, "RANGE_BYTES", 5_000)


FORMS = {
    "plain": xml().encode(),
    "bz2": bz2.compress(xml().encode()),
    "gz": gzip.compress(xml().encode()),
    "bom": b"\xef\xbb\xbf" + xml().encode(),
    "multistream": multistream(page_streams()),
    "empty-streams": multistream([HEAD, "", *page_streams()[1:5], "", "", *page_streams()[5:]]),
    "pbzip2": b"".join(bz2.compress(xml().encode()[at : at + 9000]) for at in range(0, len(xml().encode()), 9000)),
    "two-joined": bz2.compress((HEAD + "".join(map(page, range(20))) + END).encode())
    + bz2.compress((HEAD + "".join(map(page, range(20, 40))) + END).encode()),
    "no-header": "".join(map(page, range(40))).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pages(form: str, tmp_path: Path) -> None:
    assert read(write(tmp_path / "x", FORMS[form])) == expected()


def test_units_do_not_depend_on_how_the_bytes_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.xml", xml().encode())
    whole = [unit.pages() for unit in Dump(path).units()]
    monkeypatch.setattr(dumps, "BLOCK_BYTES", 700)
    assert [unit.pages() for unit in Dump(path).units()] == whole
    assert len(whole) > 5 and all(len(unit) >= 10_000 for unit in whole[:-1])


def test_streams_that_begin_at_pages_are_left_to_the_workers(tmp_path: Path) -> None:
    ranges = list(Dump(write(tmp_path / "a.bz2", FORMS["multistream"])).units())
    assert sum(unit.data is None for unit in ranges) >= 2 and all(len(unit.data or b"") < 10_000 for unit in ranges)
    cut = list(Dump(write(tmp_path / "b.bz2", FORMS["pbzip2"])).units())
    assert all(unit.data is not None for unit in cut)


def test_a_stream_start_inside_data_is_none(tmp_path: Path) -> None:
    data = FORMS["multistream"]
    assert len(dumps.page_streams(write(tmp_path / "a", data)) or []) == 12
    false = b"BZh91AY&SY" * 3
    assert dumps.page_streams(write(tmp_path / "b", data + b"garbage" + false)) == dumps.page_streams(tmp_path / "a")


def test_streams_are_found_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", FORMS["multistream"])
    starts = dumps.page_streams(path)
    for size in (3, 5, 8):
        monkeypatch.setattr(dumps, "BLOCK_BYTES", size)
        assert dumps.page_streams(path) == starts


def test_names_of_hidden_namespaces_are_read(tmp_path: Path) -> None:
    assert Dump(write(tmp_path / "x", FORMS["bz2"])).header.hidden == ("Datei", "Kategorie")


@pytest.mark.parametrize("form", ["plain", "bz2", "gz", "multistream", "pbzip2"])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_truncated_dump_says_where_and_gives_its_whole_pages_when_asked(
    form: str, share: float, tmp_path: Path
) -> None:
    data = FORMS[form] if form not in ("bz2", "gz") else _big(form)
    path = write(tmp_path / "x", data[: int(len(data) * share)])
    found: list[bytes] = []
    with refused("file-truncated", path, "--keep-truncated") as caught:
        found.extend(_until_error(path))
    dump = Dump(path, keep_truncated=True)
    kept = [one for unit in dump.units() for one in split_pages(unit.pages())]
    assert dump.is_truncated and kept and kept == [page(number).strip().encode() for number in range(len(kept))]
    assert f'"Page {len(kept) - 1}"' in str(caught.value)


def _big(form: str) -> bytes:
    """More than one bz2 block, so that a part of it can be read."""
    text = xml(700).encode()
    return bz2.compress(text, 1) if form == "bz2" else gzip.compress(text, 1)


def _until_error(path: Path) -> Iterator[bytes]:
    for unit in Dump(path).units():
        yield from split_pages(unit.pages())


def test_a_dump_cut_between_two_streams_is_truncated(tmp_path: Path) -> None:
    path = write(tmp_path / "x", multistream(page_streams()[:6]))
    with refused("file-truncated", path, "</mediawiki>", "Page 19"):
        read(path)
    assert read(path, keep=True) == expected(20)


def test_damage_inside_a_stream_is_named(tmp_path: Path) -> None:
    data = bytearray(FORMS["multistream"])
    data[len(data) // 2] ^= 0xFF
    path = write(tmp_path / "x", bytes(data))
    with refused("file-damaged", path):
        read(path)


def test_a_stream_that_cuts_a_page_behind_streams_that_do_not_is_named(tmp_path: Path) -> None:
    parts = page_streams(400, 4)
    parts[60:62] = [parts[60][:-100], parts[60][-100:] + parts[61]]
    path = write(tmp_path / "x", multistream(parts))
    with refused("file-format", path, "bunzip2"):
        read(path)


NO_DUMPS: dict[str, tuple[bytes, Code, str]] = {
    "empty": (b"", "file-empty", ""),
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>", "file-format", "HTML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "file-format", "git lfs pull"),
    "7z": (b"7z\xbc\xaf\x27\x1c rest", "file-format", "7z"),
    "text": (b"It was a dark night.", "file-format", "'it was a dark night.'"),
    "sql": (gzip.compress(b"-- MySQL dump 10.13"), "file-format", "MediaWiki"),
    "broken-bz2": (b"BZh9" + b"x" * 100, "file-damaged", ""),
    "no-pages": ((HEAD + END).encode(), "file-empty", ".xml"),
}


@pytest.mark.parametrize("name", NO_DUMPS)
def test_what_is_no_dump_is_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    data, code, fact = NO_DUMPS[name]
    path = write(tmp_path / "x.xml", data)
    with refused(code, path, fact):
        read(path)


def test_a_page_without_an_end_is_refused_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MOST_PAGE_BYTES", 2**21)
    path = write(tmp_path / "x", (HEAD + "<page><text>" + "a" * 2**23).encode())
    with refused("file-damaged", path, "2 MiB"):
        read(path)


def test_memory_does_not_grow_with_the_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "UNIT_BYTES", 2**17)
    monkeypatch.setattr(dumps, "BLOCK_BYTES", 2**17)
    body = "".join(map(page, range(300))).encode()
    path = write(tmp_path / "x.bz2", bz2.compress(HEAD.encode() + body * 24 + END.encode(), 1))
    tracemalloc.start()
    count = sum(1 for unit in Dump(path).units() for _ in split_pages(unit.pages()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 300 * 24 and peak < 4 * 2**20 < len(body) * 24 / 4
