import os
from pathlib import Path

import pytest
from support.refusals import refused

from bert.corpus.files import find_inputs, identify, is_dump
from common.errors import Code


def test_dumps_and_texts_are_found_at_any_depth_and_own_folders_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a/A.TXT", "x.xml.bz2", "p.xml-p1p41242.bz2", "y.xml", "z.xml.gz", "paper.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for own in (
        "sentences",
        "extracted",
        "cleaned",
        "tokens_lower_case_1",
        "hdf5_lower_case_1_seq_len_128",
        "sharded_x",
    ):
        (tmp_path / own).mkdir()
        (tmp_path / own / "mine.txt").write_text("x")
    found = find_inputs(tmp_path)
    assert [path.name for path in found.texts] == ["A.TXT", "b.txt"]
    assert [path.name for path in found.dumps] == ["p.xml-p1p41242.bz2", "x.xml.bz2", "y.xml", "z.xml.gz"]
    assert not is_dump(Path("sitemap.xml.html"))


def test_links_are_followed_once_and_broken_ones_named(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books/a.txt").write_text("x")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "dir").symlink_to(tmp_path / "books")
    (folder / "loop").symlink_to(folder)
    (folder / "one.txt").symlink_to(tmp_path / "books/a.txt")
    assert [path.relative_to(folder).as_posix() for path in find_inputs(folder).texts] == ["dir/a.txt", "one.txt"]
    (folder / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    with refused("path-missing", folder / "broken.txt"):
        find_inputs(folder)


def test_a_folder_without_text_says_what_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("x")
    cases: tuple[tuple[Path, Code], ...] = (
        (tmp_path, "data-missing"),
        (tmp_path / "no", "path-missing"),
        (tmp_path / "a.pdf", "path-kind"),
    )
    for folder, code in cases:
        with refused(code, folder, ".txt", ".xml.bz2", ".xml.gz"):
            find_inputs(folder)


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    memory = tmp_path / "memory.json"
    (first,) = identify([path], tmp_path, memory)
    written = memory.stat().st_mtime_ns
    assert identify([path], tmp_path, memory) == [first] and memory.stat().st_mtime_ns == written
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    (second,) = identify([path], tmp_path, memory)
    assert second.digest != first.digest and second.name == first.name
    memory.write_text("broken")
    assert identify([path], tmp_path, memory) == [second]


def test_names_that_are_no_utf8_are_read_and_shown(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xe9tude.txt")
    path.write_text("x")
    for _ in range(2):
        (source,) = identify([path], tmp_path, tmp_path / "memory.json")
        assert source.name == "\\udce9tude.txt" and source.path == path
        source.name.encode()
