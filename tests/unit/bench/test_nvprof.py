"""nvprof, with a stand-in for the tool and for NVML: no machine of this project has either."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import refused

from bench.machine.environment import first_gpu_capability
from bench.profilers.base import Scope
from bench.profilers.nvprof import Nvprof
from bench.profilers.ranges import NvtxOnly, RangeObserver
from records.trial import Trial

# Plays nvprof: follows two child processes, and writes what nvprof would for each under the names it was given.
FAKE = """#!{python}
import sqlite3, subprocess, sys
words = sys.argv[1:]
options = {{}}
while words[0].startswith("--"):
    name = words.pop(0)
    bare = name in ("--profile-child-processes", "--force-overwrite")
    options[name] = "" if bare else words.pop(0)
for pid in ("101", "102"):
    out = options["--export-profile"].replace("%%", "\\0").replace("%p", pid).replace("\\0", "%")
    log = options["--log-file"].replace("%%", "\\0").replace("%p", pid).replace("\\0", "%")
    database = sqlite3.connect(out)
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (start INTEGER, end INTEGER)")
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL VALUES (1, 2)")
    database.commit()
    with open(log, "w") as file:
        print(f"=={{pid}}== NVPROF is profiling process {{pid}}", file=file)
sys.exit(subprocess.run(words).returncode)
"""


@pytest.fixture
def scope(tmp_path: Path) -> Scope:
    return scope_of(tmp_path / "50%p done", 2)


def scope_of(directory: Path, world_size: int, device: str = "cuda") -> Scope:
    directory.mkdir(exist_ok=True)
    trial = Trial(
        kind="profile",
        device=device,
        profiler="nvprof",
        start_iteration=3,
        stop_iteration=5,
        world_size=world_size,
    )
    return Scope(trial=trial, directory=directory)


@pytest.fixture
def nvprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nvprof on PATH and a GPU of compute capability 7.5."""
    path = tmp_path / "bin" / "nvprof"
    path.parent.mkdir()
    path.write_text(FAKE.format(python=sys.executable), encoding="ascii")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    capability(monkeypatch, (7, 5))
    return path


def capability(monkeypatch: pytest.MonkeyPatch, value: tuple[int, int] | str) -> None:
    monkeypatch.setattr("bench.profilers.nvprof.first_gpu_capability", lambda: value)


def profile(directory: Path, pid: int, kernels: int = 1, table: str = "CUPTI_ACTIVITY_KIND_KERNEL") -> Path:
    """What nvprof writes for one process."""
    path = directory / f"nvprof-{pid}.nvvp"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE Version (version INTEGER)")
        database.execute(f"CREATE TABLE {table} (start INTEGER, end INTEGER, name TEXT)")
        database.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?)", [(n, n + 1, "gemm" * 500) for n in range(kernels)]
        )
    database.close()
    return path


# --- check


