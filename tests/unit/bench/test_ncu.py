"""Nsight Compute as a profiler: its command line, when it is refused, and what is made of its report."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from support import fake_tools
from support.refusals import refused
from support.shared_files import OWN

from analysis.counters import rules_file
from analysis.open import open_sources
from analysis.readers.ncu import read
from bench.profilers import Profiler, load_profiler, ncu, tool
from bench.profilers.ncu import NEWER, metrics_of
from common.errors import Code
from records.trial import Trial

GPU, GPUS = (
    Trial(kind="profile", device=device, start_iteration=3, stop_iteration=6, micro_batch_size=16, world_size=ranks)
    for device, ranks in (("cuda", 1), ("cuda", 2))
)
HOPPER = metrics_of((9, 0))
# Of the metrics for 9.0 ncu 2022.3 has all but the newer ones.
OLD_HOPPER = tuple(name.partition(".")[0] for name in HOPPER if name not in NEWER)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU of compute capability 9.0, the stand-in of ncu 2022.3, and permission to count."""
    path = fake_tools.ncu(tmp_path / "bin", metrics=OLD_HOPPER)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(ncu, "first_gpu_capability", lambda: (9, 0))
    monkeypatch.setattr(tool, "DRIVER_PARAMETERS", tmp_path / "params")
    return tmp_path


def profiler(*words: str) -> Profiler:
    return load_profiler("ncu", words)


def folder(tmp_path: Path, log: str = "") -> Path:
    directory = tmp_path / "trial" / "profile"
    directory.mkdir(parents=True, exist_ok=True)
    (directory.parent / "log.txt").write_text(log, encoding="utf-8")
    return directory


def switches(machine: Path, *words: str, trial: Trial = GPU) -> dict[str, str]:
    """Return the switches before the program, with the word behind each that is no switch itself."""
    command = profiler(*words).wrap(["app", "--x"], trial, folder(machine))
    assert Path(command[0]).name == "ncu" and command[-2:] == ["app", "--x"]
    given = command[1:-2]
    return {
        word: "" if after.startswith("--") else after
        for word, after in zip(given, [*given[1:], "--"], strict=True)
        if word.startswith("--")
    }


def test_the_window_is_recorded_in_all_processes_into_one_report(machine: Path) -> None:
    given = switches(machine)
    assert (given["--target-processes"], given["--profile-from-start"]) == ("all", "off")
    assert (given["--launch-count"], given["--clock-control"]) == ("2000", "none")
    assert given["--export"] == str(machine / "trial" / "profile" / "ncu" / "batch_16")
    assert (machine / "trial" / "profile" / "ncu").is_dir()  # ncu makes no folders
    assert "--devices" not in given and switches(machine, trial=GPUS)["--devices"] == "0"


def test_kernels_of_collectives_are_left_out_and_no_others(machine: Path) -> None:
    given = switches(machine, trial=GPUS)
    assert given["--kernel-name-base"] == "function" and given["--kernel-name"].startswith("regex:")
    chosen = re.compile(given["--kernel-name"].removeprefix("regex:"))
    for name in (
        "ncclKernel_AllReduce_RING_LL_Sum_float", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "horovod_nccl_x",
        "ncclSymkDevKernel_ReduceScatter", "two_shot_all_reduce_kernel", "multimem_all_gather_kernel",
        "oneShotAllReduceKernel", "allreduce_bf16",
    ):  # fmt: skip
        assert not chosen.search(name), name
    for name in ("vectorized_elementwise_kernel", "sm90_xmma_gemm_bf16", "small_reduce_kernel", "all_gemms", "gather"):
        assert chosen.fullmatch(name), name


def test_metrics_are_those_of_the_gpu_that_this_ncu_knows(machine: Path) -> None:
    given = switches(machine)
    assert given["--metrics"].split(",") == [name for name in HOPPER if name not in NEWER]
    assert given["--apply-rules"] == "yes" and given["--section"] == ncu.RULE_SECTIONS[-1]
    fake_tools.ncu(machine / "bin", "2025.3.1.0", tuple(name.partition(".")[0] for name in HOPPER))
    given = switches(machine, "kernels=50")
    assert given["--metrics"].split(",") == HOPPER and given["--launch-count"] == "50"
    given = switches(machine, "metrics=dram__bytes.sum")
    assert given["--metrics"] == "dram__bytes.sum" and "--section" not in given and given["--apply-rules"] == "no"


# ---- names that `ncu --query-metrics` of two versions lists ----

