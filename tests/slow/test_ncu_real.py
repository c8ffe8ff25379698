"""The real Nsight Compute, without a GPU: names of metrics against its chips, its sample reports through our reader."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.diagnose.cores import findings
from analysis.diagnose.explain import explain
from analysis.diagnose.finding import plain_rows
from analysis.metrics.kernels.core_utilization import utilization_row
from analysis.metrics.kernels.roofline import roofline
from analysis.open import open_sources
from analysis.readers.ncu import read
from bench.profilers import ncu as ncu_profiler
from bench.profilers.ncu import NsightCompute, metrics_of
from records.trial import Trial

pytestmark = pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not installed (ncu on PATH)")

SAMPLES = Path("/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses")


def ncu(*words: str) -> str:
    done = subprocess.run(["ncu", *words], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def full_names(chip: str, names: list[str]) -> set[str]:
    """Return every metric of the chip, with its suffix, that these names could be."""
    bases = ",".join(dict.fromkeys(name.partition(".")[0] for name in names))
    listed = ncu("--query-metrics-mode", "suffix", "--metrics", bases, "--chips", chip)
    return set(re.findall(r"^([a-z]\w*__\w+(?:\.\w+)+)\s", listed, re.MULTILINE))


def test_a_name_that_is_wrong_would_be_found() -> None:
    assert full_names("ga100", ["sm__inst_executed_pipe_fma_type_fp16.avg", "sm__inst_executed_pipe_fma.avg"]) >= {
        "sm__inst_executed_pipe_fma.avg"
    }
    assert "sm__inst_executed_pipe_fma_type_fp16.avg" not in full_names(
        "ga100", ["sm__inst_executed_pipe_fma_type_fp16"]
    )


def test_what_a_chip_has_is_told_from_the_real_query() -> None:
    names = metrics_of((9, 0))
    query = ncu("--query-metrics", "--chips", "gh100")
    found = ncu_profiler.available(names, query)
    listed = full_names("gh100", names)
    assert found == [name for name in names if name in listed]
    assert "gpu__time_duration.sum" in found
    dram = ncu("--query-metrics", "--chips", "ga10b")
    assert "dram__bytes.sum" not in ncu_profiler.available(metrics_of((8, 6)), dram)


def test_every_switch_is_found_in_the_real_help() -> None:
    text = ncu("--help")
    needed = (
        "--target-processes --profile-from-start --nvtx --launch-count --devices --clock-control --apply-rules "
        "--force-overwrite --export --import --csv --page --print-units --kernel-name --kernel-name-base --section "
        "--metrics --query-metrics"
    )
    assert all(re.search(rf"^\s+(?:-\w\s+\[\s*)?{name}\b", text, re.MULTILINE) for name in needed.split())


@pytest.fixture
def ga100(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capability and the metrics of a GPU that need not be there."""
    monkeypatch.setattr("bench.profilers.ncu.first_gpu_capability", lambda: (8, 0))
    known = ncu("--query-metrics", "--chips", "ga100")
    real = NsightCompute.run
    monkeypatch.setattr(
        NsightCompute, "run", lambda *words, **options: known if "--query-metrics" in words else real(*words, **options)
    )


@pytest.mark.usefixtures("ga100")
def test_the_whole_command_is_accepted_by_the_real_ncu(tmp_path: Path) -> None:
    """Without a GPU nothing is profiled; a switch or section that it does not know would end it before the program."""
    for words in ({}, {"metrics": "dram__bytes.sum"}):
        trial = Trial(kind="profile", device="cuda", start_iteration=1, stop_iteration=2, world_size=1 if words else 2)
        command = NsightCompute(words).wrap(["/bin/echo", "the program ran"], trial, tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert "the program ran" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 0 and "==ERROR==" not in done.stdout + done.stderr, done.stdout + done.stderr


def collected(tmp_path: Path, report: bytes) -> list[Path]:
    trial = Trial(kind="profile", device="cuda", start_iteration=1, stop_iteration=2)
    (tmp_path / "ncu").mkdir()
    (tmp_path / "ncu" / f"batch_{trial.micro_batch_size}.ncu-rep").write_bytes(report)
    return NsightCompute().collect(trial, tmp_path)


def sample(name: str) -> Path:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"{path} is not here: this package of Nsight Compute ships no sample reports")
    return path


@pytest.mark.parametrize(
    ("name", "duration_ns", "cycles"),
    [("addConstDouble.ncu-rep", 239_008, 129_977), ("addConstDouble3.ncu-rep", 294_336, 164_711)],
)
def test_a_real_report_is_exported_and_read(tmp_path: Path, name: str, duration_ns: int, cycles: int) -> None:
    _, table, *_ = collected(tmp_path, sample(name).read_bytes())
    found = read(table)
    (row,) = found.kernels.to_dict("records")
    assert row["name"].startswith(name.partition(".")[0]) and row["device"] == 0
    assert (row["duration_ns"], row["cycles"]) == (duration_ns, cycles)
    assert (found.device_name, found.compute_capability) == ("NVIDIA RTX A2000", (8, 6))
    assert utilization_row(found)["kernel_time_ms"] == pytest.approx(duration_ns / 1e6)
    said = {(one.rule, one.section, one.text) for one in found.rules}
    details = read(exported(tmp_path, sample(name), "details"))
    assert said == {(one.rule, one.section, one.text) for one in details.rules} and len(said) > 3


