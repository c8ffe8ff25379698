"""Dumps of every form give the same articles; what ends too early or is no dump is said clearly."""

import bz2
import gzip
from pathlib import Path

import pytest
from support.refusals import refused

from bert.corpus import dumps
from bert.corpus.dumps import DumpUnit, dump_units
from bert.corpus.files import Source
from bert.data.finished import Counts
from common.errors import Code

HEAD = (
    '<mediawiki xml:lang="de">\n<siteinfo><namespaces><namespace key="0" />'
    '<namespace key="6" case="x">Datei</namespace>'
    '<namespace key="14">Kategorie</namespace></namespaces></siteinfo>\n'
)
END = "</mediawiki>\n"


def one(number: int, text: str, namespace: str = "0", more: str = "") -> str:
    return (
        f"<page><title>Page {number}</title><ns>{namespace}</ns>{more}<revision><text>{text}</text></revision></page>\n"
    )


def page(number: int) -> str:
    words = (f"word{(number * 7919 + place * 104729) % 99991}" for place in range(300))
    return one(number, f"{' '.join(words)} \N{EURO SIGN}.")


def xml(count: int = 40) -> str:
    return HEAD + "".join(map(page, range(count))) + END


def units(path: Path, keep: bool = False, counts: Counts | None = None) -> list[DumpUnit]:
    return list(dump_units([Source(path, path.name, "")], keep, counts or Counts()))


def read(path: Path, keep: bool = False, counts: Counts | None = None) -> list[list[str]]:
    return [found for unit in units(path, keep, counts) for found in unit.documents(counts or Counts())]


def expected(count: int = 40) -> list[list[str]]:
    return [[page(number).partition("<text>")[2].partition("</text>")[0]] for number in range(count)]


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


WHOLE = xml().encode()
FORMS = {
    "plain": WHOLE,
    "bz2": bz2.compress(WHOLE),
    "gz": gzip.compress(WHOLE),
    "bom": b"\xef\xbb\xbf" + WHOLE,
    "multistream": multistream(page_streams()),
    "empty-streams": multistream([HEAD, "", *page_streams()[1:5], "", "", *page_streams()[5:]]),
    "pbzip2": b"".join(bz2.compress(WHOLE[at : at + 9000]) for at in range(0, len(WHOLE), 9000)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_articles(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x", FORMS[form])
    counts = Counts()
    assert read(path, counts=counts) == expected() and counts.get("pages") == 40
    found = units(path)
    assert len(found) > 1 and {unit.hidden for unit in found} == {("Datei", "Kategorie")}
    assert sum(unit.size for unit in found) == path.stat().st_size
    assert any(unit.data is None for unit in found) == (form in ("multistream", "empty-streams"))


@pytest.mark.parametrize("form", ["plain", "bz2", "gz", "multistream", "pbzip2"])
@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_truncated_dump_is_refused_and_gives_its_whole_pages_when_asked(
    form: str, share: float, tmp_path: Path
) -> None:
    data = FORMS[form]
    if form in ("bz2", "gz"):  # of more than one block, so that a part of it can be read
        data = bz2.compress(xml(700).encode(), 1) if form == "bz2" else gzip.compress(xml(700).encode(), 1)
    path = write(tmp_path / "x", data[: int(len(data) * share)])
    with refused("file-truncated", path, "--keep-truncated"):
        read(path)
    counts = Counts()
    kept = read(path, keep=True, counts=counts)
    assert kept and kept == expected(len(kept)) and counts.names["truncated dumps"] == ["x"]


@pytest.mark.parametrize("part", [150, 2])
def test_damage_in_the_first_or_a_later_stream_of_a_range_is_named(part: int, tmp_path: Path) -> None:
    data = bytearray(FORMS["multistream"])
    data[len(data) // part] ^= 0xFF
    with refused("file-damaged", tmp_path / "x"):
        read(write(tmp_path / "x", bytes(data)))


def test_a_stream_that_cuts_a_page_is_named(tmp_path: Path) -> None:
    parts = page_streams(400, 4)
    parts[60:62] = [parts[60][:-100], parts[60][-100:] + parts[61]]
    with refused("file-format", tmp_path / "y", "bunzip2"):
        for unit in units(write(tmp_path / "y", multistream(parts))):
            assert [*unit.documents(Counts())]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "file-empty"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "file-format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "file-format"),
        (gzip.compress(b"-- MySQL dump 10.13"), "file-format"),
        (b"BZh9" + b"x" * 100, "file-damaged"),
    ],
    ids=["empty", "html", "lfs", "sql", "broken-bz2"],
)
def test_what_is_no_dump_is_refused(data: bytes, code: Code, tmp_path: Path) -> None:
    with refused(code, tmp_path / "x.xml"):
        read(write(tmp_path / "x.xml", data))


def test_every_page_is_counted_once() -> None:
    texts = [
        one(0, "This &lt;b>is&lt;/b> &#x27;&#39;an&#039;&apos; article &amp;amp; more, &quot;x&quot;."),
        one(1, "This is a talk page.", "1"),
        one(2, "This is of no namespace.", "9" * 5000),
        one(3, "This one has moved.", more='<redirect title="X" />'),
        one(4, "{{Infobox}}"),
        one(5, "It may be this.\n{{disambig}}"),
        one(6, "This is not wikitext.", more="<model>json</model>"),
        one(7, "This is wikitext.", more="<model>wikitext</model>"),
        one(8, "This\0 has\x08 three\x01 too many."),
        one(9, ""),
        "<page><title>A</title><revision><text>Old.</text></revision><revision><text>New.</text></revision></page>",
        "<page><title>A</title><revision><text bytes='0' /></revision></page>",
        "<page><!DOCTYPE x [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><text>It is &b; here.</text></page>",
    ]
    data = "".join(texts).encode()
    counts = Counts()
    found = list(DumpUnit("x.txt", len(data), (), Path("x"), data).documents(counts))
    assert found == [
        ['This is an article & more, "x".'],
        ["This is wikitext."],
        ["This has three too many."],
        ["New."],
        ["It is &b; here."],
    ]
    assert counts.numbers == {
        "pages": 13, "pages of other namespaces": 2, "redirects": 1, "pages that are no wikitext": 1,
        "disambiguation pages": 1, "pages without a paragraph": 3,
    }  # fmt: skip
