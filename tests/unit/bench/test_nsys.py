"""Nsight Systems as a profiler: its command line, when it is refused, and what is made of its report."""

import contextlib
import sqlite3
from importlib import metadata
from pathlib import Path

import pytest
from support import fake_tools
from support.refusals import refused

from bench.profilers import load_profiler
from common.errors import Code
from records.trial import Trial

CPU, GPU = (Trial(kind="profile", device=device, start_iteration=3, stop_iteration=6) for device in ("cpu", "cuda"))


@pytest.fixture(autouse=True)
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH has the stand-in of version 2026.1."""
    path = fake_tools.nsys(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path.parent


def folder(tmp_path: Path) -> Path:
    directory = tmp_path / "trial" / "profile"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def switches(tmp_path: Path, *words: str, trial: Trial = CPU) -> dict[str, str]:
    command = load_profiler("nsys", words).wrap(["app", "--x"], trial, folder(tmp_path))
    assert command[1] == "profile" and command[-2:] == ["app", "--x"]
    return dict(word.split("=", 1) for word in command[2:-2])


def test_a_cpu_run_is_captured_between_its_nvtx_ranges(tmp_path: Path) -> None:
    given = switches(tmp_path / "100%pure")
    assert (given["--capture-range"], given["--nvtx-capture"]) == ("nvtx", "bertbench:capture@bertbench")
    assert given["--trace"] == "nvtx,osrt" and "--cuda-graph-trace" not in given
    assert (given["--sample"], given["--capture-range-end"], given["--kill"]) == ("none", "stop", "none")
    assert given["--output"].endswith("/100%%pure/trial/profile/node0.nsys-rep"), "a percent sign is no macro"


def test_a_gpu_run_is_captured_by_the_profiler_api_with_every_node_of_its_graphs(tmp_path: Path) -> None:
    given = switches(tmp_path, trial=GPU)
    assert given["--capture-range"] == "cudaProfilerApi" and "--nvtx-capture" not in given
    assert given["--cuda-graph-trace"] == "node" and given["--trace"].split(",")[:2] == ["cuda", "nvtx"]


@pytest.mark.parametrize(
    ("nsys", "nvtx", "facts"),
    [
        ("2021.1", "0.2.11", ("nsys 2021.1", "2022.4")),
        ("2022.4.2", "0.2.11", None),
        ("2022.4.2", "0.2.12", ("2022.4.2", "nvtx 0.2.12", "nvtx==0.2.11")),
        ("2022.4.2", "0.3.0", ("nvtx==0.2.11",)),
        ("2026.1", "0.2.17", None),
    ],
)
def test_an_old_nsys_and_ranges_that_it_cannot_see_are_refused_before_the_run(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, nsys: str, nvtx: str, facts: tuple[str, ...] | None
) -> None:
    fake_tools.nsys(bin_folder, nsys)
    monkeypatch.setattr(metadata, "version", lambda name: nvtx)
    with refused("tool-version", *facts) if facts else contextlib.nullcontext():
        load_profiler("nsys").check(CPU)


def test_the_report_is_exported_without_the_environment(tmp_path: Path) -> None:
    here = folder(tmp_path)
    (here / "node0.nsys-rep").write_bytes(b"report")
    report, export = load_profiler("nsys").collect(CPU, here)
    assert (report.name, export.name) == ("node0.nsys-rep", "node0.sqlite")
    with contextlib.closing(sqlite3.connect(export)) as connection:
        tables = connection.execute("select name from sqlite_master").fetchall()
    assert tables == [("StringIds",), ("NVTX_EVENTS",)] and b"home-of-someone" not in export.read_bytes()


@pytest.mark.parametrize(
    ("mode", "report", "log", "code", "facts"),
    [
        ("ok", None, "Generating report", "run-incomplete", ("log.txt",)),
        ("ok", None, "write: No space left on device", "run-incomplete", ("No space left",)),
        ("ok", None, "Unable to retrieve the importer version", "run-incomplete", ("importer version",)),
        ("ok", b"", "", "file-empty", ("node0.nsys-rep",)),
        ("bad-export", b"half a rep", "", "tool-failed", ("nsys export", "exit code 1", "truncated")),
        ("full-disk", b"report", "", "file-empty", ("node0.sqlite",)),
    ],
)
def test_what_nsys_says_is_the_reason_for_no_report_or_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    mode: str, report: bytes | None, log: str, code: Code, facts: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setenv("FAKE_NSYS", mode)
    here = folder(tmp_path)
    (here.parent / "log.txt").write_text(log, encoding="utf-8")
    if report is not None:
        (here / "node0.nsys-rep").write_bytes(report)
    with refused(code, here if report is None else "nsys", *facts):
        load_profiler("nsys").collect(CPU, here)
