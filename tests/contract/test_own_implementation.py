"""docs/how-to/measure.md: its example is measured beside bertbench, and wrong names are refused."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import ROOT, run_to_end
from support.refusals import check_refusal, refused

from bench.implementations import check_implementation
from common.errors import Code
from records.run import RunDirectory

PAGE = ROOT / "docs/how-to/measure.md"
NAME = "my_bert:MyImplementation"


def example() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return code


def throughput(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command as installed: nothing but the repository is on the Python path."""
    program = "import sys; sys.path.remove(''); from bench.cli.main import main; main()"
    argv = [sys.executable, "-c", program, "throughput", "pretrain", *words]
    return run_to_end(argv, code, cwd=folder, PYTHONPATH=str(ROOT))


@pytest.mark.slow
def test_the_example_of_the_page_is_measured_beside_bertbench(tmp_path: Path) -> None:
    (tmp_path / "my_bert.py").write_text(example(), encoding="utf-8")
    done = throughput(
        tmp_path, "--preset", "tiny", "--seq-lens", "32", "--precisions", "fp32", "--device", "cpu", "--devices", "1",
        "--batch-sizes", "2", "--start", "1", "--stop", "4", "--rounds", "1",
        "--implementations", "bertbench", NAME, "--out", "run",
    )  # fmt: skip
    assert NAME in done.stdout and "bertbench" in done.stdout
    run = RunDirectory(tmp_path / "run")
    with run.results_csv.open(newline="", encoding="utf-8") as file:
        rows = {row["implementation"]: row for row in csv.DictReader(file)}
    assert {name: row["status"] for name, row in rows.items()} == {"bertbench": "ok", NAME: "ok"}
    assert all(float(row["step_time_ms"]) > 0 and float(row["samples_per_second"]) > 0 for row in rows.values())
    own, ours = (run.trial(rows[name]["trial_id"]) for name in (NAME, "bertbench"))
    assert ":" not in own.path.name
    steps = own.read_steps(0)
    counts = ("samples", "real_tokens", "padded_tokens", "predicted_positions")
    assert [[row[name] for name in counts] for row in steps] == [
        [row[name] for name in counts] for row in ours.read_steps(0)
    ], "both train on the same batches"
    # An untrained model knows nothing: ln(30522) of the word and ln 2 of the next sentence, and noise.
    assert 9 < steps[0]["loss"] < 13


def test_a_name_that_leads_nowhere_is_refused_before_any_trial(tmp_path: Path) -> None:
    words = ("--implementations", NAME, "--preset", "tiny", "--device", "cpu", "--out", "run")
    done = throughput(tmp_path, *words, code=2)
    assert not (tmp_path / "run").exists()
    check_refusal(done.stderr, "option-value", NAME, "my_bert", tmp_path)


MODULES = {
    "lacks": "class Partial:\n    def check(self, trial): ...\n    def build(self, *parts): ...\n",
    "needs": "class Two:\n    def __init__(self, size): ...\n",
    "breaks": "1 / 0\n",
    "leaves": "import sys\nsys.exit(4)\n",
}
REFUSALS: dict[str, tuple[Code, str]] = {
    "lacks:Partial": ("option-value", "adapter"),
    "lacks:Whole": ("option-value", "Whole"),
    "needs:Two": ("option-value", "size"),
    "breaks:X": ("option-value", "ZeroDivisionError"),
    "leaves:X": ("option-value", "SystemExit"),
    "nowhere:X": ("option-value", "nowhere"),
    "brtbench": ("option-choice", "bertbench, "),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_wrong_implementation_is_refused_with_what_is_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, fact = REFUSALS[name]
    with refused(code, name, fact):
        check_implementation(name)
