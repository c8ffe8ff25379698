import json
from pathlib import Path

import pytest
from support.refusals import refused

from bert.data.stages import MANIFEST_FILE, Counts, Part, StageFolder, clear_stage, read_finished


def stage(path: Path, **settings: object) -> StageFolder:
    return StageFolder(path, "clean", 1, settings, "input", companions=("vocab.txt",))


def make(folder: StageFolder, *names: str) -> None:
    for name in names:
        counts = Counts()
        counts.add("documents", 2, name)
        folder.record(name, counts)
        (folder.path / name).write_text(name)


def test_a_finished_stage_is_found_again_with_its_counts(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    assert folder.begin() == 0 and folder.finished() is None
    make(folder, "a.txt")
    assert folder.finish(["a.txt", "b.txt"]) is None, "a file is missing"
    make(folder, "b.txt")
    done = folder.finish(["a.txt", "b.txt"])
    assert done is not None and done == stage(tmp_path).finished() == read_finished(tmp_path, "clean")
    assert done.counts.get("documents") == 4 and done.counts.names["documents"] == ["a.txt", "b.txt"]
    assert stage(tmp_path).begin() == 0 and (tmp_path / "a.txt").exists(), "the same settings keep everything"


def test_other_settings_remove_what_the_stage_made_and_nothing_else(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    folder.begin()
    make(folder, "a.txt")
    (tmp_path / "vocab.txt").write_text("made with it")
    folder.finish(["a.txt"])
    other = stage(tmp_path, splitter="rules")
    assert other.finished() is None and other.begin() == 1
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST_FILE}


@pytest.mark.parametrize("begun", [False, True])
def test_files_of_others_are_never_removed(tmp_path: Path, begun: bool) -> None:
    if begun:
        stage(tmp_path).begin()
    mine = tmp_path / "mine.txt"
    mine.write_text("a book of the user")
    for settings in ({}, {"splitter": "rules"}):
        with refused("folder-occupied", tmp_path, "1 file", "mine.txt", "--output"):
            stage(tmp_path, **settings).begin()
    assert clear_stage(tmp_path) == 0
    assert mine.read_text() == "a book of the user"


def test_a_companions_name_without_a_manifest_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("of the user")
    with refused("folder-occupied", "vocab.txt"):
        stage(tmp_path).begin()


def test_a_begin_that_was_killed_half_way_is_done_again(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    folder.begin()
    make(folder, "a.txt", "b.txt")
    folder.finish(["a.txt", "b.txt"])
    (tmp_path / "a.txt").unlink()  # the other settings' begin came as far as this
    other = stage(tmp_path, splitter="rules")
    assert other.begin() == 1 and not (tmp_path / "b.txt").exists() and other.finished() is None


def test_a_file_that_was_cut_since_is_named_and_made_again(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    folder.begin()
    make(folder, "a.txt", "b.txt")
    folder.finish(["a.txt", "b.txt"])
    (tmp_path / "b.txt").write_text("b.")  # of "b.txt", 5 bytes
    with refused("file-changed", "b.txt", "2 bytes", 5, "--stages clean"):
        read_finished(tmp_path, "clean")
    again = stage(tmp_path)
    assert again.finished() is None and again.begin() == 0
    assert again.changed == (tmp_path / "b.txt",)
    assert again.is_done("a.txt") and not again.is_done("b.txt")
    make(again, "b.txt")
    assert again.finish(["a.txt", "b.txt"]) == stage(tmp_path).finished() is not None
    second = stage(tmp_path)
    second.begin()
    assert second.changed == ()


def test_manifests_without_sizes_are_read(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    folder.begin()
    make(folder, "a.txt")
    folder.finish(["a.txt"])
    manifest = json.loads((tmp_path / MANIFEST_FILE).read_text())
    assert manifest.pop("sizes") == {"a.txt": 5}
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(manifest))
    (tmp_path / "a.txt").write_text("another length")
    assert read_finished(tmp_path, "clean").files == (tmp_path / "a.txt",)


def test_what_is_not_there_is_said_with_the_stage_to_run(tmp_path: Path) -> None:
    with refused("data-unprepared", tmp_path, "--stages clean"):
        read_finished(tmp_path, "clean")
    folder = stage(tmp_path)
    folder.begin()
    with refused("data-unprepared", "unfinished", "--stages clean"):
        read_finished(tmp_path, "clean")
    make(folder, "a.txt")
    folder.finish(["a.txt"])
    (tmp_path / "a.txt").unlink()
    with refused("data-missing", "1 file", tmp_path / "a.txt", "--stages clean"):
        read_finished(tmp_path, "clean")
    (tmp_path / MANIFEST_FILE).write_text('{"stage": "clean", "complete": true}')
    with refused("file-damaged", tmp_path / MANIFEST_FILE):
        read_finished(tmp_path, "clean")


def test_parts_share_all_files_and_none_twice() -> None:
    taken = [[number for number in range(10) if Part(index, 3).takes(number)] for index in range(3)]
    assert sorted(number for numbers in taken for number in numbers) == list(range(10))
    for index, count in ((3, 3), (-1, 2), (0, 0)):
        with refused("option-value", f"--part {index}/{count}"):
            Part(index, count)
