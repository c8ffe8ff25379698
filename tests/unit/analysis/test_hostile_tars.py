"""Tars that would fill memory or the disk, or that name no file, cost neither and lose only themselves."""

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from support.profiles import kineto
from support.refusals import check_refusal, refused

from analysis import sources
from analysis.sources import open_sources
from bench.cli.main import run


def member(name: str, content: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def trace() -> bytes:
    found = kineto()
    return found if isinstance(found, bytes) else found.encode()


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("place", ["first", "second"])
def test_a_header_of_a_quarter_gigabyte_is_not_read_into_memory(tmp_path: Path, kind: bytes, place: str) -> None:
    path, size = tmp_path / "a.tar.gz", 1 << 28
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    with gzip.open(path, "wb", compresslevel=1) as file:
        if place == "second":
            file.write(member("a.json", trace()))
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        file.write(member("b.json", trace()) + bytes(1024))
    tracemalloc.start()
    try:
        if place == "second":
            found = open_sources(path)
            assert len(found.timelines) == 1 and "a header of 268,435,456 bytes" in found.problems[0]
        else:
            with refused("file-format", "a.tar.gz"):
                open_sources(path)
        assert tracemalloc.get_traced_memory()[1] < size / 8
    finally:
        tracemalloc.stop()


def test_what_unpacks_to_far_more_than_the_tar_is_left_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "UNPACKED_BYTES_ALWAYS", 1 << 20)
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        for name, content in (("a.json", trace()), ("b.json", b'{"traceEvents": [' + bytes(20 << 20))):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    found = open_sources(path)
    assert len(found.timelines) == 1 and "'b.json' and what follows was left out" in found.problems[0]


def test_a_sparse_file_of_a_terabyte_is_left_on_the_tar(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(*_file("a.json", trace()))
        info, content = _file("b.json", b"1\n0\n1\n".ljust(512, b"\0") + b"x".ljust(512, b"\0"))
        about = {"major": "1", "minor": "0", "name": "b.json", "realsize": str(1 << 40)}
        info.pax_headers = {f"GNU.sparse.{name}": value for name, value in about.items()}
        tar.addfile(info, content)
    with tarfile.open(path) as tar:
        assert tar.getmembers()[1].size == 1 << 40
    found = open_sources(path)
    assert len(found.timelines) == 1 and "'b.json' and what follows was left out" in found.problems[0]


def _file(name: str, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, io.BytesIO(content)


@pytest.mark.parametrize("name", ["", "..", "a/..", "/", "."])
def test_a_file_without_a_name_of_its_own_costs_no_other(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(member(name, trace()) + member("b.json", trace()) + bytes(1024))
    assert len(open_sources(path).timelines) == 2 and list(tmp_path.iterdir()) == [path]


def test_names_in_a_tar_cannot_act_on_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tar"
    files = {"a\x1b[31m.json": trace(), "b\x1b[2J.txt": b"a letter", "c\x07.json": b'{"traceEvents": [{'}
    path.write_bytes(b"".join(member(name, content) for name, content in files.items()) + bytes(1024))
    assert run(["analyze", str(path)]) == 0
    assert run(["analyze", str(tmp_path / "no\x1b[31mthing")]) == 2
    said = capfd.readouterr()
    assert "b [2J.txt" in said.err
    check_refusal(said.err, "path-missing", "no [31mthing")
    assert "\x1b" not in said.out + said.err and "\x07" not in said.out + said.err
