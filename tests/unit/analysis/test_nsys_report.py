"""Reports of nsys: exported to a temporary file; a failure is one error."""

import gzip
import shutil
import tempfile
from pathlib import Path

import pytest
from support import fake_tools
from support.refusals import refused

from analysis.open import open_sources
from analysis.readers.registry import find_reader, read_head
from common.errors import Code, InputError, StorageError
from common.nsys import exported

REPORT = b"NVIDIA Tegra Profiler Report 1..\n" + bytes(range(256))


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a report, with the stand-in for nsys on PATH and a folder for temporary files."""
    monkeypatch.setenv("PATH", f"{fake_tools.nsys(tmp_path / 'bin', '2022.4.2').parent}:/usr/bin:/bin")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = tmp_path / "data" / "run.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(REPORT)
    return path


def test_a_report_is_read_as_its_export_which_is_gone_then(tmp_path: Path, report: Path) -> None:
    assert find_reader(read_head(report)) == "nsys"
    found = open_sources(report)
    assert found.kinds == ("nsys",) and found.timelines[0].steps["step"].tolist() == [3]
    (tmp_path / "packed").write_bytes(gzip.compress(REPORT))
    assert len(open_sources(tmp_path / "packed").timelines) == 1
    assert list(report.parent.iterdir()) == [report] and list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "kind", "code", "fact"),
    [
        ("bad-export", InputError, "file-damaged", "the report is truncated"),
        ("needs-newer", InputError, "tool-version", "created by a newer version of Nsight Systems"),
        ("full-disk", StorageError, "disk-full", "TMPDIR"),
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
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_report_in_a_folder_is_read_unless_its_export_is_there(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(open_sources(report.parent).timelines) == 1
    with exported(report, report) as export:
        shutil.copy(export, report.with_suffix(".sqlite"))
    assert len(open_sources(report.parent).timelines) == 1, "the report and its export are one recording"
    (report.parent / "other.nsys-rep").write_bytes(REPORT + b"2")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = open_sources(report.parent)
    assert len(found.timelines) == 1 and any("other.nsys-rep" in problem for problem in found.problems)
