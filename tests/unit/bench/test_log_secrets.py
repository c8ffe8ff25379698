"""What a program printed stays in its log, but for secrets."""

from pathlib import Path

import pytest

from bench.run import launch
from bench.run.launch import hide_secrets


def test_secrets_go_and_every_other_byte_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PIECE_BYTES", 64)
    log = tmp_path / "log.txt"
    log.write_bytes(b"before \xff\xfe\r\n" + b"x" * 200 + b"\nHF_TOKEN=hush\nhttps://me:hush@host/a\nno end\x00")
    hide_secrets(log)
    expected = b"\nHF_TOKEN=[redacted]\nhttps://[redacted]@host/a\nno end\x00"
    assert log.read_bytes() == b"before \xff\xfe\r\n" + b"x" * 200 + expected
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_without_secrets_is_not_written_again(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("step 3: 12 ms\n")
    before = log.stat()
    hide_secrets(log)
    assert (log.stat().st_ino, log.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