LISTED = json.loads((OWN / "ncu-metrics.json").read_text())
"""Names by version and chips."""
CAPABILITIES = {"gv": (7, 0), "tu": (7, 5), "ga100": (8, 0), "ga10": (8, 6), "ad": (8, 9), "gh": (9, 0)}
"""By the first characters of a chip."""
# Chips that share the memory of their host.
WITHOUT_DRAM = ("gv11b", "ga10b")
LACKING = {
    ("2022.3", "ad"): {*NEWER},
    ("2022.3", "gh"): {*NEWER},
    ("2024.1", "ad"): {"sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_elapsed"},
    ("2024.1", "gh"): {"sm__ops_path_tensor_src_fp16_dst_fp32.sum"},
}
"""Names that a version does not list for an architecture."""


@pytest.mark.parametrize(
    ("version", "chip"), [(version, chip) for version in LISTED for chips in LISTED[version] for chip in chips.split()]
)
def test_every_name_is_listed_for_its_chip(version: str, chip: str) -> None:
    (listed,) = (names for chips, names in LISTED[version].items() if chip in chips.split())
    start = next(start for start in CAPABILITIES if chip.startswith(start))
    names = set(metrics_of(CAPABILITIES[start]))
    of_dram = {name for name in names if name.startswith("dram__")} if chip in WITHOUT_DRAM else set()
    assert names - set(listed) == of_dram | (names & LACKING.get((version, start), set()))


# ---- when it cannot ----


@pytest.mark.parametrize(
    ("admin_only", "capabilities", "fails"), [(1, 0, True), (0, 0, False), (1, 1 << 21, False), (1, 1 << 38, False)]
)
def test_without_permission_to_count_it_is_refused_with_the_ways_out(
    machine: Path, monkeypatch: pytest.MonkeyPatch, admin_only: int, capabilities: int, fails: bool
) -> None:
    (machine / "params").write_text(f"RmProfilingAdminOnly: {admin_only}\n", encoding="ascii")
    (machine / "status").write_text(f"CapEff:\t{capabilities:016x}\n", encoding="ascii")
    monkeypatch.setattr(tool, "STATUS", machine / "status")
    words = ("ERR_NVGPUCTRPERM", "--profiling", "NVreg_RestrictProfilingToAdminUsers=0")
    with refused("permission-missing", *words) if fails else contextlib.nullcontext():
        profiler().check(GPU)


# ---- what comes out ----


def reported(machine: Path, log: str = "", content: bytes = b"report") -> Path:
    here = folder(machine, log)
    (here / "ncu").mkdir()
    (here / "ncu" / "batch_16.ncu-rep").write_bytes(content)
    return here


@pytest.mark.parametrize(("limit", "reached"), [(4, False), (3, True)])
def test_the_report_is_exported_with_a_note_of_what_was_counted(machine: Path, limit: int, reached: bool) -> None:
    files = profiler(f"kernels={limit}").collect(GPU, reported(machine))
    assert [file.name for file in files] == [
        "batch_16.ncu-rep", "batch_16.csv", "rules_batch_16.csv", "collected.json",
    ]  # fmt: skip
    note = json.loads(files[-1].read_text(encoding="utf-8"))
    assert (note["limit_reached"], note["ncu_version"]) == (reached, "2022.3.0.0")
    assert any("kernels=N" in problem for problem in note["problems"]) == reached


def test_what_rules_say_is_read_with_its_table_and_a_report_beside_it_is_not(machine: Path) -> None:
    report, table, rules, _ = profiler().collect(GPU, reported(machine))
    assert rules == rules_file(table)
    found = read(table)
    assert [(one.rule, one.speedup, one.text) for one in found.rules] == [
        ("TheoreticalOccupancy", 0.4, 'Few, "very few" warps.')
    ] * 3
    assert found.kernels["duration_ns"].tolist() == [1000, 2000, 3000]
    opened = open_sources(report.parent)
    assert [file.name for file in opened.counter_files] == ["batch_16.csv"]
    assert [(len(one.kernels), len(one.rules)) for one in opened.counters] == [(3, 3)]


@pytest.mark.parametrize(
    ("log", "code", "facts"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user", "permission-missing", ("ERR_NVGPUCTRPERM", "--profiling")),
        ("==WARNING== No kernels were profiled.", "run-incomplete", ("No kernels were profiled", "log.txt")),
        ("==PROF== Connected", "run-incomplete", ("log.txt",)),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_what_ncu_says_is_the_reason_for_no_report_or_no_kernel(
    machine: Path, monkeypatch: pytest.MonkeyPatch, log: str, code: Code, facts: tuple[str, ...], there: bool
) -> None:
    monkeypatch.setenv("FAKE_NCU", "no-kernels")
    here = reported(machine, log) if there else folder(machine, log=log)
    with refused(code, here, *facts):
        profiler().collect(GPU, here)
