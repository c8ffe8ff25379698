"""Blocks as Markdown: tables keep their columns whatever stands in the cells."""

import re

from analysis.render import tables
from analysis.render.markdown import blocks_markdown, escaped
from analysis.render.tables import Facts, Plain


def test_a_table_keeps_its_columns_and_alignment() -> None:
    table = tables.texts("t", ["name", "ms"], [["a|b", "1.5"], ["<img src=x>\n# c", "2"]], numeric=True)
    heading, rule, *rows = blocks_markdown([table]).splitlines()
    assert heading == "| name | ms |" and len(rule.split("|")) == 4
    assert rows == ["| a\\|b | 1.5 |", "| \\<img src=x\\> \\# c | 2 |"]


def test_texts_facts_and_commands_are_shown_as_they_are() -> None:
    text = blocks_markdown(["a *b* [c](d)", Facts([("run_1", "x")], "T"), Plain("bertbench a_b\n<c>")])
    assert text == (
        "a \\*b\\* \\[c\\](d)\n\n**T**\n\n- run\\_1: x\n\n    bertbench a_b\n    <c>\n"
    )  # fmt: skip


def test_every_character_that_markdown_acts_on_in_a_line_is_escaped() -> None:
    assert re.sub(r"\\(.)", r"\1", escaped("\\`*_{}[]<>|~#&$! a\tb")) == "\\`*_{}[]<>|~#&$! a b"
