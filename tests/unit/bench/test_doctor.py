"""What the doctor says of the profilers, on machines of all kinds."""

import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from bench.machine.devices import Devices, Gpu
from bench.machine.doctor import MISSING, OK, WARNING, Check, examine, profiler_checks
from bench.profilers import PROFILERS, permission
from bench.profilers.base import Profiler
from bench.profilers.nsys import NsightSystems
from common.errors import MissingToolError, UsageError
from records.trial import Trial

ROOT = Path(__file__).resolve().parents[3]
CPU = Devices("cpu", (), 4, "NVML cannot be used")
CUDA = Devices("cuda", (Gpu("H200", "0", "GPU-1", 10),), 4)
HELP = "\n".join(
    f"        {name}="
    for name in ("-t, --trace", "-c, --capture-range", "--capture-range-end", "-f, --force-overwrite", "-o, --output")
)
SYS_ADMIN, PERFMON, NONE = 1 << 21, 1 << 38, 0


class Willing(Profiler):
    """A profiler that can run everywhere."""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no tool at all and a driver that says nothing; `tool` and `driver` add to it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "driver").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("BERTBENCH_REVISION", raising=False)
    monkeypatch.setattr(permission, "DRIVER_PARAMETERS", tmp_path / "driver/params")
    monkeypatch.setattr(permission, "DRIVER_VERSION", tmp_path / "driver/version")
    monkeypatch.setattr(permission, "STATUS", tmp_path / "status")
    return tmp_path


def tool(machine: Path, name: str, version: str) -> None:
    path = machine / "bin" / name
    answers = f"case \"$*\" in *--help*) echo '{HELP}' ;; *) echo '{version}' ;; esac"
    path.write_text(f"#!/bin/sh\n{answers}\n", encoding="ascii")
    path.chmod(0o755)


def driver(machine: Path, *, admin_only: int, capabilities: int, version: str = "580.65.06") -> None:
    (machine / "driver" / "params").write_text(f"EnableMSI: 1\nRmProfilingAdminOnly: {admin_only}\n")
    module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
    (machine / "driver" / "version").write_text(f"{module}  {version}  Release Build\nGCC version:  gcc 12.2.0\n")
    (machine / "status").write_text(f"Name:\tpython\nCapInh:\t{0:016x}\nCapEff:\t{capabilities:016x}\n")


def with_nvtx(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "nvtx" else real(name))


def row(devices: Devices, name: str) -> Check:
    (found,) = [check for check in profiler_checks(devices) if check.name == f"profiler {name}"]
    return found


def test_every_profiler_has_one_row_and_no_plain_tool_row_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [check.name for check in examine(CPU)]
    for name in PROFILERS:
        assert names.count(f"profiler {name}") == 1
        assert f"tool {name}" not in names


def test_without_a_gpu_torch_and_nsys_work_and_the_counters_do_not(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(machine, "nsys", "NVIDIA Nsight Systems version 2024.5.1.113")
    tool(machine, "ncu", "Version 2022.3.0.0")
    assert row(CPU, "torch").state == OK and "CPU operators" in row(CPU, "torch").detail
    nsys = row(CPU, "nsys")
    assert nsys.state == OK and "2024.5.1" in nsys.detail and "NVTX ranges" in nsys.detail
    ncu, nvprof = row(CPU, "ncu"), row(CPU, "nvprof")
    assert ncu.state == nvprof.state == MISSING
    assert "installed" in ncu.detail and "2022.3" in ncu.detail and "no GPU" in ncu.detail
    assert "installed" not in nvprof.detail
    assert "nsys for NVTX ranges" in ncu.remedy


def test_a_tool_that_is_not_installed_is_absent_with_the_ways_to_get_it() -> None:
    nsys = row(CPU, "nsys")
    assert (nsys.state, nsys.detail) == (MISSING, "nsys is not on PATH")
    assert "NVIDIA's apt repository" in nsys.remedy and "Debian non-free" in nsys.remedy
    assert "start_container.sh" in nsys.remedy


@pytest.mark.parametrize(
    ("nsys", "nvtx", "state"),
    [("2022.4.2.1", "0.2.12", MISSING), ("2022.4.2.1", "0.2.11", OK), ("2023.1.1.1", "0.2.17", OK)],
)
def test_an_old_nsys_with_a_new_nvtx_would_lose_the_ranges(
    nsys: str, nvtx: str, state: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(machine, "nsys", f"NVIDIA Nsight Systems version {nsys}")
    with_nvtx(monkeypatch, nvtx)
    found = row(CPU, "nsys")
    assert found.state == state
    assert state == OK or "pip install nvtx==0.2.11" in found.remedy


def test_what_a_profiler_says_is_split_into_the_problem_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: NsightSystems, trial: Trial) -> None:
        raise MissingToolError(
            "tool-missing", "Debian's nsys cannot write reports without a link: sudo ln -s /a/host: /b"
        )

    monkeypatch.setattr(NsightSystems, "check", refuse)
    found = row(CPU, "nsys")
    assert found.detail == "Debian's nsys cannot write reports without a link"
    assert found.remedy == "sudo ln -s /a/host: /b"


def test_the_doctor_asks_about_the_trial_that_would_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Trial] = []
    monkeypatch.setattr(NsightSystems, "check", lambda self, trial: asked.append(trial))
    row(CUDA, "nsys")
    assert {(trial.kind, trial.device, trial.profiler) for trial in asked} == {("profile", "cuda", "nsys")}


