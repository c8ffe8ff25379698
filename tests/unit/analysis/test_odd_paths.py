"""Paths, names and options as people and shells give them: one message or a result, never a traceback or a wait."""

import os
from pathlib import Path

import pytest
from support.profiles import sample
from support.refusals import check_refusal, refused

from analysis.readers.ncu.reader import read as read_ncu
from analysis.readers.packed import unpacked_blocks
from analysis.readers.registry import read_head
from analysis.sources import MOST_FILES, open_sources
from bench.cli.main import run

TOO_LONG = "a" * 300


@pytest.mark.parametrize("command", ["analyze", "report", "perfetto", "allreduce", "core-util", "compare"])
def test_a_name_longer_than_any_is_one_message(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([command, TOO_LONG, *([TOO_LONG] if command == "compare" else [])]) == 2
    check_refusal(capfd.readouterr().err, "path-unreadable", TOO_LONG[:100])


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for reads in (read_head, read_ncu, open_sources, lambda path: list(unpacked_blocks(path, "trace", print))):
        with refused("path-kind", pipe):
            reads(pipe)
    assert run(["core-util", str(pipe)]) == 2
    sample("kineto", tmp_path / "t.json")
    assert open_sources(tmp_path).kinds == ("kineto",)


def test_names_that_are_no_text_reach_pages_tables_and_perfetto(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    folder.mkdir()
    for name in (b"a\xfe.csv", b"b\xfe.csv"):
        sample("ncu", folder / os.fsdecode(name))
    trace = sample("kineto", folder / os.fsdecode(b"t\xfe.json"))
    text = trace.read_text()
    trace.write_text(text.replace('"gemm"', '"\\ud800gemm"'))  # half of a surrogate pair
    assert run(["analyze", str(folder), "--csv", str(tmp_path / "csv")]) == 0
    assert run(["analyze", str(folder), "--json"]) == 0
    assert run(["report", str(folder), "--out", str(tmp_path / "page")]) == 0
    assert run(["perfetto", str(trace), "-o", str(tmp_path / "p.json")]) == 0
    assert "gemm" in (tmp_path / "csv" / "top_kernels.csv").read_text(encoding="utf-8")


def test_a_file_named_twice_is_one_rank_and_not_two(tmp_path: Path) -> None:
    path = sample("kineto", tmp_path / "t.json")
    (tmp_path / "link.json").symlink_to(path)
    found = open_sources(path, tmp_path / "link.json", path)
    assert len(found.timelines) == 1 and not found.problems


def test_a_folder_of_two_runs_says_that_ranks_are_not_distinct_and_what_to_do(tmp_path: Path) -> None:
    text = sample("kineto", tmp_path / "a0.json").read_text()
    for name, rank in (("a1", 1), ("b0", 0), ("b1", 1)):
        (tmp_path / f"{name}.json").write_text(text.replace('{"rank": 0}', f'{{"rank": {rank}}}'))
    found = open_sources(tmp_path)
    assert [one.rank for one in found.timelines] == [0, 1, 2, 3]
    assert "(0, 1, 0, 1)" in found.problems[0] and "give one run's alone" in found.problems[0]


def test_a_folder_of_thousands_of_files_is_refused_at_once(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 1):
        (tmp_path / f"{number}.json").touch()
    with refused("file-limit", tmp_path, "4,097", "4,096"):
        open_sources(tmp_path)


def test_links_that_lead_nowhere_or_in_a_circle_do_no_harm(tmp_path: Path) -> None:
    sample("kineto", tmp_path / "t.json")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert len(open_sources(tmp_path).timelines) == 1
    with refused("path-missing", tmp_path / "self"):
        open_sources(tmp_path / "self")


def test_what_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample("kineto", tmp_path / "t.json")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with refused("path-unreadable", path, "chmod +r"):
            read_head(path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with refused("path-unreadable", tmp_path, "Permission denied", "chmod -R +rX"):
        open_sources(tmp_path)


def test_fewer_than_no_rows_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(sample("kineto", tmp_path / "t.json"))
    for words in (["analyze", path], ["allreduce", path], ["compare", path, path]):
        assert run([*words, "--rows", "-1"]) in (0, 2)
    assert capfd.readouterr().err.count("--rows -1 ") == 2  # allreduce has no table to show here


def test_outputs_that_cannot_be_are_one_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(sample("kineto", tmp_path / "t.json"))
    (tmp_path / "csv" / "temporal_breakdown.csv").mkdir(parents=True)
    for out in (path, str(tmp_path / "csv"), str(tmp_path / TOO_LONG)):
        assert run(["analyze", path, "--csv", out]) == 2
    assert run(["report", path, "--out", path]) == 2
    said = capfd.readouterr().err
    assert said.count("[write-failed]") == 4 and "Traceback" not in said
    assert said.count(str(tmp_path / TOO_LONG)) == 1


def test_json_and_csv_go_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import json

    path = str(sample("kineto", tmp_path / "t.json"))
    assert run(["analyze", path, "--json", "--csv", str(tmp_path / "csv")]) == 0
    named = {name for name, one in json.loads(capfd.readouterr().out)["findings"].items() if one["rows"]}
    assert {file.stem for file in (tmp_path / "csv").iterdir()} == named
