"""What the doctor says of the profilers, on machines of all kinds."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from bench.machine.devices import Devices, Gpu
from bench.machine.doctor import MISSING, OK, WARNING, Check, examine
from bench.profilers import PROFILERS
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


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no tool at all; `tool` adds to it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("BERTBENCH_REVISION", raising=False)
    return tmp_path


def tool(machine: Path, name: str, version: str) -> None:
    path = machine / "bin" / name
    answers = f"case \"$*\" in *--help*) echo '{HELP}' ;; *) echo '{version}' ;; esac"
    path.write_text(f"#!/bin/sh\n{answers}\n", encoding="ascii")
    path.chmod(0o755)


def row(devices: Devices | UsageError, name: str) -> Check:
    return {check.name: check for check in examine(devices)}[name]


def test_the_machine_is_described_on_a_gpu_on_a_cpu_and_where_the_devices_are_wrong() -> None:
    gpu = row(CUDA, "GPU 0")
    assert gpu.state == OK and "H200" in gpu.detail and "GPU-1" in gpu.detail
    assert (row(CPU, "GPU").state, row(CPU, "GPU").detail) == (MISSING, CPU.note)
    error = UsageError("option-value", "CUDA_VISIBLE_DEVICES='7'")
    assert (row(error, "GPU").state, row(error, "GPU").detail) == (WARNING, str(error))
    names = [check.name for check in examine(error)]
    assert {f"profiler {name}" for name in PROFILERS} <= set(names) and len(names) == len(set(names))


def test_without_a_gpu_torch_and_nsys_work_and_the_counters_do_not(machine: Path) -> None:
    tool(machine, "nsys", "NVIDIA Nsight Systems version 2024.5.1.113")
    tool(machine, "ncu", "Version 2022.3.0.0")
    assert row(CPU, "profiler torch").state == OK
    nsys = row(CPU, "profiler nsys")
    assert nsys.state == OK and "2024.5.1" in nsys.detail and "NVTX ranges" in nsys.detail
    for name in ("ncu", "nvprof"):
        counters = row(CPU, f"profiler {name}")
        assert counters.state == MISSING and "GPU" in counters.detail and "--profiler torch" in counters.remedy


def test_a_tool_or_package_that_is_not_installed_is_absent_with_its_remedy(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = row(CPU, "profiler nsys")
    assert nsys.state == MISSING and "nsys" in nsys.detail and "NVIDIA's apt repository" in nsys.remedy
    tool(machine, "kubectl", "no version is asked for")
    assert row(CPU, "tool kubectl") == Check("tool kubectl", OK, str(machine / "bin" / "kubectl"))
    assert row(CPU, "tool sbatch").state == MISSING and "--out FILE" in row(CPU, "tool sbatch").remedy
    real = metadata.version

    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    for name in ("package torch", "profiler torch"):
        assert row(CPU, name).state == MISSING and row(CPU, name).remedy == "make setup"
    assert row(CPU, "package h5py").state == OK


def test_a_refusal_of_a_profiler_is_split_into_the_problem_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: NsightSystems, trial: Trial) -> None:
        assert (trial.kind, trial.device, trial.profiler) == ("profile", "cuda", "nsys")
        raise MissingToolError("tool-missing", "nsys cannot write reports without a link: sudo ln -s /a/host: /b")

    monkeypatch.setattr(NsightSystems, "check", refuse)
    refused = Check("profiler nsys", MISSING, "nsys cannot write reports without a link", "sudo ln -s /a/host: /b")
    assert row(CUDA, "profiler nsys") == refused


def client(machine: Path, name: str, answer: str) -> None:
    """A client of a container engine: knows its own version, and does `answer` when it must ask its engine."""
    path = machine / "bin" / name
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} version 28.2.2" && exit\n{answer}\n')
    path.chmod(0o755)


REFUSED = "echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock.' >&2; exit 1"
HANGS = "exec /bin/sleep 300"


@pytest.mark.parametrize(
    ("docker", "podman", "state", "detail", "remedy"),
    [
        (REFUSED, None, MISSING, "does not answer", "systemctl start docker"),
        (HANGS, None, MISSING, "did not end within 0.5 s", "systemctl start docker"),
        (REFUSED, "exit 0", OK, "podman version 28.2.2", ""),
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
    monkeypatch.setattr("bench.machine.doctor._TOOL_SECONDS", 0.5 if docker == HANGS else 60.0)
    for name, answer in (("docker", docker), ("podman", podman)):
        if answer is not None:
            client(machine, name, answer)
    found = row(CPU, "tool docker")
    assert found.state == state and detail in found.detail and remedy in found.remedy
    monkeypatch.setenv("BERTBENCH_REVISION", "3049ef4")  # in the image
    assert "tool docker" not in [check.name for check in examine(CPU)]


def test_looking_at_the_profilers_imports_no_torch() -> None:
    code = (
        "import sys; from bench.machine.devices import find_devices; from bench.machine.doctor import examine\n"
        "assert len(examine(find_devices('cpu'))) > 10\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=False)
    assert done.returncode == 0
