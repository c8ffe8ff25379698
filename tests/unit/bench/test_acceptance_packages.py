"""gpu-acceptance names every package that is missing, at once, and its lists are those of what the code imports."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import acceptance_packages
from support.absent import without
from support.acceptance_packages import ELSEWHERE, NEEDED, PARTS, TOOLS, VARIANTS, notice, refusal
from support.acceptance_script import ABOUT, SCRIPT, acceptance
from support.acceptance_steps import left_out, steps
from support.cli import ROOT

OWN = {"analysis", "bench", "bert", "common", "records"}


def imported() -> set[str]:
    """Every module of other projects that the packages import anywhere, by its first name."""
    found: set[str] = set()
    for package in OWN:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                    found.add(node.module.partition(".")[0])
    return found - OWN - set(sys.stdlib_module_names)


def test_every_package_that_the_code_imports_has_its_place() -> None:
    assert imported() <= {*NEEDED, *PARTS, *ELSEWHERE}, "say in acceptance_packages whether a step needs it"
    places = [set(NEEDED), set(PARTS), set(ELSEWHERE)]
    assert sum(map(len, places)) == len(set.union(*places)), "one place each"


def test_every_dependency_of_the_project_has_its_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[>;\[ ]", text)[0].lower() for text in project["dependencies"]}
    packages = {name: {one.lower() for one in found} for name, found in metadata.packages_distributions().items()}
    placed = set.union(*(packages.get(name, set()) for name in (*NEEDED, *PARTS, *ELSEWHERE)))
    assert wanted <= placed, "say in acceptance_packages whether a step needs it"
    for name, package in (NEEDED | PARTS).items():
        installed = {one.replace("_", "-") for one in packages.get(name, {package})}  # Triton is not for every machine
        assert package in installed


def test_each_part_is_needed_by_a_step_or_a_variant(tmp_path: Path) -> None:
    plan = steps(tmp_path)
    asked = {name for step in plan for name in step.needs} | set(VARIANTS)
    assert asked == {*PARTS, *TOOLS}
    words = {word for step in plan for word in step.command}
    assert {word for dropped in VARIANTS.values() for word in dropped} <= words


@pytest.mark.parametrize("absent", [
    ["msgspec", "nvtx", "tyro", "docstring_parser", "typeguard"], ["pynvml", "nvtx", "pandas"], ["typeguard"],
])  # fmt: skip
def test_all_that_is_missing_is_named_in_one_line_before_anything_runs(absent: list[str], tmp_path: Path) -> None:
    environment = without(absent, tmp_path / "site", ROOT)
    command = [sys.executable, str(SCRIPT), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and done.stdout == "", done.stderr
    said = done.stderr.replace(",", " ").replace("(", " ").split()
    # The package to install too.
    assert set(absent) <= set(said) and {(NEEDED | PARTS)[name] for name in absent} <= set(said), done.stderr
    # What this Python lacks of itself, such as Triton, is named too; "torch" and "pytest" are words of the remedy.
    look = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))"
    others = sorted({*NEEDED, *PARTS} - set(absent))
    lacking = subprocess.run(
        [sys.executable, "-c", look, *others], env=environment, capture_output=True, text=True, check=True
    )
    assert not ({*others} - {*lacking.stdout.split(), "torch", "pytest"}) & set(said), done.stderr
    assert not (tmp_path / "out").exists()


def test_what_a_part_lacks_is_said_and_the_rest_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = acceptance()
    monkeypatch.setattr(module, "missing", lambda: ["nvtx", "transformers", "nsys"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    memory = SimpleNamespace(total_memory=141 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    monkeypatch.setattr(module, "versions", lambda: ABOUT)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    ran: list[Any] = []
    monkeypatch.setattr(module, "run_all", lambda out, plan, about: ran.append((plan, about)) or 0)
    assert module.main([str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    others = ["throughput large 512 batch 128 others", "hf", "hf-compiled"]
    assert f"transformers ({', '.join(others)}), nsys (profile nsys)" in said
    assert "nvtx (profile ncu, profile nsys, profile nvtx emit), " in said
    ((plan, about),) = ran
    assert len(plan) == len(steps(tmp_path)) and about["lacking"]["transformers"] == others


def test_nothing_is_said_where_nothing_is_missing(tmp_path: Path) -> None:
    assert refusal("python", [], {}) == "" == notice([], {})
    without_tools = left_out(steps(tmp_path), ["nsys"])
    assert refusal("python", ["nsys"], without_tools) == "" and "nsys (profile nsys)" in notice(["nsys"], without_tools)


def test_programs_are_looked_for_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [name for name in acceptance_packages.missing() if name in TOOLS] == ["ncu", "nsys"]
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    assert [name for name in acceptance_packages.missing() if name in TOOLS] == ["nsys"]


@pytest.mark.parametrize("error", [ImportError("half installed"), ValueError("torch.__spec__ is None")])
def test_a_package_whose_finder_raises_is_missing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> object:
        if name == "torch":
            raise error
        return object()

    monkeypatch.setattr(acceptance_packages, "find_spec", find_spec)
    monkeypatch.setattr(acceptance_packages.shutil, "which", lambda name: name)
    assert acceptance_packages.missing() == ["torch"]
