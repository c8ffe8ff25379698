"""A task of somebody else's: a folder and one registry entry, nothing edited, and every command works for it."""

import csv
import json
import os
from pathlib import Path

import pytest
from support.cli import ROOT, bertbench, run_to_end

SOURCE = '''
"""Sentences that are about the sea or not: tab-separated text and label in, rows of word pieces out. No torch."""

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from bert.data.rows import Ragged, TokenRows
from bert.tasks.classification import ClassificationTask
from bert.tasks.commands import Outcome
from bert.tasks.base import FINE_TUNING
from bert.tasks.base import TaskOption
from common.errors import InputError

CLS, SEP, FIRST = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Of `bertbench data toy`."""

    input: Path
    """Lines of text, tab, 0 or 1."""
    output: Path = Path("runs/toy")
    """Folder for the rows."""


class Prepare:
    """Turn labelled lines into rows."""

    options = PrepareOptions
    computes = False

    def __init__(self, task):
        self.task = task

    def run(self, options, host):
        lines = [line.split("\\t") for line in options.input.read_text().splitlines()]
        words = sorted({word for text, _ in lines for word in text.split()})
        ids = [[CLS, *(FIRST + words.index(word) for word in text.split()), SEP] for text, _ in lines]
        options.output.mkdir(parents=True, exist_ok=True)
        for split, part in (("training", slice(None)), ("evaluation", slice(0, None, 3))):
            rows = Ragged.of([np.array(row) for row in ids[part]])
            np.savez(options.output / f"{split}.npz", values=rows.values, offsets=rows.offsets,
                     labels=np.array([int(label) for _, label in lines[part]]), words=len(words) + FIRST)
        following = ["train", self.task, "--data", str(options.output)]
        return Outcome(document={"lines": len(lines)}, shown=[f"{len(lines)} lines"], following=following)


class ToyTask(ClassificationTask):
    """Rows of lines, scored by accuracy."""

    name = "toy"
    commands = MappingProxyType({**ClassificationTask.commands, "data": ("toytask.task:Prepare", "lines -> rows")})
    options = (TaskOption(name="loudness", kind=int, default=3, says="nothing that matters"),)
    defaults = MappingProxyType({**FINE_TUNING, "preset": "tiny", "seq_len": 8, "epochs": 30.0, "learning_rate": 1e-3})
    seq_len = 8
    labels = 2
    scores = ("accuracy", "mood")
    deciding_score = "accuracy"
    higher_is_better = True

    def rows(self, source, split):
        path = Path(source) / f"{split}.npz"
        if not path.is_file():
            raise InputError("data-unprepared", f"{path} is missing: make it with `{self.prepare_command(8)}`")
        found = np.load(path)
        rows = Ragged(found["values"], found["offsets"])
        return TokenRows(ids=rows, second=np.diff(found["offsets"]), labels=found["labels"], columns={},
                         fingerprint=f"{split}-{len(found['labels'])}", vocab_size=int(found["words"]),
                         vocabulary="toy", pad_id=0, max_seq_length=8)

    def prepare_command(self, seq_len):
        return "bertbench data toy --input LINES.tsv"

    def next_command(self, trained):
        return trained.prediction(self.name, "--data", str(trained.folder()))

    def score(self, logits, labels):
        right = float((logits.argmax(1) == labels).mean())
        return {"accuracy": right, "mood": 2 * right}
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, its registry entry as an installed package has it, and data."""
    folder = tmp_path_factory.mktemp("toy")
    for name, text in {"task.py": SOURCE, "__init__.py": ""}.items():
        (folder / "toytask").mkdir(exist_ok=True)
        (folder / "toytask" / name).write_text(text)
    about = folder / "toytask-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toytask\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[bertbench.tasks]\ntoy = toytask.task:ToyTask\n")
    sea, land = (
        ("waves on the sea", "a ship at sea", "salt sea air"),
        ("hills and trees", "a road inland", "dry fields"),
    )
    pairs = [*zip(sea, "111", strict=True), *zip(land, "000", strict=True)]
    lines = [f"{text}\t{label}" for _ in range(8) for text, label in pairs[::3] + pairs[1::3] + pairs[2::3]]
    (folder / "lines.tsv").write_text("\n".join(lines) + "\n")
    return folder


def done(place: Path, *words: str) -> str:
    return run_to_end(bertbench(*words), cwd=place, PYTHONPATH=f"{place}{os.pathsep}{ROOT}").stdout


def refused(place: Path, *words: str) -> str:
    return run_to_end(bertbench(*words), 2, cwd=place, PYTHONPATH=f"{place}{os.pathsep}{ROOT}").stderr


def test_a_toy_task_goes_through_every_command(place: Path) -> None:
    assert json.loads(done(place, "data", "toy", "--input", "lines.tsv", "--output", "rows", "--json")) == {"lines": 48}
    training = ["train", "toy", "--data", "rows", "--out", "run", "--device", "cpu", "--devices", "1"]
    training += ["--global-batch-size", "8"]
    trained = json.loads(done(place, *training, "--loudness", "5", "--steps", "40", "--json"))
    best = trained["result"]["outcome"]["best"]
    assert best["score"] == "accuracy" and best["value"] == 1.0, "the words of a line say what it is about"
    assert trained["next"].startswith("bertbench predict toy ")

    words = ["predict", "toy", "--checkpoint", "run", "--data", "rows", "--out", "answers", "--device", "cpu", "--json"]
    predicted = json.loads(done(place, *words))
    assert predicted["scores"] == {"accuracy": 1.0, "mood": 2.0} and predicted["rows"] == 16
    with (place / "answers/predictions.tsv").open(newline="") as file:
        assert {row["prediction"] for row in csv.DictReader(file, delimiter="\t")} == {"0", "1"}
    done(place, "report", "run")
    assert "mood" in (place / "run/report/report.html").read_text()


@pytest.mark.slow
def test_its_speed_is_measured_profiled_and_reported_beside_hugging_faces_kind_of_model(place: Path) -> None:
    done(place, "data", "toy", "--input", "lines.tsv", "--output", "rows")
    few = ["--preset", "tiny", "--device", "cpu", "--devices", "1", "--batch-size", "4", "--precisions", "fp32"]
    few += ["--data", "rows", "--loudness", "7"]
    measured = done(
        place, "throughput", "toy", *few, "--implementations", "bertbench", "hf", "--max-seconds", "1",
        "--rounds", "1", "--out", "speed", "--json",
    )  # fmt: skip
    assert '"ok"' in measured
    done(place, "profile", "toy", *few, "--profiler", "torch", "--start", "3", "--stop", "5", "--out", "speed")
    done(place, "report", "speed")
    page = (place / "speed/report/report.html").read_text()
    assert "toy" in page and ">hf<" in page


def test_what_is_wrong_with_it_is_refused_as_for_the_others(place: Path) -> None:
    missing = refused(place, "train", "toy", "--data", "nothing", "--device", "cpu")
    assert missing.rstrip().endswith("[data-unprepared]")
    foreign = refused(place, "train", "glue", "--loudness", "5", "--data", "rows", "--device", "cpu")
    assert foreign.rstrip().endswith("[option-not-applicable]")
    assert "did you mean 'toy'" in refused(place, "predict", "toyy", "--data", "rows")
    for verb in ("data", "predict"):
        assert "toy" in done(place, verb, "--help")
        assert "usage" in done(place, verb, "toy", "--help").lower()
