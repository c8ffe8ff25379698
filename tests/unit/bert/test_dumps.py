"""Dumps of every form give the same articles or are refused; wikitext to paragraphs, each rule on its own line."""

import bz2
import gzip
import re
import time
from pathlib import Path

import pytest
from support.refusals import refused

from bert.corpus import dumps
from bert.corpus.dumps import DumpUnit, dump_units
from bert.corpus.files import Source
from bert.corpus.wikitext import paragraphs
from bert.data.finished import Counts
from common.errors import Code

RULES = {
    "bold": ("'''Ada''' was ''not'' a '''''cat'''''.", ["Ada was not a cat."]),
    "apostrophe-after-italics": ("It is ''Emma'''s first book.", ["It is Emma's first book."]),
    "apostrophe-before-italics": ("'''Hugo''' a lu l'''Iliade'' hier.", ["Hugo a lu l'Iliade hier."]),
    "four-quotes": ("The ''''word'''' is bold.", ["The 'word' is bold."]),
    "links": ("A [[cat]], two [[cat|dogs]] and [[:fr:Chat|chat]]s sat.", ["A cat, two dogs and chats sat."]),
    "nested-link": ("See [[a|the [http://x.org page]]] now.", ["See the page now."]),
    "file": ("[[File:A.jpg|thumb|A caption with [[a link]] in it.]]He came home.", ["He came home."]),
    "file-over-lines": ("One is.\n[[Image:A.jpg|thumb|a\n[[b]] c.]]\nTwo is.", ["One is.", "Two is."]),
    "category": ("He came home.[[Category:Homes|*]] [[fr:Maison]][[zh-yue:X]]", ["He came home."]),
    "open-file": ("He came home. [[File:A.jpg|thumb|never closed.", ["He came home."]),
    "external": ("See [http://a.org the page] or [https://b.org] or http://c.org here.", ["See the page or or here."]),
    "template": ("{{Infobox|a={{b|{{c}}}}\n|d=e}}He came {{fact}}home.", ["He came home."]),
    "argument": ("He came {{{when|late}}} home.", ["He came home."]),
    "convert": ("It is {{convert|5|km|mi|abbr=on}} or {{convert|3|to|4|mi}} off.", ["It is 5 km or 3 to 4 miles off."]),
    "lang": ("The {{lang|de|''Haus''}} and {{lang-fr|maison}} fell.", ["The Haus and maison fell."]),
    "kept-in-kept": ("A {{nowrap|{{lang|la|[[res|rei]]}} 2}} came.", ["A rei 2 came."]),
    "as-of": ("{{As of|2014|3|1}}, it was {{as of|2010|lc=y}} so.", ["As of 1 March 2014, it was as of 2010 so."]),
    "nihongo": ("{{nihongo|'''Aikido'''|合気道|aikidō}} is an art.", ["Aikido is an art."]),
    "holes": ("Bonn ({{IPA|x}}; {{y}}, city) is (  ) a town {{z}}.", ["Bonn (city) is a town."]),
    "ref": ('One.<ref>{{cite}} [http://a b]</ref> Two.<ref name="x" /> Three<ref n=y>z</ref>.', ["One. Two. Three."]),
    "open-ref": ("He came.<ref>It is open.\n\nShe came.", ["He came. It is open.", "She came."]),
    "comment": ("He came <!-- not\n\nreally -->home.", ["He came home."]),
    "open-comment": ("He came home. <!-- and then\n\nall is gone.", ["He came home."]),
    "math": ("Where <math>x^2</math> is a square.", ["Where is a square."]),
    "gallery": ("<gallery>\nA.jpg|A long caption is here.\n</gallery>\nHe came.", ["He came."]),
    "tags": ("H<sub>2</sub>O is<br/>wet <span style='a'>and</span> cold.", ["H2O is wet and cold."]),
    "div": ("<div class=x>He came.</div><p>She came.", ["He came.", "She came."]),
    "nowiki": ("Write <nowiki>''[[x]]''</nowiki> to link.", ["Write ''[[x]]'' to link."]),
    "entities": ("A&nbsp;B &amp;lt; C &#8211; D &lt;b&gt; &eacute;.", ["A B &lt; C \N{EN DASH} D <b> \xe9."]),
    "table": ("He came.\n{| c=x\n|-\n! A\n| B is.\n{|\n| C is.\n|}\n|}\nShe came.", ["He came.", "She came."]),
    "open-table": ("{|\n| B is a cell.\nStill a cell.\n== Next ==\nShe came.", ["She came."]),
    "closed-table-with-prose": ("{|\n| a\n\nThis paragraph lies in a cell of it.\n\n|}\nShe came.", ["She came."]),
    "table-in-template": ("{{x|\n{|\n| a\n|}\n}}\nShe came.", ["She came."]),
    "heading": ("== A title. ==\nHe came.\n=== Another. ===", ["He came."]),
    "sections": ("He came.\n== Notes ==\nNo.\n=== Sub ===\nNor this.\n== B ==\nShe came.", ["He came.", "She came."]),
    "german-section": ("Er kam.\n== Einzelnachweise ==\nNicht dies hier.", ["Er kam."]),
    "items": ("* [[Ada]], a name\n* This one is a whole sentence.\n# Short one.\n; Term\n: So is this one here.",
              ["This one is a whole sentence.", "So is this one here."]),
    "nested-items": ("*# It has [[two]] marks before it.<ref>x</ref>\n** ''No one'' knew it all!\n*: Only few words.",
                     ["It has two marks before it.", "No one knew it all!"]),
    "definitions": ("; Term: It is what stands behind the colon.\n; [[a|B]] alone is no sentence here.\n;T: Two words.",
                    ["It is what stands behind the colon."]),
    "magic": ("__NOTOC__\nHe came.__FORCETOC__", ["He came."]),
    "joined": ("The first line\nand the second.\n\nA new one.", ["The first line and the second.", "A new one."]),
    "fragment": ("thumb\n\nA words\n\n1 2 3 4 5 6 7 8", ["1 2 3 4 5 6 7 8"]),
    "broken": ("He {{came [[home|to ]] us}} all | the time.", None),
    "rule": ("----\nHe came.", ["He came."]),
    "variant": ("-{zh-hans:x;zh-hant:y}- is -{z}- here.", ["x is z here."]),
    "control": ("He\x07 came\u200b to\tthe\u2028house.", ["He came to the house."]),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_markup_becomes_the_text_that_a_reader_sees(name: str) -> None:
    text, expected = RULES[name]
    found = paragraphs(text)
    if expected is None:
        assert not re.search(r"\{\{|\}\}|\[\[|\]\]|<ref|\|", "\n".join(found))
        assert found and found[0].startswith("He")
    else:
        assert found == expected


# Links that show a file or put a page into a category, as dumps of sister languages write them: none leaves a word.
HIDDEN = (
    "[[attēls:Rīga no augšas.JPG|sīktēls|Skats uz [[Rīga|Rīgu]]]]", "[[Attēls:Karte: Rīga.png|250px]]",
    "[[ Image : x.jpg | left ]]", "[[FILE:x.ogg|noicon]]", "[[Category:Rīga]]", "[[kategorija:Rīga|*]]",
    "[[_Vietas Kategorija :Rīga]]", "[[Attēls:{{{1}}}.jpg|thumb]]",
)  # fmt: skip


def test_files_and_categories_of_any_language_leave_nothing() -> None:
    # The dump names one category namespace, of two words; files are called Fails in it.
    for link in HIDDEN:
        found = paragraphs(f"Rīga ir pilsēta.{link} Tā ir liela.", ("Fails", "Vietas kategorija"))
        assert found == ["Rīga ir pilsēta. Tā ir liela."], link


HOSTILE = {
    "templates": "{{a|",
    "braces": "{{", "brackets": "[[", "quotes": "'''", "refs": "<ref>", "open-refs": "<ref ", "tables": "{|",
    "table-lines": "{|\n", "links": "[[a|b ", "addresses": "[http://a ", "files": "[[File:a|", "bold": "<b>",
    "comments": "<!--", "nowikis": "<nowiki>", "headings": "==", "holes": ", ; ( ", "commas": ",", "entities": "&amp",
    "mixed": "[[a '' <b> {{x| ",
    "arguments": "{{{", "variants": "-{a:b;", "closing": "]]}}|}", "file-links": "[[File:a|b [[c]]",
    "single-braces": "{{a { b } ", "single-brackets": "[[File:a [b] c ",
    "kept": "{{lang|a|[[b|", "short-refs": "<ref a/>", "refs-and-short": "<ref>a<ref b/>",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_takes_linear_time(name: str) -> None:
    def seconds(count: int) -> float:
        begun = time.process_time()
        paragraphs("A " + HOSTILE[name] * count)
        return time.process_time() - begun

    # Eight times the text: quadratic would be 64 times the seconds. The least of three on both sides.
    short, long = (min(seconds(count) for _ in range(3)) for count in (3_000, 24_000))
    assert long < max(1.0, 24 * short)


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
