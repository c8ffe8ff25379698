"""Unpacking gives the same with zlib-ng and with zlib; lines of every encoding."""

import gzip
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from analysis.readers import packed

DATA = b"".join(b'{"name": "k%d", "ts": %d},' % (number % 7, number * 13) for number in range(4000))
PACKED = gzip.compress(DATA)


@pytest.mark.parametrize("library", [packed.zlib_ng, zlib])
def test_files_are_unpacked_alike_without_zlib_ng(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: ModuleType
) -> None:
    monkeypatch.setattr(packed, "zlib_ng", library)
    path = tmp_path / "t.json.gz"
    unpacked = []
    for content in (PACKED, PACKED + PACKED, PACKED[:-9]):
        path.write_bytes(content)
        reasons: list[str] = []
        unpacked.append((b"".join(packed.unpacked_blocks(path, reasons.append)), reasons))
    assert unpacked == [(DATA, []), (DATA + DATA, []), (DATA, [packed.ENDS_INSIDE])]
