"""Nsight Compute as a profiler: what it is told, and what is said when it cannot or did not."""

import itertools
import json
import re
import tarfile
from pathlib import Path

import pytest
from support import fake_ncu
from support.refusals import refused

from analysis.counters import rules_file
from analysis.open import open_sources
from analysis.readers.ncu import read
from bench.profilers import ncu, permission
from bench.profilers.base import Scope, parse_options
from bench.profilers.ncu import NsightCompute
from bench.profilers.ncu_metrics import NEWER, metrics_of
from common.errors import Code
from records.trial import Trial

CPU = Trial(kind="profile", profiler="ncu", device="cpu", start_iteration=3, stop_iteration=6)
GPU = Trial(kind="profile", profiler="ncu", device="cuda", start_iteration=3, stop_iteration=6, micro_batch_size=16)
GPUS = Trial(kind="profile", profiler="ncu", device="cuda", start_iteration=3, stop_iteration=6, world_size=2)

# Of the metrics for 9.0 ncu 2022.3 has all but the newer ones.
HOPPER = metrics_of((9, 0))[0]
OLD_HOPPER = tuple(name.partition(".")[0] for name in HOPPER if name not in NEWER)
ALL_HOPPER = tuple(name.partition(".")[0] for name in HOPPER)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU of compute capability 9.0, the stand-in of ncu 2022.3, and permission to count."""
    path = fake_ncu.install(tmp_path / "bin", metrics=OLD_HOPPER)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(ncu, "first_gpu_capability", lambda: (9, 0))
    monkeypatch.setattr(permission, "DRIVER_PARAMETERS", tmp_path / "driver/params")
    monkeypatch.setattr(permission, "DRIVER_VERSION", tmp_path / "driver/version")
    (tmp_path / "driver").mkdir()
    return tmp_path


def profiler(*words: str) -> NsightCompute:
    return NsightCompute(parse_options(words))


def scope(tmp_path: Path, trial: Trial = GPU, log: str = "") -> Scope:
    directory = tmp_path / "trial" / "profile"
    directory.mkdir(parents=True, exist_ok=True)
    (directory.parent / "log.txt").write_text(log, encoding="utf-8")
    return Scope(trial=trial, directory=directory)


def switches_of(command: list[str]) -> dict[str, str]:
    """Return the switches before the program "app", with the word behind each that is no switch itself."""
    given, words = {}, command[1 : command.index("app")]
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            given[word] = "" if after.startswith("--") else after
    return given


def told(machine: Path, *words: str, trial: Trial = GPU) -> dict[str, str]:
    return switches_of(profiler(*words).wrap(["app", "--x"], scope(machine, trial)))


# ---- what it is told ----


@pytest.mark.parametrize("version", list(fake_ncu.SWITCHES))
@pytest.mark.parametrize("trial", [GPU, GPUS])
def test_every_switch_is_one_that_the_version_knows(machine: Path, version: str, trial: Trial) -> None:
    fake_ncu.install(machine / "bin", version, OLD_HOPPER)
    command = profiler().wrap(["app", "--x"], scope(machine, trial))
    assert Path(command[0]).name == "ncu" and command[-2:] == ["app", "--x"]
    assert set(switches_of(command)) <= set(fake_ncu.SWITCHES[version].split())


def test_the_window_is_recorded_in_all_processes_into_one_report(machine: Path) -> None:
    given = told(machine)
    assert (given["--target-processes"], given["--profile-from-start"]) == ("all", "off")
    assert (given["--replay-mode"], given["--launch-count"], given["--launch-skip"]) == ("kernel", "2000", "0")
    assert (given["--cache-control"], given["--clock-control"]) == ("all", "none")
    assert given["--export"] == str(machine / "trial" / "profile" / "ncu" / "batch_16")
    assert (machine / "trial" / "profile" / "ncu").is_dir()  # ncu makes no folders


@pytest.mark.parametrize(
    ("version", "switch", "prefix"), [("2022.3.0.0", "--kernel-name", "regex:"), ("2020.1.0", "--kernel-regex", "")]
)
def test_kernels_of_collectives_are_left_out_and_no_others(
    machine: Path, version: str, switch: str, prefix: str
) -> None:
    fake_ncu.install(machine / "bin", version, OLD_HOPPER)
    given = told(machine, trial=GPUS)
    assert given[f"{switch}-base"] == "function" and given[switch].startswith(prefix)
    chosen = re.compile(given[switch].removeprefix(prefix))
    for name in (
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "ncclSymkDevKernel_ReduceScatter",
        "horovod_nccl_x",
        "two_shot_all_reduce_kernel",
        "multimem_all_gather_kernel",
        "oneShotAllReduceKernel",
        "allreduce_bf16",
    ):
        assert not chosen.search(name), name
    for name in ("vectorized_elementwise_kernel", "sm90_xmma_gemm_bf16", "small_reduce_kernel", "all_gemms", "gather"):
        assert chosen.fullmatch(name), name


def test_an_ncu_that_cannot_choose_kernels_is_refused_for_several_ranks(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fake_ncu.SWITCHES, "9999.1", fake_ncu._COMMON)
    monkeypatch.setitem(fake_ncu.REPLAY, "9999.1", ())
    fake_ncu.install(machine / "bin", "9999.1", OLD_HOPPER)
    assert not [name for name in told(machine) if name.startswith("--kernel")]
    with refused("tool-version", "NCCL", "--devices 1"):
        told(machine, trial=GPUS)


def test_of_several_ranks_the_first_is_counted_unless_all_are_asked_for(machine: Path) -> None:
    assert "--devices" not in told(machine)
    assert told(machine, trial=GPUS)["--devices"] == "0"
    assert "--devices" not in told(machine, "ranks=all", trial=GPUS)


def test_an_ncu_that_knows_every_metric_gets_all(machine: Path) -> None:
    fake_ncu.install(machine / "bin", "2025.3.1.0", ALL_HOPPER)
    given = told(machine)
    assert told(machine, "rules=yes") == given and given["--metrics"].split(",") == HOPPER
    given = told(machine, "rules=no")
    assert given["--metrics"].split(",") == HOPPER and "--section" not in given and given["--apply-rules"] == "no"


def test_metrics_that_this_ncu_does_not_know_are_left_out(machine: Path) -> None:
    given = told(machine)
    asked = given["--metrics"].split(",")
    assert asked == [name for name in HOPPER if name not in NEWER]
    assert "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed" in asked


def test_where_the_chip_cannot_be_asked_the_words_of_ncu_are_shown(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "no-query")
    with refused("tool-failed", "--query-metrics", "Driver could not be loaded"):
        told(machine)


def test_rules_come_with_the_sections_of_this_ncu_that_they_need(machine: Path) -> None:
    command = profiler().wrap(["app"], scope(machine))
    assert [after for word, after in itertools.pairwise(command) if word == "--section"] == [
        "SpeedOfLight", "LaunchStats", "Occupancy",
    ]  # fmt: skip
    assert switches_of(command)["--apply-rules"] == "yes"
    for words in (("rules=no",), ("replay=range",), ("metrics=dram__bytes.sum",)):
        given = told(machine, *words)
        assert given["--apply-rules"] == "no" and "--section" not in given


def test_an_ncu_that_knows_none_of_the_metrics_is_told(machine: Path) -> None:
    fake_ncu.install(machine / "bin", metrics=("other__metric",))
    with refused("tool-version", "9.0"):
        told(machine)


def test_options_change_what_is_recorded(machine: Path) -> None:
    given = told(machine, "kernels=50", "skip=7", "metrics=dram__bytes.sum", "cache-control=none", "clock-control=base")
    assert (given["--launch-count"], given["--launch-skip"]) == ("50", "7")
    assert (given["--cache-control"], given["--clock-control"]) == ("none", "base")
    assert given["--metrics"] == "dram__bytes.sum" and "--section" not in given


def test_range_replay_takes_the_capture_range_and_every_kernel_in_it(machine: Path) -> None:
    given = told(machine, "replay=range")
    assert given["--replay-mode"] == "range" and given["--nvtx-include"] == "bertbench@bertbench:capture"
    assert "--nvtx" in given and not {"--kernel-name", "--profile-from-start"} & set(given)  # refused by real ones
    assert "--nvtx-include" not in told(machine)


def test_a_range_has_no_metrics_of_patched_sass(machine: Path) -> None:
    fake_ncu.install(machine / "bin", "2025.3.1.0", ALL_HOPPER)
    assert told(machine, "rules=no")["--metrics"].split(",") == HOPPER
    asked = told(machine, "replay=range")["--metrics"].split(",")
    assert "l1tex__throughput.avg.pct_of_peak_sustained_elapsed" in asked
    assert not [name for name in asked if "__sass_" in name]


def test_the_observer_makes_the_ranges_that_were_asked_for(machine: Path) -> None:
    assert profiler().observer(scope(machine), 0).model_phases
    assert not profiler("nvtx=off").observer(scope(machine), 0).model_phases


@pytest.mark.parametrize(
    ("capability", "number"),
    [((7, 0), 70), ((7, 2), 70), ((7, 5), 75), ((8, 0), 80), ((8, 6), 86), ((8, 7), 86), ((8, 9), 89), ((9, 0), 90),
     ((10, 0), 100), ((10, 3), 100), ((11, 0), 100), ((12, 0), 120), ((12, 1), 120)],
)  # fmt: skip
def test_every_architecture_has_its_own_names(capability: tuple[int, int], number: int) -> None:
    names, _ = metrics_of(capability)
    assert len(names) == len(set(names))
    fp16 = "fp16" if number <= 80 else "fma_type_fp16"
    tensor = "sm__pipe_tc_cycles_active" if number == 100 else "sm__inst_executed_pipe_tensor"
    bases = {name.partition(".")[0] for name in names}
    assert {
        "sm__inst_executed_pipe_fma",
        f"sm__inst_executed_pipe_{fp16}",
        tensor,
        "sm__inst_executed_pipe_xu",
    } <= bases
    assert {"gpc__cycles_elapsed.max", "gpu__time_duration.sum", "dram__bytes.sum"} <= set(names)
    levels = {"l1tex__throughput", "lts__throughput", "dram__throughput", "gpu__compute_memory_throughput"}
    assert {f"{unit}__t_bytes.sum{end}" for unit in ("l1tex", "lts") for end in ("", ".peak_sustained")} <= set(names)
    assert levels | {"sm__throughput", "sm__warps_active", "sm__pipe_fp64_cycles_active"} <= bases
    assert ("sm__pipe_tensor_cycles_active_v2" in bases) == (number == 89)


# ---- when it cannot ----


def test_a_machine_that_can_passes(machine: Path) -> None:
    profiler().check(GPU)
    profiler("replay=range").check(GPU)


def test_a_cpu_is_refused_with_what_works_there() -> None:
    with refused("option-not-applicable", "CPU", "--profiler torch", "--profiler nsys"):
        profiler().check(CPU)


def test_a_missing_ncu_is_told_with_the_remedy(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    with refused("tool-missing", "ncu", "Nsight Compute"):
        profiler().check(GPU)


@pytest.mark.parametrize(
    ("version", "capability", "needed"),
    [("2020.1.0", (9, 0), "2022.3"), ("2020.1.0", (8, 6), "2020.2"), ("2022.3.0.0", (10, 0), "2025.1")],
)
def test_an_ncu_older_than_the_gpu_is_told(
    machine: Path, monkeypatch: pytest.MonkeyPatch, version: str, capability: tuple[int, int], needed: str
) -> None:
    monkeypatch.setattr(ncu, "first_gpu_capability", lambda: capability)
    fake_ncu.install(machine / "bin", version, OLD_HOPPER)
    with refused("tool-version", f"ncu {version}", needed):
        profiler().check(GPU)


def test_a_version_that_fits_the_gpu_passes(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "first_gpu_capability", lambda: (8, 0))
    fake_ncu.install(machine / "bin", "2020.1.0", OLD_HOPPER)
    profiler().check(GPU)


@pytest.mark.parametrize(
    ("found", "code", "facts"),
    [
        ("NVML is not there", "device-missing", ("compute capability", "NVML is not there")),
        ((6, 1), "device-unsupported", ("7.0", "6.1", "--profiler nvprof")),
        ((99, 0), "device-unsupported", ("99.0", "--with metrics")),
    ],
)
def test_a_gpu_without_metrics_is_told(
    machine: Path, monkeypatch: pytest.MonkeyPatch, found: object, code: Code, facts: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ncu, "first_gpu_capability", lambda: found)
    with refused(code, *facts):
        profiler().check(GPU)
    profiler("metrics=dram__bytes.sum").check(GPU)


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (("stacks",), "option-unknown", ("--with stacks", "ncu", "cache-control, ", "skip")),
        (("kernels=0",), "option-value", ("--with kernels=0",)),
        (("skip=-1",), "option-value", ("--with skip=-1",)),
        (("metrics=a,,b",), "option-value", ("--with metrics", "ncu --query-metrics")),
        (("replay=app",), "option-choice", ("--with replay=app", "kernel, range")),
        (("clock-control=boost",), "option-choice", ("--with clock-control=boost", "base, none")),
        (("rules=1",), "option-choice", ("--with rules=1", "yes, no")),
        (("ranks=1",), "option-choice", ("--with ranks=1", "first, all")),
        (("nvtx=all",), "option-choice", ("--nvtx all", "bertbench, emit")),
    ],
)
def test_a_wrong_option_is_told(machine: Path, words: tuple[str, ...], code: Code, facts: tuple[str, ...]) -> None:
    with refused(code, *facts):
        profiler(*words).check(GPU)


def test_range_replay_is_refused_where_it_would_hang_or_is_not_known(machine: Path) -> None:
    with refused("unsupported-combination", "replay=range", "2 ranks", "--devices 1"):
        profiler("replay=range").check(GPUS)
    fake_ncu.install(machine / "bin", "2020.1.0")
    with refused("tool-version", "--with replay=range", "2020.1.0", "2022.1 "):
        profiler("replay=range", "metrics=dram__bytes.sum").check(GPU)


@pytest.mark.parametrize(
    ("admin_only", "capabilities", "driver", "fails"),
    [
        (1, 0, 570, True),
        (0, 0, 570, False),
        (1, 1 << 21, 470, False),
        (1, 1 << 38, 570, False),
        (1, 1 << 38, 550, True),
    ],
)
def test_without_permission_to_count_it_is_refused_with_the_ways_out(
    machine: Path, monkeypatch: pytest.MonkeyPatch, admin_only: int, capabilities: int, driver: int, fails: bool
) -> None:
    (machine / "driver" / "params").write_text(f"RmProfilingAdminOnly: {admin_only}\n", encoding="ascii")
    (machine / "driver" / "version").write_text(f"NVRM version: NVIDIA UNIX Kernel Module  {driver}.86.10\n", "ascii")
    (machine / "status").write_text(f"CapEff:\t{capabilities:016x}\n", encoding="ascii")
    monkeypatch.setattr(permission, "STATUS", machine / "status")
    if not fails:
        return profiler().check(GPU)
    with refused("permission-missing") as caught:
        profiler().check(GPU)
    problem, _, remedy = str(caught.value).partition(": ")
    assert "ERR_NVGPUCTRPERM" in problem and problem.count("(") == problem.count(")")
    for way in ("start_container.sh --profiling", "NVreg_RestrictProfilingToAdminUsers=0", "root", "container.md"):
        assert way in remedy
    return None


# ---- what comes out ----


def reported(machine: Path, trial: Trial = GPU, log: str = "", content: bytes = b"report") -> Scope:
    here = scope(machine, trial, log)
    (here.directory / "ncu").mkdir()
    (here.directory / "ncu" / f"batch_{trial.micro_batch_size}.ncu-rep").write_bytes(content)
    return here


def test_the_report_is_exported_with_a_note_of_what_was_counted(machine: Path) -> None:
    files = profiler("kernels=4").collect(reported(machine))
    assert [file.name for file in files] == [
        "batch_16.ncu-rep", "batch_16.csv", "rules_batch_16.csv", "collected.json",
    ]  # fmt: skip
    note = json.loads(files[-1].read_text(encoding="utf-8"))
    assert (note["kernels"], note["kernel_limit"], note["limit_reached"]) == (3, 4, False)
    assert (note["page"], note["ncu_version"], note["compute_capability"]) == ("raw", "2022.3.0.0", "9.0")
    assert note["metrics"] == ["gpu__time_duration.sum"]
    assert not any("kernels=N" in problem for problem in note["problems"])


@pytest.mark.parametrize(
    ("words", "mode", "rules"), [((), "ok", 3), (("rules=no",), "ok", 0), ((), "no-raw", 3), ((), "no-details", 0)]
)
def test_what_rules_say_stands_in_a_file_beside_the_kernels(
    machine: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], mode: str, rules: int
) -> None:
    here = reported(machine)
    profiler().collect(here)  # an earlier export, whose rules do not stay
    monkeypatch.setenv("FAKE_NCU", mode)
    _, table, *beside, note = profiler(*words).collect(here)
    assert [file.name for file in beside] == ["rules_batch_16.csv"] * (mode == "ok" and not words)
    assert rules_file(table).exists() == bool(beside)
    found = read(table)
    assert (len(found.kernels), len(found.rules)) == (3, rules)
    collected = json.loads(note.read_text(encoding="utf-8"))
    assert collected["rules"] == rules
    assert any("rules could not be exported" in text for text in collected["problems"]) == (mode == "no-details")
    assert {(one.rule, one.speedup, one.text) for one in found.rules} <= {
        ("TheoreticalOccupancy", 0.4, 'Few, "very few" warps.')
    }
    assert found.kernels["duration_ns"].tolist() == [1000, 2000, 3000]


@pytest.mark.parametrize("packed", [False, True])
def test_rules_are_read_with_their_table_and_a_report_beside_it_is_not(machine: Path, packed: bool) -> None:
    report, table, rules, _ = profiler().collect(reported(machine))
    folder = report.parent
    if packed:
        with tarfile.open(machine / "ncu.tar", "w") as tar:
            tar.add(folder, "trial/ncu")
    found = open_sources(machine / "ncu.tar" if packed else folder)
    assert [file.name for file in found.counter_files] == ["batch_16.csv"]
    assert [(len(one.kernels), len(one.rules)) for one in found.counters] == [(3, 3)]
    assert [file.name for file in open_sources(rules, table).counter_files] == ["batch_16.csv"]
    rules.write_text("no table")
    found = open_sources(table)
    assert [(len(one.kernels), len(one.rules)) for one in found.counters] == [(3, 0)]
    assert any(rules.name in problem for problem in found.problems)


def test_the_table_is_one_that_other_programs_read(machine: Path) -> None:
    import pandas as pd

    _, table, rules, _ = profiler().collect(reported(machine))
    kernels, said = (pd.read_csv(path, comment="=", dtype=str) for path in (table, rules))
    assert kernels["gpu__time_duration.sum"].tolist() == ["usecond", "1", "2", "3"]
    assert said["Rule Name"].tolist() == ["TheoreticalOccupancy"] * 3


def test_a_reached_limit_is_noted(machine: Path) -> None:
    note = json.loads(profiler("kernels=3").collect(reported(machine))[-1].read_text(encoding="utf-8"))
    assert note["limit_reached"]
    assert any("3 kernels" in problem and "kernels=N" in problem for problem in note["problems"])


def test_where_the_raw_page_cannot_be_exported_the_details_page_is(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "no-raw")
    note = json.loads(profiler().collect(reported(machine))[-1].read_text(encoding="utf-8"))
    assert (note["page"], note["kernels"]) == ("details", 3)


@pytest.mark.parametrize(
    ("log", "code", "facts"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user", "permission-missing", ("ERR_NVGPUCTRPERM", "--profiling")),
        ("==WARNING== No kernels were profiled.", "trace-without-work", ("--with skip",)),
        ("==WARNING== No ranges were profiled.", "trace-without-work", ("--with skip",)),
        ("==ERROR== Failed to open/create lock file /tmp/x.", "write-failed", ("TMPDIR",)),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "tool-failed", ("DCGM",)),
        ("No space left on device", "disk-full", ()),
        ("==PROF== Connected", "run-incomplete", ()),
    ],
)
def test_a_missing_report_is_told_with_the_likely_reason(
    machine: Path, log: str, code: Code, facts: tuple[str, ...]
) -> None:
    here = scope(machine, log=log)
    with refused(code, here.directory / "ncu", *facts, "log.txt"):
        profiler().collect(here)


def test_a_report_without_kernels_is_told_with_the_reason(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "no-kernels")
    with refused("permission-missing", "batch_16.ncu-rep", "kernel", "ERR_NVGPUCTRPERM"):
        profiler().collect(reported(machine, log="==ERROR== ERR_NVGPUCTRPERM"))


def test_an_empty_report_is_told(machine: Path) -> None:
    with refused("file-empty", "batch_16.ncu-rep"):
        profiler().collect(reported(machine, content=b""))


def test_a_truncated_report_is_told_in_the_words_of_ncu(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "bad-import")
    with refused("file-damaged", "batch_16.ncu-rep") as caught:
        profiler().collect(reported(machine))
    assert "Failed to load report" in str(caught.value)


def test_an_export_that_hangs_is_ended_and_not_tried_on_another_page(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "hangs")
    monkeypatch.setattr(ncu, "_IMPORT_SECONDS", 0.5)
    with refused("tool-failed", "0.5 s"):
        profiler().collect(reported(machine))
