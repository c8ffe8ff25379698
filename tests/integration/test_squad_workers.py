"""Workers that make SQuAD features: any number gives the same bytes, a killed one leaves nothing half-written."""

import json
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.cli import Cli
from support.datasets import paragraph, question, squad_summary, write_squad, write_vocabulary

from bert.tasks.squad import prepare as parts
from bert.tasks.squad.prepare import cpu_count


def large(path: Path, paragraphs: int) -> Path:
    """A file of several units of work, with ids that stand in more than one of them."""
    text = "a duke of x came here in 1066 and went there in 1067 . " * 20
    rows = []
    for number in range(paragraphs):
        place = text.index("106", number % 700)
        names = [f"q{number}", f"q{number // 2}", f"p{number % 7}"]
        rows.append(paragraph(f"{number} {text}", *(question(n, "when was it?", ("1066", place)) for n in names)))
    return write_squad(path, *rows)


@pytest.mark.parametrize("split", ["training", "evaluation"])
def test_any_number_of_workers_and_either_mode_give_the_same_bytes(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, vocab = large(tmp_path / "data.json", 300), write_vocabulary(tmp_path, "duke")
    found = set()
    for mode, workers, unit in (
        ("merge", 1, 10**6),
        ("merge", 1, 7),
        ("spill", 1, 7),
        ("merge", 2, 50),
        ("spill", 2, 50),
    ):
        monkeypatch.setattr(parts, "UNIT_QUESTIONS", unit)
        made = squad_summary(
            source, vocab, tmp_path / f"{mode}{workers}{unit}", split=split, mode=mode, workers=workers
        )
        names = {path.name for path in made.features.parent.iterdir()}
        assert names == {made.features.name, "vocab.txt", ".lock"}
        found.add((made.features.read_bytes(), json.dumps(made.counts.numbers, sort_keys=True)))
    assert len(found) == 1
    assert made.counts.get("left out: duplicate ids") == 300 - 7 + 300


@pytest.mark.parametrize("mode", ["merge", "spill"])
def test_a_killed_worker_is_named_and_leaves_nothing_half_written(mode: str, tmp_path: Path) -> None:
    if cpu_count() < 2:
        pytest.skip("needs two CPUs: there are never more workers than CPUs")
    source, vocab, out = large(tmp_path / "train.json", 15_000), write_vocabulary(tmp_path), tmp_path / "out"
    words = ["--input", str(source), "--vocab", str(vocab), "--output", str(out), "--workers", "2", "--mode", mode]
    command = Cli(tmp_path).argv("data", "squad", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        killed = False
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and not killed:
            for child in psutil.Process(process.pid).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    killed = True
                    break
            time.sleep(0.01)
        said = process.communicate(timeout=120)[1]
    assert killed and process.returncode == 2, said
    assert "[worker-lost]" in said and "Traceback" not in said
    assert {path.name for path in out.iterdir()} <= {"vocab.txt", ".lock"}
