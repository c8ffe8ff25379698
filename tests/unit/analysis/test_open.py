"""Whatever a profiler left is opened: what it is stands in the content, not in the name."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from support.profiles import sample
from support.refusals import refused

from analysis.open import open_sources
from analysis.readers.registry import read_head
from common.errors import Code


def trace(rank: int | None = None, name: str = "k") -> bytes:
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10, "dur": 5, "args": {"stream": 7}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 20},
    ]
    document: dict[str, object] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 2}
    return json.dumps(document).encode()


def archive(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_folders_are_read_to_any_depth_and_files_of_equal_content_once(tmp_path: Path) -> None:
    deep = tmp_path / "a/b/c"
    deep.mkdir(parents=True)
    (deep / "t.json").write_bytes(trace(0))
    (tmp_path / "a/t.json").write_bytes(trace(1))
    (tmp_path / "again.json").symlink_to(deep / "t.json")
    (tmp_path / "profile/tensorboard/cycles").mkdir(parents=True)
    (tmp_path / "profile/tensorboard/cycles/second.json").write_bytes(trace(0))  # a further cycle of a profile
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/rank2.json").write_bytes(trace(2))  # of a user's own trace handler
    found = open_sources(tmp_path, deep / "t.json")
    assert [one.rank for one in found.timelines] == [0, 1, 2] and not [one for one in found.problems if "ranks" in one]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_is_read_like_a_folder(tmp_path: Path, mode: str) -> None:
    path = archive(tmp_path / "traces", {"x/rank1.json": trace(1), "x/rank0.json": trace(0)}, mode)
    found = open_sources(path)
    assert [timeline.rank for timeline in found.timelines] == [0, 1]


def test_what_a_tar_holds_before_it_is_cut_is_read_and_the_loss_told(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.tar", {"a.json": trace(0), "b.json": trace(1)}, "w").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:1600])
    found = open_sources(tmp_path / "cut.tar")
    assert len(found.timelines) == 1 and "cut" in found.problems[0]


def test_a_damaged_file_among_others_is_told_and_the_rest_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(trace(0))
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_bytes(b"")
    (tmp_path / "d.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    found = open_sources(tmp_path)
    assert len(found.timelines) == 1
    said = " ".join(found.problems)
    assert "b.json" in said and "c.json is empty" in said and "Git LFS" in said


def test_a_rank_that_is_cut_short_is_left_out_among_whole_ones_and_read_alone(tmp_path: Path) -> None:
    document = json.loads(trace(1))
    cut = json.dumps({"distributedInfo": document["distributedInfo"], **document}).encode().rpartition(b", {")[0]
    (tmp_path / "a.json").write_bytes(trace(0))
    (tmp_path / "b.json").write_bytes(cut)
    found = open_sources(tmp_path)
    assert [timeline.rank for timeline in found.timelines] == [0]
    said = " ".join(found.problems)
    assert "b.json is cut short" in said and "1 of 2 traces (rank 1)" in said
    alone = open_sources(tmp_path / "b.json")
    assert alone.timelines[0].truncated and len(alone.timelines[0].kernels) == 1
    (tmp_path / "a.json").write_bytes(cut.replace(b'"rank": 1', b'"rank": 0'))
    assert [timeline.rank for timeline in open_sources(tmp_path).timelines] == [0, 1]


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        (b"", "file-empty", ""),
        (b"hello, I am a letter\n", "file-format", "docs/how-to/analyze.md"),
        (b"version https://git-lfs.github.com/spec/v1\n", "file-format", "git lfs pull"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message(tmp_path: Path, content: bytes, code: Code, fact: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with refused(code, tmp_path / "file", fact) as caught:
        open_sources(tmp_path / "file")
    assert "letter" not in str(caught.value), "content is not repeated: it may hold a token"


def test_a_run_directory_stands_for_its_only_profile(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "trials" / name).mkdir(parents=True)
        (tmp_path / "trials" / name / "trial.json").write_text("{}")
    with refused("run-incomplete", tmp_path, "bertbench profile"):
        open_sources(tmp_path)
    for name in ("one", "two"):
        (tmp_path / "trials" / name / "profile").mkdir()
        (tmp_path / "trials" / name / "profile" / "trace-rank0.json").write_bytes(trace(0))
        if name == "one":
            assert len(open_sources(tmp_path).timelines) == 1
    with refused("data-ambiguous", 2, tmp_path / "trials" / "one", tmp_path / "trials" / "two"):
        open_sources(tmp_path)


def test_what_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample("kineto", tmp_path / "t.json")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with refused("path-unreadable", path, "chmod +r"):
            read_head(path)
    monkeypatch.setattr(os, "walk", refuse)
    with refused("path-unreadable", tmp_path, "Permission denied", "chmod -R +rX"):
        open_sources(tmp_path)


def test_a_tar_cannot_write_outside(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = archive(inner / "evil.tar", {"../../evil.json": trace(0), "/etc/evil.json": trace(1)}, "w")
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert len(open_sources(path).timelines) == 1
    assert not list(tmp_path.glob("*.json")) and not Path("/etc/evil.json").exists()


def test_a_report_that_only_its_tool_opens_names_the_export(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").write_bytes(b"\x01\x02binary")
    for path in (tmp_path, tmp_path / "report.nsys-rep"):
        with refused("file-format", tmp_path, "nsys export --type=sqlite"):
            open_sources(path)
    (tmp_path / "report.sqlite").touch()
    with refused("file-format", tmp_path / "report.nsys-rep", tmp_path / "report.sqlite"):
        open_sources(tmp_path / "report.nsys-rep")
