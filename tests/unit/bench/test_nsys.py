"""Nsight Systems as a profiler: what it is told, and what is said when it cannot or did not."""

import contextlib
import sqlite3
from importlib import metadata
from pathlib import Path

import pytest
from support import fake_nsys
from support.refusals import refused

from bench.profilers import load_profiler, nsys
from bench.profilers.base import Scope
from common.errors import Code
from records.trial import Trial

CPU = Trial(kind="profile", profiler="nsys", device="cpu", start_iteration=3, stop_iteration=6)
GPU = Trial(kind="profile", profiler="nsys", device="cuda", start_iteration=3, stop_iteration=6)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH has the stand-in of version 2026.1."""
    path = fake_nsys.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def scope(tmp_path: Path, trial: Trial = CPU) -> Scope:
    directory = tmp_path / "trial" / "profile"
    directory.mkdir(parents=True, exist_ok=True)
    return Scope(trial=trial, directory=directory)


def switches_of(command: list[str]) -> dict[str, str]:
    given = command[2 : command.index("app")]
    return dict(word.split("=", 1) for word in given)


@pytest.mark.parametrize("version", ["2022.4.2", "2026.1"])
@pytest.mark.parametrize("trial", [CPU, GPU])
def test_every_switch_is_one_that_the_version_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, trial: Trial
) -> None:
    monkeypatch.setenv("PATH", str(fake_nsys.install(tmp_path / "bin", version).parent))
    command = load_profiler("nsys").wrap(["app", "--x"], scope(tmp_path, trial))
    assert command[1] == "profile" and command[-2:] == ["app", "--x"]
    assert set(switches_of(command)) <= set(fake_nsys.SWITCHES[version].split())


def test_a_percent_sign_in_the_folder_is_no_macro(tmp_path: Path, installed: Path) -> None:
    given = switches_of(load_profiler("nsys").wrap(["app"], scope(tmp_path / "100%pure")))
    assert given["--output"].endswith("/100%%pure/trial/profile/node0.nsys-rep")


def test_a_switch_that_the_version_lacks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fake_nsys.SWITCHES, "9999", "--trace --output --capture-range --nvtx-capture")
    monkeypatch.setenv("PATH", str(fake_nsys.install(tmp_path / "bin", "9999").parent))
    given = switches_of(load_profiler("nsys").wrap(["app"], scope(tmp_path)))
    assert set(given) == {"--trace", "--output", "--capture-range", "--nvtx-capture"}


def test_a_cpu_run_is_captured_between_its_nvtx_ranges(tmp_path: Path, installed: Path) -> None:
    given = switches_of(load_profiler("nsys").wrap(["app"], scope(tmp_path)))
    assert (given["--capture-range"], given["--nvtx-capture"]) == ("nvtx", "bertbench:capture@bertbench")
    assert given["--trace"] == "nvtx,osrt" and "--cuda-graph-trace" not in given
    assert (given["--sample"], given["--capture-range-end"], given["--kill"]) == ("none", "stop", "none")


def test_a_gpu_run_is_captured_by_the_profiler_api_with_every_node_of_its_graphs(
    tmp_path: Path, installed: Path
) -> None:
    given = switches_of(load_profiler("nsys").wrap(["app"], scope(tmp_path, GPU)))
    assert given["--capture-range"] == "cudaProfilerApi" and "--nvtx-capture" not in given
    assert given["--cuda-graph-trace"] == "node"
    assert given["--trace"].split(",")[:2] == ["cuda", "nvtx"]


def test_options_change_what_is_recorded(tmp_path: Path, installed: Path) -> None:
    given = switches_of(load_profiler("nsys", ("sampling", "trace=nvtx")).wrap(["app"], scope(tmp_path)))
    assert (given["--trace"], given["--sample"], given["--cpuctxsw"]) == ("nvtx", "process-tree", "process-tree")


def test_an_unknown_option_lists_the_known_ones() -> None:
    with refused("option-unknown", "--with stacks", "nvtx, sampling, trace"):
        load_profiler("nsys", ("stacks",))


@pytest.mark.parametrize(
    ("given", "code", "facts"),
    [("nvtx,bogus", "option-choice", ("'bogus'", "cuda, nvtx")), ("none", "option-value", ())],
)
def test_what_nsys_cannot_trace_is_refused_before_the_first_run(
    installed: Path, given: str, code: Code, facts: tuple[str, ...]
) -> None:
    load_profiler("nsys", ("trace=cuda-hw,nvtx",)).check(CPU)
    with refused(code, f"--with trace={given}", *facts):
        load_profiler("nsys", (f"trace={given}",)).check(CPU)


def test_every_name_that_the_help_quotes_counts_as_one_that_can_be_traced() -> None:
    text = (
        "\t-s, --sample=\n\n\t   Possible values are 'cpu'.\n\n\t-t, --trace=\n\n\t   Possible values are 'cuda',\n"
        "\t   'cuda-hw' (some chips only. See it), 'nvtx' or 'none'.\n\t   If '<api>-annotations' is selected.\n\n"
        "\t--trace-fork-before-exec=\n\n\t   Possible values are 'true'.\n"
    )
    assert nsys.traceable(text) == ("cuda", "cuda-hw", "nvtx", "none")


def test_a_help_text_without_a_list_leaves_the_judgement_to_nsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nsys.traceable("\t-t, --trace=\n\n\t   Select the API(s) to trace.\n") == ()
    nsys._check_trace("anything", ())


def test_a_missing_nsys_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("tool-missing", "nsys", "Nsight Systems"):
        load_profiler("nsys").check(CPU)


def test_an_old_nsys_is_told_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_nsys.install(tmp_path / "bin", "2021.1").parent))
    with refused("tool-version", "nsys 2021.1"):
        load_profiler("nsys").check(CPU)


@pytest.mark.parametrize(("own", "fails"), [("0.2.11", False), ("0.2.12", True), ("0.3.0", True)])
def test_nvtx_that_this_nsys_cannot_see_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, fails: bool
) -> None:
    monkeypatch.setenv("PATH", str(fake_nsys.install(tmp_path / "bin", "2022.4.2").parent))
    monkeypatch.setattr(metadata, "version", lambda name: own)
    if fails:
        with refused("tool-version", "2022.4.2", f"nvtx {own}", "nvtx==0.2.11"):
            load_profiler("nsys").check(CPU)
    else:
        load_profiler("nsys").check(CPU)


def test_newer_nsys_sees_every_nvtx(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.2.17")
    load_profiler("nsys").check(CPU)


@pytest.mark.parametrize("kind", ["emit", "dlprof"])
def test_cuda_annotations_are_refused_on_a_cpu(installed: Path, kind: str) -> None:
    with refused("option-not-applicable", f"--nvtx {kind}", "CPU", "--nvtx bertbench"):
        load_profiler("nsys", (f"nvtx={kind}",)).check(CPU)


def test_an_unknown_kind_of_ranges_is_refused(installed: Path) -> None:
    with refused("option-choice", "--nvtx all", "bertbench, emit, dlprof, off"):
        load_profiler("nsys", ("nvtx=all",)).check(CPU)


def test_sampling_is_refused_where_the_kernel_forbids_it(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = tmp_path / "paranoid"
    level.write_text("4\n", encoding="ascii")
    monkeypatch.setattr(nsys, "_PARANOID", level)
    with refused("permission-missing", "--with sampling", level, 4, "perf_event_paranoid=2"):
        load_profiler("nsys", ("sampling",)).check(CPU)
    load_profiler("nsys").check(CPU)


# ---- what comes out ----


def test_the_environment_is_taken_out_of_the_export(tmp_path: Path, installed: Path) -> None:
    here = scope(tmp_path)
    (here.directory / "node0.nsys-rep").write_bytes(b"report")
    load_profiler("nsys").collect(here)
    export = here.directory / "node0.sqlite"
    with contextlib.closing(sqlite3.connect(export)) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [
            ("StringIds",),
            ("NVTX_EVENTS",),
        ]
    assert b"home-of-someone" not in export.read_bytes()


def test_the_report_is_exported_and_empty_summaries_are_dropped(tmp_path: Path, installed: Path) -> None:
    here = scope(tmp_path)
    (here.directory / "node0.nsys-rep").write_bytes(b"report")
    files = load_profiler("nsys").collect(here)
    assert [file.name for file in files] == [
        "node0.nsys-rep",
        "node0.sqlite",
        "node0_nvtxsum.csv",
        "node0_osrt_sum.csv",
    ]
    assert not (here.directory / "node0_cuda_gpu_kern_sum.csv").exists()


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("Generating report", "trace-without-work"),
        ("Capture range started in the application.\nNo space left on device", "disk-full"),
        ("Capture range started in the application.", "run-incomplete"),
    ],
)
def test_a_missing_report_is_told_with_the_likely_reason(tmp_path: Path, installed: Path, log: str, code: Code) -> None:
    here = scope(tmp_path)
    (here.directory.parent / "log.txt").write_text(log, encoding="utf-8")
    with refused(code, here.directory, "log.txt"):
        load_profiler("nsys").collect(here)


def test_an_empty_report_is_told(tmp_path: Path, installed: Path) -> None:
    here = scope(tmp_path)
    (here.directory / "node0.nsys-rep").touch()
    with refused("file-empty", "node0.nsys-rep"):
        load_profiler("nsys").collect(here)


def test_a_report_that_cannot_be_exported_is_told_in_the_words_of_nsys(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "bad-export")
    here = scope(tmp_path)
    (here.directory / "node0.nsys-rep").write_bytes(b"half a rep")
    with refused("tool-failed", "nsys export", "exit code 1", "truncated"):
        load_profiler("nsys").collect(here)
