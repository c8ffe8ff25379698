"""action.yml and bench/github_action.sh on a stand-in for a runner: real comparisons of runs whose times are known."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hosts import ROOT
from support.fake_run import write_sweep

SMALL: dict[str, Any] = {"rounds": 3, "implementations": ("bertbench",), "worlds": (1,), "batches": (8,)}
# It records its call, leaves the prepared run where the action wants it, and is bertbench itself for all but measuring.
BERTBENCH = f"""#!/usr/bin/env bash
[[ $1 == throughput ]] || exec {sys.executable} -m bench.cli.main "$@"
printf '%s\\n' "$@" >"$FIXTURES/called"
[[ ${{CODE:-0}} == 2 ]] && echo 'bertbench: no such task [option-choice]' >&2 && exit 2
mkdir -p "$(dirname "${{@: -1}}")" && cp -r "$FIXTURES/measured" "${{@: -1}}"
exit "${{CODE:-0}}"
"""


class Done(NamedTuple):
    """What a step left."""

    code: int
    outputs: dict[str, str]
    summary: str
    called: list[str]


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A workspace with the action checked out beside it."""
    (tmp_path / "action/bench").mkdir(parents=True)
    (tmp_path / "action/.venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / "bench/github_action.sh", tmp_path / "action/bench")
    program = tmp_path / "action/.venv/bin/bertbench"
    program.write_text(BERTBENCH, encoding="ascii")
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


def runs(folder: Path, scale: float, **changes: Any) -> None:
    """A baseline, and a measurement whose steps take `scale` times as long."""
    write_sweep(folder / "work/baseline", **SMALL | changes)
    write_sweep(folder / "measured", scale=scale, **SMALL | changes)


def step(runner: Path, **inputs: str) -> Done:
    """Run the step that measures as a runner does: the inputs of action.yml, with their defaults, as its `env` says."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    given = {name: inputs.pop(name.replace("-", "_"), one.get("default", "")) for name, one in action["inputs"].items()}
    (measure,) = [one for one in action["runs"]["steps"] if one.get("id") == "measure"]
    summary, outputs = runner / "summary.md", runner / "outputs.txt"
    environment = {
        **os.environ,
        **{name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], text)
           for name, text in measure["env"].items()},
        "GITHUB_ACTION_PATH": str(runner / "action"), "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(outputs), "FIXTURES": str(runner), "PYTHONPATH": str(ROOT), **inputs,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", measure["run"]], cwd=runner / "work", env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = outputs.read_text().splitlines() if outputs.exists() else []
    called = (runner / "called").read_text().splitlines() if (runner / "called").exists() else []
    return Done(
        done.returncode, dict(line.split("=", 1) for line in lines), summary.read_text() if summary.exists() else "",
        called,
    )  # fmt: skip


def test_a_regression_fails_and_the_summary_has_its_table(runner: Path) -> None:
    runs(runner, 1.2)
    done = step(runner, arguments="pretrain --preset mini\n  --rounds 3", baseline="baseline")
    assert done.code == 1 and done.outputs == {"run": "runs/throughput", "verdict": "regression"}
    assert done.called == ["throughput", "pretrain", "--preset", "mini", "--rounds", "3", "--out", "runs/throughput"]
    assert (runner / "work/runs/throughput/sweep.json").exists()  # kept, for whoever stores it
    lines = done.summary.splitlines()
    assert lines[0] == "### bertbench compare: regression"
    (rule,) = [place for place, line in enumerate(lines) if re.fullmatch(r"\|( -+:? \|)+", line)]
    heading, row = ([cell.strip() for cell in lines[place].strip("|").split(" | ")] for place in (rule - 1, rule + 1))
    found = dict(zip(heading, row, strict=True))
    assert found["verdict"] == "regression" and float(found["new/old time"].split()[0]) == pytest.approx(1.2, rel=0.02)


def test_without_a_baseline_the_run_is_measured_and_kept(runner: Path) -> None:
    runs(runner, 1.0)
    for baseline in ("", "none"):
        done = step(runner, arguments="pretrain", baseline=baseline, out=f"run{baseline}")
        assert done.code == 0 and done.outputs == {"run": f"run{baseline}", "verdict": "no-baseline"}
        assert "no baseline" in done.summary


def test_the_action_hands_inputs_to_no_shell_and_reads_all_of_them() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    install, measure = action["runs"]["steps"]
    assert "${{" not in install["run"] + measure["run"]  # a value could hold commands
    used = re.findall(r"inputs\.([\w-]+)", " ".join([*install["env"].values(), *measure["env"].values()]))
    assert {*used} == {*action["inputs"]}
    script = (ROOT / "bench/github_action.sh").read_text(encoding="utf-8")
    assert {*re.findall(r"\bINPUT_\w+", script)} == {*measure["env"]}
    target = install["run"].rpartition(" ")[2]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
