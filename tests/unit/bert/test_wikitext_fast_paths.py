"""What is read by a pattern reads the same by the stack, the parser or the loop that the pattern spares."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.shared_files import OWN, samples, unpacked

from bert.corpus import extract, generated, markup, wikitext
from bert.corpus.dumps import split_pages
from bert.corpus.wikitext import read_page

NEVER, ALWAYS = re.compile(r"(?!)"), re.compile("")

_MARKUP = (
    "'' ''' '''' ' [[ ]] [ ] {{ }} { } {{{ }}} [[[ ]]] }}}} | = # : ; < > & &amp; &nbsp; &lt; <ref> </ref> <ref/> "
    "<REF> </Ref\t> <!-- --> <br> <nowiki> </nowiki> <sup> </sup> 10<sup>18</sup> <math> </math> <references/> <div> "
    "[[File:a.jpg| [[Category: [[de:x]] [[a|b]] [[a]] [[a|]] [[:a]] [[|x]] {{lang|de|x}} {{convert|5|km}} {{lang| "
    "{{nowrap| {{nihongo|[[a|b]]|c}} {{lang-ar|{{big|x}}}} {{x|{{y|{{z}}}}}} {{snd}} http://a.b __NOTOC__ -{ }- "
    "-{a:b;c:d}- , . ( ) () (, ,) ! \u3002 \u200b \xa0 \u2028 \t \u6f22 \xe9 1 a word Two"
)
_LINES = ["\n", "\n\n", "\n== A ==\n", "\n== Notes ==\n", "\n=", "\n* "]
FRAGMENTS = [
    *_MARKUP.split(" "),
    *_LINES,
    " ",
    "<ref name=a>",
    "<ref name=a/>",
    "{|",
    "\n{|\n",
    "\n|}\n",
    "{{quote|text=a}}",
    " One is a sentence here. ",
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)


@contextmanager
def no_fast_paths() -> Iterator[None]:
    """Read templates by the stack and the parser, links by the stack, and references as all other tags."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markup, "_TEMPLATE", NEVER)
        patch.setattr(markup, "_SIMPLE_TEMPLATE", NEVER)
        patch.setattr(markup, "_removed_link", lambda prefix: (ALWAYS, NEVER))
        without_references = markup._MARK.pattern.replace("(?P<reference>", "(?P<reference>(?!)")
        assert without_references != markup._MARK.pattern
        patch.setattr(markup, "_MARK", re.compile(without_references, re.IGNORECASE))
        patch.setattr(wikitext, "_without_quotes", wikitext._without_runs_of_quotes)
        yield


@given(texts)
@settings(max_examples=examples(250), deadline=None)
@example("{{x|{{lang|la|a}}}} b")
@example("{{lang|la|{a}}} [[[File:a]] b]]")
@example("{{{a}}} b")
@example("<ref>a b<ref name=b/>c d<ref name=d/>e")
@example("<!-- <ref> --> a </ref> b")
def test_pages_read_the_same(text: str) -> None:
    text = f"A sentence has eight words in it, {text}"
    fast = read_page(text, ("Datei",))
    with no_fast_paths():
        assert read_page(text, ("Datei",)) == fast


@given(texts)
@settings(max_examples=examples(150), deadline=None)
@example("\n== Notes ==\na b c d e f g h\n=== c ===\na b c d e f g h\n== D ==\na b c d e f g h")
def test_sections_read_the_same_with_a_table_on_the_page(text: str) -> None:
    text = text.replace("{|", "").replace("<!--", "").replace("<nowiki>", "").replace("<math>", "").replace("{{", "")
    assert read_page(f"{text}\n\n{{|\n|}}") == read_page(text)


NAMED = ("lang", "convert", "nowrap", "quote", "nihongo", "as of", "snd", "us$", "val", "chem", " lang ", "Lang_x")
_ARGUMENTS = (
    "| | | = [[ ]] [[a|b]] [[a]] [[a|b|c]] [[|x]] [[a|]] [[/a]] [[a=b]] [[a]b]] a text quote 1 2 km lc &amp; '' ''' # "
    "/ // - ! {{=}} & \xe9 \u200b [ ] <b> : http://a __ + { } <!-- ~~~~"
)
templates = st.tuples(
    st.sampled_from(NAMED), st.lists(st.sampled_from([*_ARGUMENTS.split(" "), " ", "\n"]), max_size=9)
)