@pytest.mark.parametrize(("name", "bound"), [("addConstDouble.ncu-rep", "DRAM"), ("addConstDouble3.ncu-rep", "L1/TEX")])
def test_both_pages_of_a_real_report_give_the_same_levels_and_bound(tmp_path: Path, name: str, bound: str) -> None:
    """The samples show what uncoalesced accesses do: the same bytes, 94 % of L1/TEX, and DRAM falls from 92 to 73 %."""
    levels = []
    for page in ("raw", "details"):
        path = tmp_path / f"{page}.csv"
        path.write_text(ncu("--import", str(sample(name)), "--csv", "--page", page))
        (row,) = roofline(read(path)).kernels.to_dict("records")
        assert row["bound"] == bound
        levels.append([row["l1_fraction"], row["l2_fraction"], row["dram_fraction"], row["occupancy_share"]])
    assert levels[0] == pytest.approx(levels[1], abs=1e-3)


def test_a_truncated_real_report_is_told(tmp_path: Path) -> None:
    whole = sample("addConstDouble.ncu-rep").read_bytes()
    with refused("tool-failed", "Failed to load report"):
        collected(tmp_path, whole[: len(whole) // 2])


# ---- reports through ncu-report ----

BOTH = ("addConstDouble.ncu-rep", "addConstDouble3.ncu-rep")


def exported(folder: Path, report: Path, page: str) -> Path:
    path = folder / f"{page}.csv"
    path.write_text(ncu("--import", str(report), "--csv", "--page", page, "--print-units", "base"))
    return path


def readable(name: str) -> Path:
    pytest.importorskip("ncu_report", reason="ncu-report is not installed: pip install 'bertbench[ncu]'")
    return sample(name)


@pytest.mark.parametrize("name", BOTH)
def test_a_real_report_has_every_value_that_ncu_prints_of_it(tmp_path: Path, name: str) -> None:
    """ncu prints decimals to two places, and names some units in other words."""
    found, printed = read(readable(name)), read(exported(tmp_path, sample(name), "raw"))
    counted = {name for name in found.metrics if not name.startswith("rule: ")}  # those are from texts
    assert len(counted) > 500 and counted == set(printed.metrics)
    for metric in printed.metrics:
        assert found.kernels[metric][0] == pytest.approx(printed.kernels[metric][0], rel=1e-6, abs=0.006), metric
    for column in ("kernel_id", "name", "device", "duration_ns", "cycles"):
        assert found.kernels[column].tolist() == printed.kernels[column].tolist(), column
    plain = {"%", "ns", "cycle", "byte", "byte/s", "hz"}
    both = [key for key in printed.units if found.units[key] in plain and printed.units[key] in plain]
    assert len(both) > 200 and [found.units[key] for key in both] == [printed.units[key] for key in both]
    assert (found.device_name, found.compute_capability) == (printed.device_name, printed.compute_capability)


@pytest.mark.parametrize("name", BOTH)
def test_a_real_report_gives_the_findings_of_its_csv_and_the_rules_of_its_details(tmp_path: Path, name: str) -> None:
    path = readable(name)
    found = {one.name: one for one in explain(open_sources(path))}
    printed = {one.name: one for one in explain(open_sources(exported(tmp_path, path, "raw")))}
    assert set(found) - set(printed) == {"kernel_rules"} and not set(printed) - set(found)
    for key, finding in printed.items():
        rows = plain_rows(found[key].table)
        assert len(rows) == len(finding.table), key
        for mine, row in zip(rows, plain_rows(finding.table), strict=True):
            numbers = [column for column, value in row.items() if isinstance(value, float)]
            assert [mine[one] for one in numbers] == pytest.approx([row[one] for one in numbers], rel=2e-3, abs=1e-4)
            assert [mine[one] for one in row if one not in numbers] == [row[one] for one in row if one not in numbers]
    details = read(exported(tmp_path, path, "details"))
    (rules,) = [one for one in findings(details) if one.name == "kernel_rules"]
    shown, expected = (
        sorted(plain_rows(table), key=lambda row: (row["rule"], row["section"], row["message"]))
        for table in (found["kernel_rules"].table, rules.table)
    )
    assert shown == expected != []


def test_ncu_prints_of_a_report_that_a_test_wrote_what_the_golden_file_has(tmp_path: Path) -> None:
    """So the reports of the unit tests are reports to NVIDIA's own reader too."""
    path = Path(__file__).resolve().parents[1] / "golden" / "ncu" / "2022.ncu-rep"
    golden = path.with_name("raw.csv")
    command = ["ncu", "--import", str(path), "--csv", "--page", "raw"]
    zone = {**os.environ, "TZ": "UTC"}
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=zone).stdout
    (tmp_path / "raw.csv").write_text(printed)
    kernels, expected = read(tmp_path / "raw.csv").kernels, read(golden).kernels
    assert set(expected) <= set(kernels)
    assert kernels[list(expected)].equals(expected)
