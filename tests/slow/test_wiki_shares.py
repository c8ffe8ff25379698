"""Every word of a page is counted once, where a reader of the rules would count it."""

from wiki_shares import shares

PAGE = """A cat sat.<ref name="x">one</ref> {{box|two|three}}
[[File:a.jpg|thumb|four]]
{|
| five six
|}
* This item is no sentence
* It is one with [[seven|seven words]].
== Notes ==
* Eight nine
"""


def test_words_are_counted_where_they_go() -> None:
    found = shares([PAGE], ())
    # Hand-counted, runs of letters and digits, tags and marks included where they hold some.
    assert dict(found) == {
        "kept: paragraphs": 3,  # A cat sat
        "kept: list items": 6,  # It is one with seven words
        "references": 5,  # ref name x one ref
        "templates": 3,  # box two three
        "files, categories and other languages": 5,  # File a jpg thumb four
        "tables": 2,  # five six
        "list items that are no sentence": 5,  # This item is no sentence
        "targets of links and other markup": 1,  # seven
        "headings": 1,  # Notes
        "sections of references and links": 2,  # Eight nine
    }
