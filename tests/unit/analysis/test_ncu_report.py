"""Reports of Nsight Compute through ncu-report: the kernels of ncu's own CSV, its rules, and every kind of damage."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from analysis.diagnose.cores import rules
from analysis.diagnose.explain import explain, to_do
from analysis.diagnose.finding import plain_rows
from analysis.open import open_sources
from analysis.readers import ncu as reader
from common.errors import MissingToolError

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ncu"
PRINTED_BY_NCU = GOLDEN / "raw.csv"
OLD, NEW = GOLDEN / "2022.ncu-rep", GOLDEN / "2026.ncu-rep"
"""Processes 7, 8 and 7 again, with ranges and with rules without estimates; one process with estimates, 10 us long."""
TIME, CYCLES = "gpu__time_duration.sum", "gpc__cycles_elapsed.max"
GEMM, SOFTMAX = "void sm80_gemm<int>(float *, int)", "softmax_warp_forward(float *)"


@pytest.fixture
def package() -> Any:
    """The package that reads reports; the tests of the file's structure run without it."""
    return pytest.importorskip("ncu_report", reason="ncu-report is not installed: pip install 'bertbench[ncu]'")


def written(folder: Path, content: bytes, name: str = "x.ncu-rep") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_report_gives_what_ncu_prints_of_it(package: Any) -> None:
    found, printed = reader.read(OLD), reader.read(PRINTED_BY_NCU)
    assert set(found.kernels.columns) == set(printed.kernels.columns)
    order = [0, 1, 3, 2]  # ncu prints process by process, which the package does not tell
    for column in printed.kernels.columns.drop(["process", "kernel_id"]):
        assert found.kernels[column].iloc[order].tolist() == printed.kernels[column].tolist(), column
    assert (found.device_name, found.compute_capability) == ("NVIDIA RTX A2000", (8, 6))
    assert (printed.device_name, printed.compute_capability) == ("NVIDIA RTX A2000", (8, 6))
    assert found.kernels["kernel_id"].tolist() == [0, 1, 2, 3] and found.kernels["duration_ns"].tolist()[2] == 5000
    assert found.kernels["push_pop_ranges"][0] == ("bertbench@step 1", "bertbench@forward", "other@x:y")
    assert found.kernels["start_stop_ranges"][1] == ("bertbench@all-reduce",)
    assert found.problems == printed.problems == ()


def test_estimates_are_weighted_by_time_and_only_global_ones_save_time(package: Any) -> None:
    """GEMM: 2 us with 40 % and 6 us with 20 % of 10 us: 0.8 + 1.2 = 2 us of its 8, and of all 10."""
    source = open_sources(NEW)
    found = {finding.name: finding for finding in explain(source)}["kernel_rules"]
    first, second, third = plain_rows(found.table)
    assert (first["rule"], first["name"], first["launches"], first["estimate"]) == (
        "TheoreticalOccupancy", GEMM, 2, "global",
    )  # fmt: skip
    assert [first[name] for name in ("time_share", "estimate_share", "saves_share")] == pytest.approx([0.8, 0.25, 0.2])
    assert first["message"] == "Fewer.", "of the longest launch"
    assert (second["rule"], second["estimate"], second["saves_share"]) == ("UncoalescedAccess", "local", None)
    assert second["estimate_share"] == pytest.approx(0.9)
    assert (third["rule"], third["estimate"], third["estimate_share"]) == ("SOLBottleneck", "", None)
    (advice,) = [one for one in to_do(source, [found]) if one.cause == "rules"]
    assert advice.saves == pytest.approx(0.2) and "25.0 %" in advice.text


def test_the_details_page_gives_the_rules_of_the_report(tmp_path: Path, package: Any) -> None:
    """With the columns of estimates as Nsight Compute 2025 prints them."""
    head = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value",'
    head += '"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    rows = [head]
    for kernel, (name, time) in enumerate(((GEMM, "2,000"), (GEMM, "6,000"), (SOFTMAX, "2,000"))):
        rows.append(f'"{kernel}","7","{name}","S","{TIME}","ns","{time}","","","","",""')
        rows.append(f'"{kernel}","7","{name}","S","{CYCLES}","cycle","1","","","","",""')
    for kernel, name, section, rule, text, estimate, speedup in (
        (0, GEMM, "Occupancy", "TheoreticalOccupancy", "Few warps.", "global", "40"),
        (0, GEMM, "SpeedOfLight", "SOLBottleneck", "Small grid.", "", ""),
        (1, GEMM, "Occupancy", "TheoreticalOccupancy", "Fewer.", "global", "20.00"),
        (2, SOFTMAX, "SourceCounters", "UncoalescedAccess", "Apart.", "local", "90"),
    ):
        rows.append(f'"{kernel}","7","{name}","{section}","","","","{rule}","OPT","{text}","{estimate}","{speedup}"')
    printed = reader.read(written(tmp_path, "\n".join(rows).encode(), "details.csv"))
    found = reader.read(NEW)
    assert printed.rules == found.rules and len(found.rules) == 4
    assert plain_rows(rules(printed).table) == plain_rows(rules(found).table)


@pytest.mark.parametrize("content", [(GOLDEN / "no-results.ncu-rep").read_bytes(), OLD.read_bytes()[:-1], b"NVR\0junk"])
def test_a_report_without_results_or_cut_short_is_refused(tmp_path: Path, package: Any, content: bytes) -> None:
    with refused("trace-without-work", "x.ncu-rep"):
        open_sources(written(tmp_path, content))


def test_what_the_package_raises_is_one_error(tmp_path: Path, package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RuntimeError("no such protobuf")

    monkeypatch.setattr(package, "load_report", fail)
    with refused("file-damaged", "x.ncu-rep", "no such protobuf"):
        open_sources(written(tmp_path, OLD.read_bytes()))


def test_without_the_package_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(ImportError):
        importlib.import_module("ncu_report")
    path = written(tmp_path, OLD.read_bytes())
    with pytest.raises(MissingToolError) as caught:
        open_sources(path)
    said = str(caught.value)
    assert caught.value.code == "package-missing" and str(path) in said and "\n" not in said
    assert "bertbench[ncu]" in said and "ncu --import" in said
    shutil.copy(PRINTED_BY_NCU, tmp_path / "other.csv")
    found = open_sources(tmp_path)
    assert [file.name for file in found.counter_files] == ["other.csv"]
    assert any("x.ncu-rep" in problem for problem in found.problems), "the rest of a folder is read"