@pytest.mark.parametrize("value", [(8, 0), (9, 0), (12, 1)])
def test_newer_gpus_are_refused_with_what_to_use_instead(
    value: tuple[int, int], nvprof: Path, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability(monkeypatch, value)
    with refused("device-unsupported", f"{value[0]}.{value[1]}", "--profiler nsys", "--profiler ncu"):
        Nvprof().check(scope.trial)


@pytest.mark.parametrize("value", [(7, 5), (3, 7)])
def test_older_gpus_are_accepted(
    value: tuple[int, int], nvprof: Path, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability(monkeypatch, value)
    Nvprof().check(scope.trial)


def test_a_capability_that_is_not_known_is_not_guessed(
    nvprof: Path, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability(monkeypatch, "NVML is lost")
    with refused("device-missing", "NVML is lost", "--profiler nsys"):
        Nvprof().check(scope.trial)


def test_on_a_cpu_it_is_refused_without_asking_for_a_gpu(
    nvprof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("bench.profilers.nvprof.first_gpu_capability")
    with refused("option-not-applicable", "CPU", "--profiler nsys", "--profiler torch"):
        Nvprof().check(scope_of(tmp_path / "p", 1, device="cpu").trial)


def test_where_it_is_not_installed_the_message_says_where_it_was(
    scope: Scope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    capability(monkeypatch, (7, 0))
    with refused("tool-missing", "nvprof", "before 13"):
        Nvprof().check(scope.trial)


def test_ranges_that_do_not_exist_are_refused(nvprof: Path, scope: Scope) -> None:
    with refused("option-choice", "--nvtx loud"):
        Nvprof({"nvtx": "loud"}).check(scope.trial)


def test_an_unknown_option_lists_those_there_are() -> None:
    with refused("option-unknown", "--with stacks", "nvtx"):
        Nvprof({"stacks": ""})


# --- compute capability


class NvmlError(Exception):
    """What NVML raises."""


def test_without_a_gpu_the_reason_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = first_gpu_capability()
    assert isinstance(answer, str) and "hides every GPU" in answer


# --- wrap


def test_the_launcher_is_followed_and_recording_waits_for_the_range(nvprof: Path, tmp_path: Path) -> None:
    argv = Nvprof().wrap(["python", "-m", "bench.launch.torchrun"], scope_of(tmp_path / "p", 1))
    assert argv[0] == str(nvprof) and argv[-3:] == ["python", "-m", "bench.launch.torchrun"]
    text = " ".join(argv)
    for part in (
        "--profile-child-processes",
        "--profile-from-start off",
        f"--export-profile {tmp_path}/p/nvprof-%p.nvvp",
        f"--log-file {tmp_path}/p/nvprof-%p.log",
    ):
        assert part in text


def test_it_makes_the_ranges_that_open_and_close_the_recording(scope: Scope) -> None:
    observer = Nvprof({"nvtx": "off"}).observer(scope, 1)
    assert isinstance(observer, RangeObserver) and not observer.model_phases
    assert Nvprof().observer(scope, 0).model_phases


def test_the_command_runs_and_what_it_writes_is_collected(nvprof: Path, scope: Scope) -> None:
    profiler = Nvprof()
    done = subprocess.run(profiler.wrap([sys.executable, "-c", "raise SystemExit(7)"], scope), check=False)
    assert done.returncode == 7
    assert [file.suffix for file in profiler.collect(scope)] == [".nvvp", ".nvvp"]


# --- collect


def test_files_of_processes_without_gpu_work_are_left_out(scope: Scope) -> None:
    profile(scope.directory, 1, kernels=0)
    (scope.directory / "nvprof-2.nvvp").touch()
    ranks = [profile(scope.directory, 3), profile(scope.directory, 4, table="CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")]
    (scope.directory / "nvprof-3.log").write_text("==3== Profiling application: python\n")
    assert Nvprof().collect(scope) == ranks


def test_no_file_at_all_is_explained(scope: Scope) -> None:
    (scope.directory / "nvprof-3.log").write_text("==3== Error: unified memory profiling failed.\n")
    with refused("run-incomplete", "0 usable .nvvp for 2 ranks", "unified memory", "log.txt"):
        Nvprof().collect(scope)


def test_files_without_a_kernel_are_explained(scope: Scope) -> None:
    profile(scope.directory, 1, kernels=0)
    profile(scope.directory, 2)
    with refused("trace-without-work", "1 usable .nvvp for 2 ranks"):
        Nvprof().collect(scope)


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_an_empty_or_truncated_file_is_named(kept: float, scope: Scope) -> None:
    profile(scope.directory, 1, kernels=200)
    cut = profile(scope.directory, 2, kernels=200)
    content = cut.read_bytes()
    cut.write_bytes(content[: int(kept * len(content))])
    with refused("file-damaged" if kept else "file-empty", "1 usable", "nvprof-2.nvvp"):
        Nvprof().collect(scope)


def test_a_file_that_is_no_database_is_named(scope: Scope) -> None:
    profile(scope.directory, 1)
    (scope.directory / "nvprof-2.nvvp").write_text("<?xml version='1.0'?><session/>" * 100)
    with refused("file-damaged", "nvprof-2.nvvp", "file is not a database"):
        Nvprof().collect(scope)


def test_missing_permission_is_told_with_the_ways_to_get_it(scope: Scope) -> None:
    profile(scope.directory, 1)
    profile(scope.directory, 2)
    (scope.directory / "nvprof-2.log").write_text(
        "==2== Warning: The user does not have permission to profile on the target device. See the following link for "
        "instructions: https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
    )
    with refused("permission-missing", "start_container.sh --profiling", "NVreg_RestrictProfilingToAdminUsers=0"):
        Nvprof().collect(scope)


# --- ranges alone


def test_ranges_alone_start_no_tool_and_collect_nothing(scope: Scope) -> None:
    profiler = NvtxOnly({"nvtx": "bertbench"})
    assert profiler.wrap(["run"], scope) == ["run"] and profiler.collect(scope) == []
    assert isinstance(profiler.observer(scope, 0), RangeObserver)
    assert profiler.environment(scope) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def test_ranges_alone_are_refused_where_they_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = scope_of(tmp_path / "p", 1, device="cpu").trial
    NvtxOnly().check(trial)
    with refused("option-not-applicable", "--nvtx emit", "CPU"):
        NvtxOnly({"nvtx": "emit"}).check(trial)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with refused("package-missing", "bertbench[gpu]"):
        NvtxOnly().check(trial)
