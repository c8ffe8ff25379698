"""Reading a bounded part of a file."""

import io

import pytest

from common.reading import read_at_most


@pytest.mark.parametrize(("most", "length"), [(0, 1), (99, 100), (100, 100), (10**15, 100)])
def test_one_byte_more_than_the_most_is_read_and_memory_only_for_what_is_there(most: int, length: int) -> None:
    content = bytes(range(100))
    assert read_at_most(io.BytesIO(content), most) == content[:length]


def test_memory_is_asked_for_in_small_pieces() -> None:
    asked: list[int] = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    assert read_at_most(Watched(b"abc"), 2**40) == b"abc"
    assert max(asked) <= 2**23
