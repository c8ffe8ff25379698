"""Windows and the greatest context, against loops."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain_squad
from support.examples import examples

from bert.tasks.squad.windows import greatest_context, place_windows

QUESTIONS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=6)


@given(QUESTIONS, st.integers(1, 25))
@settings(max_examples=examples(400), deadline=None)
def test_windows_and_greatest_context_are_those_of_the_published_loops(
    questions: list[tuple[int, int]], doc_stride: int
) -> None:
    tokens, most = (np.array(column, np.int64) for column in zip(*questions, strict=True))
    windows = place_windows(tokens, most, doc_stride)
    expected = [plain_squad.place_windows(size, place, doc_stride) for size, place in questions]
    assert windows.counts.tolist() == [len(spans) for spans in expected]
    assert list(zip(windows.first.tolist(), windows.tokens.tolist(), strict=True)) == [
        s for spans in expected for s in spans
    ]
    greatest = [
        plain_squad.is_max_context(spans, index, position)
        for spans in expected
        for index, (start, length) in enumerate(spans)
        for position in range(start, start + length)
    ]
    assert greatest_context(windows, tokens).astype(bool).tolist() == greatest


def test_a_very_long_context_takes_time_in_proportion_to_its_windows() -> None:
    tokens, most = np.array([400_000]), np.array([100])
    windows = place_windows(tokens, most, 50)
    greatest = greatest_context(windows, tokens)
    assert windows.counts.tolist() == [7_999] and int(greatest.sum()) == 400_000, "each token has one such window"
