"""Whatever a profiler left is opened: what it is stands in the content, not in the name."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.sources import open_sources
from common.errors import Code

COUNTERS = (
    '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","7","k","sm__x.avg","%","5"\n'
)


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


def test_a_name_says_nothing_about_the_kind(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(trace(0)))
    (tmp_path / "b.json").write_text(COUNTERS)
    assert open_sources(tmp_path / "a.csv").kinds == ("kineto",)
    found = open_sources(tmp_path / "b.json")
    assert found.kinds == ("ncu",) and found.counter_files == (tmp_path / "b.json",)


def test_a_folder_of_ranks_is_in_their_order(tmp_path: Path) -> None:
    for position, rank in enumerate((2, 0, 1)):
        (tmp_path / f"{position}.json").write_bytes(trace(rank))
    assert [found.rank for found in open_sources(tmp_path).timelines] == [0, 1, 2]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_is_read_like_a_folder(tmp_path: Path, mode: str) -> None:
    path = archive(tmp_path / "traces", {"x/rank1.json": trace(1), "x/rank0.json": trace(0)}, mode)
    found = open_sources(path)
    assert [timeline.rank for timeline in found.timelines] == [0, 1]


def test_a_tar_cannot_write_outside(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = archive(inner / "evil.tar", {"../../evil.json": trace(0), "/etc/evil.json": trace(1)}, "w")
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert len(open_sources(path).timelines) == 2
    assert not list(tmp_path.glob("*.json")) and not Path("/etc/evil.json").exists()


def test_what_a_tar_holds_before_it_is_cut_is_read_and_the_loss_told(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.tar", {"a.json": trace(0), "b.json": trace(1)}, "w").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:1600])
    found = open_sources(tmp_path / "cut.tar")
    assert len(found.timelines) == 1 and "cut" in found.problems[0]


def test_traces_that_do_not_say_distinct_ranks_are_numbered_and_that_is_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_bytes(trace(None))
    found = open_sources(tmp_path)
    assert [timeline.rank for timeline in found.timelines] == [0, 1]
    assert "do not say distinct ranks" in found.problems[0]


def test_a_damaged_file_among_others_is_told_and_the_rest_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(trace(0))
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_bytes(b"")
    (tmp_path / "d.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    found = open_sources(tmp_path)
    assert len(found.timelines) == 1
    said = " ".join(found.problems)
    assert "b.json" in said and "c.json is empty" in said and "Git LFS" in said


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        (b"", "file-empty", ""),
        (b"hello, I am a letter\n", "file-format", "docs/how-to/analyze.md"),
        (b"\x00\x01\x02" * 50, "file-format", "docs/how-to/analyze.md"),
        (b"version https://git-lfs.github.com/spec/v1\n", "file-format", "git lfs pull"),
        (b"\x1f\x8b\x08\x00broken", "file-truncated", ""),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message(tmp_path: Path, content: bytes, code: Code, fact: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with refused(code, tmp_path / "file", fact) as caught:
        open_sources(tmp_path / "file")
    assert "letter" not in str(caught.value), "content is not repeated: it may hold a token"


def test_a_report_that_only_its_tool_opens_names_the_export(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").write_bytes(b"\x01\x02binary")
    for path in (tmp_path, tmp_path / "report.nsys-rep"):
        with refused("file-format", tmp_path, "nsys export --type=sqlite"):
            open_sources(path)
    (tmp_path / "report.sqlite").touch()
    with refused("file-format", tmp_path / "report.nsys-rep", tmp_path / "report.sqlite"):
        open_sources(tmp_path / "report.nsys-rep")


def test_what_is_not_there_or_no_file_is_one_message(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "absent"):
        open_sources(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with refused("file-empty", tmp_path / "empty"):
        open_sources(tmp_path / "empty")
    with refused("path-kind", "/dev/null"):
        open_sources(Path("/dev/null"))


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
