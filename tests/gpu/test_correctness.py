"""The checks of tests/gpu/correctness.py: on a CUDA device all of them, on a CPU those that apply to it."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from support.cli import ROOT

SCRIPT = ROOT / "tests/gpu/correctness.py"
# What a tiny model on a CPU has, without compiling anything.
ON_CPU = ("attention fp32", "fp8 layer", "lamb", "adamw", "model fp32 fast")


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_correctness", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE = loaded()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", MODULE.CHECKS)
def test_numbers_of_the_device_are_those_of_the_reference(name: str) -> None:
    found = MODULE.outcome(MODULE.CHECKS[name], DEVICE)
    if found["outcome"] == "skipped":
        pytest.skip(found["why"])
    assert found["outcome"] == "passed", found["why"]


@pytest.mark.parametrize("name", ON_CPU)
def test_a_check_passes_on_a_cpu_with_an_error_that_is_not_0(name: str) -> None:
    found = MODULE.outcome(MODULE.CHECKS[name], torch.device("cpu"))
    assert found["outcome"] == "passed", found["why"]
    assert 0 < found["error"] <= found["limit"] and found["compared"] > 1


def test_checks_fail_on_wrong_numbers_and_skip_what_a_cpu_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for name in ("kernels bf16", "attention bf16 flash", "fused lamb", "attention kernels"):
        assert MODULE.outcome(MODULE.CHECKS[name], cpu)["outcome"] == "skipped", name
    right = MODULE.attend
    monkeypatch.setattr(MODULE, "attend", lambda qkv, where, p, **how: right(qkv, where, p, **how) * 1.001)
    assert MODULE.outcome(MODULE.CHECKS["attention fp32"], cpu)["outcome"] == "failed"
    monkeypatch.setattr(MODULE, "attend", lambda qkv, where, p, **how: right(qkv * float("nan"), where, p, **how))
    assert MODULE.outcome(MODULE.CHECKS["attention fp32"], cpu)["outcome"] == "failed"
    steps = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: [steps(self), steps(self)])
    assert MODULE.outcome(MODULE.CHECKS["adamw"], cpu)["outcome"] == "failed"
    monkeypatch.setattr(MODULE, "Lamb", lambda groups, lr: None)
    found = MODULE.outcome(MODULE.CHECKS["lamb"], cpu)
    assert found["outcome"] == "failed" and "AttributeError" in found["why"]


def test_the_script_prints_one_document_and_skips_what_is_late() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--seconds", "0", "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["skipped"] == list(MODULE.CHECKS) and not found["passed"]
