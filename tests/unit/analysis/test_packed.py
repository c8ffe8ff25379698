"""Unpacking gives the same with zlib-ng and with zlib, of damaged files too."""

import gzip
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.readers import packed

DATA = b"".join(b'{"name": "k%d", "ts": %d},' % (number % 7, number * 13) for number in range(4000))
PACKED = gzip.compress(DATA)


@pytest.fixture(autouse=True)
def chosen_anew() -> Iterator[None]:
    packed._zlib.cache_clear()
    yield
    packed._zlib.cache_clear()


def unpack(path: Path) -> tuple[bytes, list[str]]:
    reasons: list[str] = []
    return b"".join(packed.unpacked_blocks(path, "trace", reasons.append, block_bytes=5000)), reasons


def damaged(number: int) -> bytes:
    chance = random.Random(number)
    data = bytearray(PACKED)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data[: chance.randrange(len(data))] if number % 2 else data)


def test_files_are_unpacked_alike_without_zlib_ng(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json.gz"
    contents = [PACKED, PACKED + b"\0\0" + PACKED, PACKED[:-9], *map(damaged, range(40))]
    found = []
    for content in contents:
        path.write_bytes(content)
        found.append(unpack(path))
    assert found[:3] == [(DATA, []), (DATA + DATA, []), (DATA, [packed.ENDS_INSIDE])]
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    packed._zlib.cache_clear()
    for content, expected in zip(contents, found, strict=True):
        path.write_bytes(content)
        assert unpack(path) == expected
