"""Wikitext to paragraphs: each rule on a line written for it, hostile input in linear time, and the real pages."""

import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.shared_files import DATA, unpacked

from bert.corpus.wikitext import paragraphs

WIKI = DATA / "pretrain/wiki"
SAMPLE = WIKI / "enwiki-sample.xml.bz2"
TABLES = WIKI / "enwiki-table-markup.xml.bz2"

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


def articles(path: Path) -> dict[str, list[str]]:
    """Paragraphs of the articles of a dump by title."""
    found = {}
    for page in ElementTree.fromstring(unpacked(path)).iter():
        fields = {node.tag.partition("}")[2]: node.text or "" for node in page.iter()}
        if page.tag.endswith("}page") and fields["ns"] == "0" and not fields["text"].startswith("#"):
            found[fields["title"]] = paragraphs(fields["text"])
    return found


@pytest.mark.public
def test_no_markup_is_left_in_real_pages() -> None:
    text = "\n".join("\n".join(found) for path in (TABLES, SAMPLE) for found in articles(path).values())
    left = ["{{", "}}", "[[", "]]", "''", "<ref", "<br", "{|", "|", "|-", "File:", "Image:", "Category:", "http:",
            "( ", "()", "&nbsp;", "__"]  # fmt: skip
    assert {mark: text.count(mark) for mark in left if mark in text} == {}
    assert not [line for line in text.split("\n") if line[:1] in set("*#:;=!| ")]
