"""nvprof, with a stand-in for the tool and for NVML: no machine of this project has nvprof."""

import os
import sqlite3
from pathlib import Path

import pytest
from support.refusals import refused

from bench.profilers.nvprof import Nvprof
from records.trial import Trial

GPUS = Trial(kind="profile", device="cuda", start_iteration=3, stop_iteration=5, world_size=2)


@pytest.fixture
def nvprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nvprof on PATH and a GPU of compute capability 7.5."""
    path = tmp_path / "bin" / "nvprof"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho Release version 12.8\n", encoding="ascii")
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


@pytest.mark.parametrize(("value", "works"), [((3, 7), True), ((7, 5), True), ((8, 0), False), ("NVML is lost", False)])
def test_only_gpus_before_ampere_are_accepted(
    value: tuple[int, int] | str, works: bool, nvprof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability(monkeypatch, value)
    if works:
        return Nvprof().check(GPUS)
    with refused("device-unsupported", str(value), "--profiler nsys", "--profiler ncu"):
        Nvprof().check(GPUS)
    return None


def test_the_launcher_is_followed_and_recording_waits_for_the_range(nvprof: Path, tmp_path: Path) -> None:
    argv = Nvprof().wrap(["python", "-m", "bench.launch.torchrun"], GPUS, tmp_path / "p")
    assert argv[0] == str(nvprof) and argv[-3:] == ["python", "-m", "bench.launch.torchrun"]
    files = f"--export-profile {tmp_path}/p/nvprof-%p.nvvp --log-file {tmp_path}/p/nvprof-%p.log"
    assert all(part in " ".join(argv) for part in ("--profile-child-processes", "--profile-from-start off", files))


def test_files_of_processes_without_gpu_work_are_left_out(tmp_path: Path) -> None:
    profile(tmp_path, 1, kernels=0)
    (tmp_path / "nvprof-2.nvvp").touch()
    ranks = [profile(tmp_path, 3), profile(tmp_path, 4, table="CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")]
    (tmp_path / "nvprof-3.log").write_text("==3== Profiling application: python\n")
    assert Nvprof().collect(GPUS, tmp_path) == ranks


@pytest.mark.parametrize("kept", [None, 0, 0.5, 0.99])
def test_a_rank_without_a_whole_file_is_reported_with_the_words_of_nvprof(kept: float | None, tmp_path: Path) -> None:
    profile(tmp_path, 1, kernels=200)
    (tmp_path / "nvprof-3.log").write_text("==3== Error: unified memory profiling failed.\n")
    if kept is not None:
        cut = profile(tmp_path, 2, kernels=200)
        content = cut.read_bytes()
        cut.write_bytes(content[: int(kept * len(content))])
    with refused("run-incomplete", "1 of 2 ranks", "unified memory", "log.txt"):
        Nvprof().collect(GPUS, tmp_path)