@given(templates)
@settings(max_examples=examples(300), deadline=None)
@example(("lang", ["|", "de", "|", "[[a|b]]", " c"]))
@example(("quote", ["|", "text", "=", "a", "=", "b"]))
def test_templates_print_what_the_parser_says(template: tuple[str, list[str]]) -> None:
    text = "{{" + template[0] + "".join(template[1]) + "}}"
    fast = wikitext._Parser().template(text)
    with no_fast_paths():
        assert wikitext._Parser().template(text) == fast


def test_most_templates_need_no_parser() -> None:
    """Else the tests above compare the parser with itself."""
    assert markup.expand_simple("{{convert|5|to|[[a|6]]|km|abbr=on}}") == "5 to [[a|6]] km"
    assert markup.expand_simple("{{lang|de|{{big|x}}}}") is None


@given(st.text("([,;: .)]ab", max_size=12).map(lambda text: " ".join(text.split())))
@settings(max_examples=examples(300), deadline=None)
def test_where_no_hole_is_seen_none_is_closed(text: str) -> None:
    closed = text
    for pattern, by in wikitext._HOLES:
        closed = pattern.sub(by, closed)
    assert wikitext._has_hole(text) or closed == text


def test_printable_text_holds_no_unwanted_character_and_no_space_but_blanks() -> None:
    printable = "".join(filter(str.isprintable, map(chr, range(sys.maxunicode + 1))))
    assert not wikitext._UNWANTED.search(printable)
    assert "".join(printable.split()) == printable.replace(" ", "")


_XML = (
    "<text> </text> <text/> <text\ta='>'> <model>wikitext</model> <model> <b> </b> &lt; &amp; &quot; &#65; &nbsp; ]]> "
    "\r\n \r \xe9 \ufffe \U0001fffe a <!-- --> <![CDATA[ <x:text> </x:text> <text\txmlns='u'> <?pi?> \n \x01 "
    "<text>a&lt;b</text>"
)


@given(st.lists(st.sampled_from(_XML.split(" ")), max_size=8).map("".join))
@settings(max_examples=examples(300), deadline=None)
@example("<text>a</text><text>b<b>c</b>d</text><model> wikitext </model>")
@example("<text>a<text>b</text>c</text>")
@example("<text>\xe9&lt;\r\nb\n</text>")
def test_the_text_of_a_page_is_that_of_its_tree(inner: str) -> None:
    page = f"<page>{inner}</page>".encode()
    try:
        root = ElementTree.fromstring(page)
    except ElementTree.ParseError:
        assert extract._parse(page) is None
        return
    texts, models = list(root.iter("text")), list(root.iter("model"))
    last = ((found[-1].text or "") if found else "" for found in (texts, models))
    assert extract._parse(page) == (next(last), next(last).strip())


def test_generated_text_reads_as_it_is() -> None:
    for document in generated.documents(7, 20_000):
        text = document.decode()
        fast = read_page(text)
        assert fast.paragraphs == text.split("\n\n")[:-1]
        with no_fast_paths():
            assert read_page(text) == fast


@pytest.mark.parametrize("folder", samples("pretrain/wiki"))
def test_pages_of_a_dump_read_the_same(folder: Path) -> None:
    pages = [page for path in sorted(folder.iterdir()) for page in split_pages(unpacked(path))]
    found = [parsed[0] for page in pages if (parsed := extract._parse(page)) is not None]
    assert len(found) == len(pages) and sum(map(len, found)) > (4000 if folder.is_relative_to(OWN) else 5_000_000)
    some = sorted(found, key=len)[-105::3]  # of the articles, so that the test stays short
    fast = [read_page(text) for text in some]
    with no_fast_paths():
        assert [read_page(text) for text in some] == fast


@pytest.mark.parametrize("unit", ["{{a|{{b}} ", "{{a {{b}}{{c}} {", "{{{a}}", "{{a|{b"])
def test_templates_without_an_end_take_linear_time(unit: str) -> None:
    def seconds(count: int) -> float:
        begun = time.process_time()
        markup.replace_templates(unit * count, lambda template: "")
        return time.process_time() - begun

    short, long = (min(seconds(count) for _ in range(3)) for count in (2_000, 16_000))
    assert long < max(0.5, 24 * short)