def test_sampling_that_the_kernel_forbids_is_a_note_not_a_lack(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(machine, "nsys", "NVIDIA Nsight Systems version 2024.5.1.113")
    (machine / "paranoid").write_text("4\n")
    monkeypatch.setattr("bench.profilers.nsys._PARANOID", machine / "paranoid")
    found = row(CPU, "nsys")
    assert found.state == OK and "--with sampling" in found.detail and "perf_event_paranoid=2" in found.detail
    (machine / "paranoid").write_text("2\n")
    assert "--with sampling" not in row(CPU, "nsys").detail


@pytest.mark.parametrize(
    ("admin_only", "capabilities", "version", "state", "words"),
    [
        (1, NONE, "580.65.06", MISSING, "RmProfilingAdminOnly: 1"),
        (0, NONE, "580.65.06", OK, ""),
        (1, SYS_ADMIN, "535.129.03", OK, ""),
        (1, PERFMON, "565.57.01", OK, ""),
        (1, PERFMON, "535.129.03", MISSING, "driver 535 needs CAP_SYS_ADMIN"),
    ],
)
def test_the_counters_need_the_driver_s_permission(
    admin_only: int,
    capabilities: int,
    version: str,
    state: str,
    words: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PROFILERS, "ncu", f"{__name__}:Willing")
    monkeypatch.setitem(PROFILERS, "nvprof", f"{__name__}:Willing")
    tool(machine, "ncu", "Version 2024.3.0.0")
    driver(machine, admin_only=admin_only, capabilities=capabilities, version=version)
    found, nvprof = row(CUDA, "ncu"), row(CUDA, "nvprof")
    assert found.state == state and words in found.detail and "2024.3" in found.detail
    assert nvprof.state == (OK if state == OK else WARNING)
    if state == MISSING:
        for remedy in ("--profiling", "NVreg_RestrictProfilingToAdminUsers=0", "docs/how-to/container.md"):
            assert remedy in found.remedy


def test_a_driver_that_does_not_say_who_may_read_the_counters_is_not_taken_for_a_no(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILERS, "ncu", f"{__name__}:Willing")
    found = row(CUDA, "ncu")
    assert found.state == OK and "unknown" in found.detail


def test_nvprof_on_a_new_gpu_names_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.profilers.nvprof.first_gpu_capability", lambda: (9, 0))
    found = row(CUDA, "nvprof")
    assert found.state == MISSING and "9.0" in found.detail and "--profiler nsys" in found.remedy


def test_a_profiler_that_cannot_be_imported_does_not_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILERS, "nsys", "bench.profilers.gone:Gone")
    assert row(CPU, "nsys").state == MISSING and row(CPU, "torch").state == OK


def test_without_torch_its_profiler_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    assert row(CPU, "torch").state == MISSING and row(CPU, "nvtx").state == OK


def test_wrong_visible_devices_do_not_end_the_report() -> None:
    checks = examine(UsageError("option-value", "CUDA_VISIBLE_DEVICES='7': '7' is not a GPU of this node"))
    assert {f"profiler {name}" for name in PROFILERS} <= {check.name for check in checks}


@pytest.mark.parametrize("revision", ["", "3049ef4"])
def test_inside_the_image_no_container_engine_is_missed(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tool docker" in [check.name for check in examine(CPU)]
    monkeypatch.setenv("BERTBENCH_REVISION", revision)
    assert "tool docker" not in [check.name for check in examine(CPU)]


def client(machine: Path, name: str, answer: str) -> None:
    """A client of a container engine: knows its own version, and does `answer` when it must ask its engine."""
    path = machine / "bin" / name
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} version 28.2.2" && exit\n{answer}\n')
    path.chmod(0o755)


def engine_row() -> Check:
    (found,) = [check for check in examine(CPU) if check.name == "tool docker"]
    return found


REFUSED = "echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock.' >&2; exit 1"
DENIED = "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
HANGS = "exec /bin/sleep 300"


@pytest.mark.parametrize(
    ("docker", "podman", "state", "detail", "remedy"),
    [
        (REFUSED, None, MISSING, "does not answer", "systemctl start docker"),
        (DENIED, None, MISSING, "permission denied", "usermod -aG docker"),
        (HANGS, None, MISSING, "did not end within 0.5 s", "systemctl start docker"),
        (REFUSED, DENIED, MISSING, "does not answer", "systemctl start docker"),
        (REFUSED, "exit 0", OK, "podman version 28.2.2", ""),
        ("exit 0", None, OK, "docker version 28.2.2", ""),
        (None, "exit 0", OK, "podman version 28.2.2", ""),
        (None, None, MISSING, "not on PATH", "install podman"),
    ],
)
def test_a_client_whose_engine_does_not_answer_is_no_engine(
    docker: str | None,
    podman: str | None,
    state: str,
    detail: str,
    remedy: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.machine.doctor.ENGINE_TIMEOUT_SECONDS", 0.5 if docker == HANGS else 60.0)
    for name, answer in (("docker", docker), ("podman", podman)):
        if answer is not None:
            client(machine, name, answer)
    found = engine_row()
    assert found.state == state and detail in found.detail and remedy in found.remedy
    if docker is not None:
        assert "docker version 28.2.2" in found.detail, "the client is there, and named"


def test_the_programs_that_take_jobs_are_looked_for(machine: Path) -> None:
    tool(machine, "kubectl", "no version is asked for")
    found = {check.name: check for check in examine(CPU)}
    kubectl, sbatch, az = (found[f"tool {name}"] for name in ("kubectl", "sbatch", "az"))
    assert kubectl.state == OK and kubectl.detail == str(machine / "bin" / "kubectl")
    assert sbatch.state == az.state == MISSING and "--out FILE" in sbatch.remedy


def test_looking_at_the_profilers_imports_no_torch() -> None:
    code = (
        "import sys; from bench.machine.devices import find_devices; from bench.machine.doctor import examine\n"
        "assert len(examine(find_devices('cpu'))) > 10\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=False)
    assert done.returncode == 0
