"""An export of nsys without GPU events: every command that reads it says why, in the words of nsys."""

import html
from pathlib import Path

import pytest
from support.commands import document, result
from support.profiles import NSYS, sqlite_with
from support.refusals import refused

MESSAGES = [(1, "Profiling has started."), *[(2, "CUDA profiling might have not been started correctly.")] * 3,
            (3, "GPU metrics: insufficient privilege for TOKEN=hush.")]  # fmt: skip


def export(path: Path, *, ranges: bool) -> Path:
    kept = {"StringIds": NSYS["StringIds"], "TARGET_INFO_GPU": ("id INTEGER, name TEXT", [(0, "A100")])}
    kept |= {"NVTX_EVENTS": NSYS["NVTX_EVENTS"]} if ranges else {}
    sqlite_with({**kept, "DIAGNOSTIC_EVENT": ("severity INTEGER, text TEXT", MESSAGES)})(path)
    return path


def assert_said(text: str) -> None:
    for message in ("CUDA profiling might have not been started correctly", "GPU metrics: insufficient privilege"):
        assert f"nsys says: {message}" in text and "hush" not in text


@pytest.mark.parametrize("command", ["analyze", "allreduce", "report"])
def test_nothing_recorded_at_all_is_refused_with_the_reason(command: str, tmp_path: Path) -> None:
    with refused("trace-without-work") as caught:
        result(command, export(tmp_path / "a.sqlite", ranges=False))
    assert_said(str(caught.value))


def test_ranges_without_gpu_work_are_shown_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(export(tmp_path / "a.sqlite", ranges=True))
    shown = document("analyze", path)
    assert_said("\n".join(shown["problems"]))
    assert shown["findings"]["compute_utilization"]["rows"][0]["reason"] and "ranges" in shown["findings"]
    assert_said("\n".join(result("allreduce", path).problems))
    assert_said("\n".join(result("analyze", path, "--perfetto", "p.json").problems))
    result("report", path, "--out", "pages")
    assert_said(html.unescape(Path("pages/report.html").read_text(encoding="utf-8")))


def test_counters_of_cores_are_not_looked_for_in_a_database(tmp_path: Path) -> None:
    with refused("file-format", tmp_path / "a.sqlite", "ncu --csv"):
        result("core-util", export(tmp_path / "a.sqlite", ranges=True))
