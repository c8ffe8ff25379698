"""The real Nsight Compute, without a GPU: names of metrics against its chips, its sample reports through our reader."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.metrics.kernels.core_utilization import core_use
from analysis.metrics.kernels.roofline import roofline
from analysis.readers.ncu.reader import read
from bench.profilers import ncu as ncu_profiler
from bench.profilers.base import Scope
from bench.profilers.ncu import NsightCompute
from bench.profilers.tool import tool_version
from common.tools import find_tool
from records.trial import Trial

pytestmark = pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not installed (ncu on PATH)")

# Chips by section; the expression is matched against `ncu --list-chips`.
CHIPS = {
    "BertbenchCores70": "gv100|gv11b",
    "BertbenchCores75": "tu1..",
    "BertbenchCores80": "ga100",
    "BertbenchCores86": "ga10[2-7]|ga10b",
    "BertbenchCores89": "ad10.",
    "BertbenchCores90": "gh100",
    "BertbenchCores100": "gb1..",
    "BertbenchCores120": "gb2..",
}
# Chips that share the memory of their host.
WITHOUT_DRAM = ("gv11b", "ga10b")
OF_DRAM = {"dram__bytes.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed"}
SAMPLES = Path("/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses")


def ncu(*words: str) -> str:
    done = subprocess.run(["ncu", *words], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def chips() -> list[str]:
    return re.findall(r"\w+", ncu("--list-chips"))


def version() -> tuple[int, ...]:
    return tool_version(find_tool("ncu", ""))


def full_names(chip: str, names: list[str]) -> set[str]:
    """Return every metric of the chip, with its suffix, that these names could be."""
    bases = ",".join(dict.fromkeys(name.partition(".")[0] for name in names))
    listed = ncu("--query-metrics-mode", "suffix", "--metrics", bases, "--chips", chip)
    return set(re.findall(r"^([a-z]\w*__\w+(?:\.\w+)+)\s", listed, re.MULTILINE))


@pytest.mark.parametrize("identifier", CHIPS)
def test_every_name_is_known_to_its_chips_and_marked_where_it_was_not_checked(identifier: str) -> None:
    mine = [chip for chip in chips() if re.fullmatch(CHIPS[identifier], chip)]
    every = ncu_profiler.metric_names(identifier)
    names = {name: checked for name, checked in every.items() if not ncu_profiler.of_launch(name)}
    if not mine:
        assert not any(names.values()), f"{identifier} claims checked names"
        pytest.skip(f"ncu {version()} knows no chip of {identifier}: its names stay unchecked")
    for chip in mine:
        known = full_names(chip, list(names))
        lacking = {name for name, checked in names.items() if checked and name not in known}
        assert lacking == (OF_DRAM if chip in WITHOUT_DRAM else set()), chip
        if version()[:2] == (2022, 3):  # later ones may know them: then the mark can go
            assert not {name for name, checked in names.items() if not checked and name in known}, chip


def test_a_name_that_is_wrong_would_be_found() -> None:
    assert full_names("ga100", ["sm__inst_executed_pipe_fma_type_fp16.avg", "sm__inst_executed_pipe_fma.avg"]) >= {
        "sm__inst_executed_pipe_fma.avg"
    }
    assert "sm__inst_executed_pipe_fma_type_fp16.avg" not in full_names(
        "ga100", ["sm__inst_executed_pipe_fma_type_fp16"]
    )


@pytest.mark.parametrize("identifier", CHIPS)
def test_ncu_reads_our_section_files(identifier: str) -> None:
    folder = str(ncu_profiler.FOLDER)
    assert re.search(rf"^{identifier}\s", ncu("--section-folder", folder, "--list-sections"), re.MULTILINE)
    listed = ncu("--section-folder", folder, "--section", identifier, "--list-metrics").split()
    assert set(ncu_profiler.metric_names(identifier)) == {name.lstrip("-") for name in listed}


def test_what_a_chip_has_is_told_from_the_real_query() -> None:
    names = ncu_profiler.metric_names("BertbenchCores90")
    known = ncu_profiler.known_metrics(ncu("--query-metrics", "--chips", "gh100"))
    found = ncu_profiler.available(names, known)
    if version()[:2] == (2022, 3):
        assert found == [name for name, checked in names.items() if checked]
    assert len(known) > 1000 and "gpu__time_duration.sum" in found
    dram = ncu_profiler.known_metrics(ncu("--query-metrics", "--chips", "ga10b"))
    assert "dram__bytes.sum" not in ncu_profiler.available(ncu_profiler.metric_names("BertbenchCores86"), dram)


def test_every_switch_is_found_in_the_real_help() -> None:
    text = ncu("--help")
    needed = (
        "--target-processes --profile-from-start --nvtx --nvtx-include --replay-mode --launch-skip --launch-count "
        "--devices --cache-control --clock-control --apply-rules --force-overwrite --export --import --csv --page "
        "--print-units --kernel-name --kernel-name-base --section --section-folder --metrics --query-metrics"
    )
    assert set(needed.split()) <= ncu_profiler.switches(text)
    assert {"kernel", "application", "range"} <= ncu_profiler.replay_modes(text)


def test_the_whole_command_is_accepted_by_the_real_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU nothing is profiled; a switch or section that it does not know would end it before the program."""
    monkeypatch.setattr("bench.profilers.ncu.first_gpu_capability", lambda: (8, 0))
    for words in ({}, {"replay": "range"}, {"metrics": "dram__bytes.sum", "skip": "3", "clock-control": "base"}):
        trial = Trial(kind="profile", device="cuda", start_iteration=1, stop_iteration=2, world_size=1 if words else 2)
        command = NsightCompute(words).wrap(["/bin/echo", "the program ran"], Scope(trial=trial, directory=tmp_path))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert "the program ran" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 0 and "==ERROR==" not in done.stdout + done.stderr, done.stdout + done.stderr


