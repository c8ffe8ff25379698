"""Reports of nsys: exported once into the cache, by whatever process comes first; a failure leaves nothing there."""

import gzip
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support import fake_nsys
from support.refusals import refused

from analysis.readers.registry import find_reader, read_head
from analysis.sources import open_sources
from common.errors import Code, InputError, MissingToolError, StorageError

REPORT = b"NVIDIA Tegra Profiler Report 1..\n" + bytes(range(256))


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a report, with the stand-in for nsys on PATH and a cache of its own."""
    monkeypatch.setenv("PATH", f"{fake_nsys.install(tmp_path / 'bin', '2022.4.2').parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_NSYS_LOG", str(tmp_path / "exports.log"))
    path = tmp_path / "data" / "run.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(REPORT)
    return path


def exports(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != ".lock")


def calls(tmp_path: Path) -> int:
    log = tmp_path / "exports.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_report_is_exported_once_and_read_as_its_export(tmp_path: Path, report: Path) -> None:
    assert find_reader(read_head(report)) == "nsys"
    found = open_sources(report)
    assert found.kinds == ("nsys",) and found.timelines[0].steps["step"].tolist() == [3]
    (export,) = exports(tmp_path)
    assert export.parent.name.endswith("-2022.4.2") and list(report.parent.iterdir()) == [report]
    renamed = report.rename(report.with_name("other name.bin"))
    assert len(open_sources(renamed).timelines) == 1 and calls(tmp_path) == 1, "content is the key, not the name"
    (tmp_path / "packed").write_bytes(gzip.compress(REPORT))
    assert len(open_sources(tmp_path / "packed").timelines) == 1 and calls(tmp_path) == 1
    with sqlite3.connect(export) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
    assert "NVTX_EVENTS" in tables and "TARGET_INFO_SYSTEM_ENV" not in tables
    assert b"home-of-someone" not in export.read_bytes()


def test_two_processes_at_once_export_once(tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "slow-export")
    program = "import sys; from pathlib import Path; from analysis.readers.nsys.report import exported as e; "
    program += "p = Path(sys.argv[1]); print(e(p, p))"
    both = [
        subprocess.Popen([sys.executable, "-c", program, str(report)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in both]
    assert said == [str(exports(tmp_path)[0])] * 2 and calls(tmp_path) == 1


@pytest.mark.parametrize(
    ("mode", "kind", "code", "fact"),
    [
        ("bad-export", InputError, "file-damaged", "the report is truncated"),
        ("needs-newer", InputError, "trace-unsupported", "created by a newer version; of Nsight Systems"),
        ("full-disk", StorageError, "disk-full", "XDG_CACHE_HOME"),
    ],
)
def test_a_failed_export_is_one_line_with_the_words_of_nsys(
    tmp_path: Path,
    report: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    kind: type[Exception],
    code: Code,
    fact: str,
) -> None:
    monkeypatch.setenv("FAKE_NSYS", mode)
    with refused(code, report, fact) as caught:
        open_sources(report)
    said = str(caught.value)
    assert isinstance(caught.value, kind) and "\n" not in said and "hf_abcdefghij" not in said
    assert exports(tmp_path) == []


def test_without_nsys_the_message_names_the_remedy(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(MissingToolError) as caught:
        open_sources(report)
    assert caught.value.code == "tool-missing" and str(report) in str(caught.value)
    assert "nsys export --type=sqlite" in str(caught.value)


def test_a_report_in_a_folder_is_read_unless_its_export_is_there(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(open_sources(report.parent).timelines) == 1
    export = report.with_suffix(".sqlite")
    export.write_bytes(exports(tmp_path)[0].read_bytes())
    assert len(open_sources(report.parent).timelines) == 1, "the report and its export are one recording"
    (report.parent / "other.nsys-rep").write_bytes(REPORT + b"2")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = open_sources(report.parent)
    assert len(found.timelines) == 1 and any("other.nsys-rep" in problem for problem in found.problems)
