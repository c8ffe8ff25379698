"""Tables as lines of text: where every text fits, they are as rich lays them out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.render import terminal
from analysis.render.tables import Cell, Table
from analysis.render.terminal import block_texts, blocks_text

TEXTS = st.sampled_from(
    ("", "-", "12.5 %", "1,000", "µs", "  indented", "blank after  ", "two words", "漢字", "e\u0301")
)
HEADINGS = st.sampled_from(("", "rank", "exposed communication ms", "漢字"))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A table of one to four columns."""
    columns = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(TEXTS, min_size=columns, max_size=columns), max_size=3))
    headings = draw(st.lists(HEADINGS, min_size=columns, max_size=columns))
    numeric = draw(st.lists(st.booleans(), min_size=columns, max_size=columns))
    cells = tuple(tuple(Cell(text, text) for text in row) for row in rows)
    return Table("any", tuple(headings), cells, tuple(numeric), draw(st.sampled_from(("", "Title", "A longer title"))))


@given(tables(), st.sampled_from((40, 60, 150)))
def test_a_table_that_fits_is_drawn_as_one_that_must_be_folded(table: Table, width: int) -> None:
    drawn = blocks_text([table], width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "_aligned", lambda *_: [])
        assert blocks_text([table], width) == drawn


def test_the_first_block_comes_before_the_second_is_drawn() -> None:
    texts = block_texts(["a sentence", None])  # type: ignore[list-item]
    assert next(texts) == "a sentence"
    with pytest.raises(AttributeError):
        next(texts)