def collected(tmp_path: Path, report: bytes) -> list[Path]:
    trial = Trial(kind="profile", device="cuda", start_iteration=1, stop_iteration=2)
    (tmp_path / "ncu").mkdir()
    (tmp_path / "ncu" / f"batch_{trial.micro_batch_size}.ncu-rep").write_bytes(report)
    return NsightCompute().collect(Scope(trial=trial, directory=tmp_path))


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
    _, table, _ = collected(tmp_path, sample(name).read_bytes())
    found = read(table)
    (row,) = found.kernels.to_dict("records")
    assert row["name"].startswith(name.partition(".")[0]) and row["device"] == 0
    assert (row["duration_ns"], row["cycles"]) == (duration_ns, cycles)
    assert (found.device_name, found.compute_capability) == ("NVIDIA RTX A2000", (8, 6))
    assert core_use(found).kernel_time_ms == pytest.approx(duration_ns / 1e6)


@pytest.mark.parametrize("units", ["base", "auto"])
@pytest.mark.parametrize("name", ["addConstDouble.ncu-rep", "addConstDouble3.ncu-rep"])
def test_both_pages_of_a_real_report_agree_in_any_units(tmp_path: Path, name: str, units: str) -> None:
    read_pages = {}
    for page in ("raw", "details"):
        path = tmp_path / f"{page}.csv"
        path.write_text(ncu("--import", str(sample(name)), "--csv", "--page", page, "--print-units", units))
        read_pages[page] = read(path).kernels
    raw, details = read_pages["raw"], read_pages["details"]
    pairs = {
        "gpu__time_duration.sum": "GPU Speed Of Light Throughput: Duration",
        "gpc__cycles_elapsed.max": "GPU Speed Of Light Throughput: Elapsed Cycles",
        "dram__bytes.sum.per_second": "Memory Workload Analysis: Memory Throughput",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "GPU Speed Of Light Throughput: Compute (SM) [%]",
    }
    compared = [key for key, label in pairs.items() if key in raw and label in details]
    assert len(compared) >= 3, details.columns
    for key in compared:
        assert raw[key][0] == pytest.approx(details[pairs[key]][0], rel=5e-3), key


@pytest.mark.parametrize(("name", "bound"), [("addConstDouble.ncu-rep", "DRAM"), ("addConstDouble3.ncu-rep", "L1/TEX")])
def test_both_pages_of_a_real_report_give_the_same_levels_and_bound(tmp_path: Path, name: str, bound: str) -> None:
    """The samples show what uncoalesced accesses do: the same bytes, 94 % of L1/TEX, and DRAM falls from 92 to 73 %."""
    levels = []
    for page in ("raw", "details"):
        path = tmp_path / f"{page}.csv"
        path.write_text(ncu("--import", str(sample(name)), "--csv", "--page", page))
        (row,) = roofline(read(path)).kernels.to_dict("records")
        assert row["bound"] == bound
        levels.append([row["l1_fraction"], row["l2_fraction"], row["dram_fraction"], row["achieved_occupancy"]])
    assert levels[0] == pytest.approx(levels[1], abs=1e-3)


def test_a_truncated_real_report_is_told(tmp_path: Path) -> None:
    whole = sample("addConstDouble.ncu-rep").read_bytes()
    with refused("file-damaged", "Failed to load report"):
        collected(tmp_path, whole[: len(whole) // 2])
