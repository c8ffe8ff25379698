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
from common.errors import UsageError

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


def test_looking_at_the_profilers_imports_no_torch() -> None:
    code = (
        "import sys; from bench.machine.devices import find_devices; from bench.machine.doctor import examine\n"
        "assert len(examine(find_devices('cpu'))) > 10\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=False)
    assert done.returncode == 0
