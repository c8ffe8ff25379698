"""Unpacking gives the same with zlib-ng and with zlib, of damaged files too; lines of every encoding."""

import gzip
import random
import zlib
from pathlib import Path

import pytest

from analysis.readers import packed

DATA = b"".join(b'{"name": "k%d", "ts": %d},' % (number % 7, number * 13) for number in range(4000))
PACKED = gzip.compress(DATA)


def unpack(path: Path, content: bytes) -> tuple[bytes, list[str]]:
    path.write_bytes(content)
    reasons: list[str] = []
    return b"".join(packed.unpacked_blocks(path, reasons.append)), reasons


def damaged(number: int) -> bytes:
    chance = random.Random(number)
    data = bytearray(PACKED)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data[: chance.randrange(len(data))] if number % 2 else data)


def test_files_are_unpacked_alike_without_zlib_ng(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json.gz"
    contents = [PACKED, PACKED + b"\0\0" + PACKED, PACKED[:-9], *map(damaged, range(40))]
    found = [unpack(path, content) for content in contents]
    assert found[:3] == [(DATA, []), (DATA + DATA, []), (DATA, [packed.ENDS_INSIDE])]
    monkeypatch.setattr(packed, "zlib_ng", zlib)
    assert [unpack(path, content) for content in contents] == found


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_have_no_ends_and_a_last_one_without_is_named(tmp_path: Path, encoding: str, pack: type[bytes]) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(pack("ä\r\nb\rc\n\nlast".encode(encoding)))
    notes: list[str] = []
    assert list(packed.log_lines(path, notes.append)) == ["ä", "b", "c", "", "last"] and notes == [packed.UNENDED]
