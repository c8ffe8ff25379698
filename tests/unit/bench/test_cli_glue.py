"""`data glue`, `predict glue` and `eval glue` on the command line: what they print, write and refuse."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.commands import document
from support.datasets import glue_features, glue_vocabulary, make_glue
from support.refusals import check_refusal, refused

from bench.cli.main import run
from bert.tasks.glue.tables import TASKS, is_test
from bert.tasks.glue.task import read_answers, write_answers
from common.errors import Code


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return make_glue(tmp_path / "glue", ["cola", "stsb", "mnli"])


def test_data_glue_prints_a_line_for_each_table_and_what_comes_next(
    glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocab = glue_vocabulary(tmp_path)
    (glue / "CoLA" / "dev.tsv").open("a").write("gj04\t1\t\n")
    words = ["data", "glue", "--input", str(glue), "--vocab", str(vocab), "--output", str(tmp_path / "out")]
    assert run([*words, "--task", "cola"]) == 0
    shown = capsys.readouterr()
    rows = [line.split()[:4] for line in shown.out.splitlines() if line.lstrip().startswith("cola ")]
    assert rows == [["cola", "train", "12", "0"], ["cola", "dev", "12", "1"], ["cola", "test", "12", "0"]]
    assert "1 left out: another number of fields than the header, such as line 13" in shown.err
    assert "next: bertbench train glue --task cola" in shown.out
    made = document(*words, "--tasks", "cola", "stsb")
    assert [(one["settings"]["task"], one["kept"]) for one in made] == [("cola", True)] * 3 + [("stsb", False)] * 3


def test_text_of_the_training_tables_is_a_corpus_that_data_pretrain_reads(glue: Path, tmp_path: Path) -> None:
    text, words = tmp_path / "text", ["data", "glue", "--input", glue, "--tasks", "cola", "stsb", "--text"]
    assert document(*words, text) == [str(text / "cola.txt"), str(text / "stsb.txt")]
    assert (text / "stsb.txt").read_text() == "".join(f"One {n}. Two {n}.\n\n" for n in range(12))
    made = document("data", "pretrain", "--input", text, "--output", tmp_path / "data", "--shards", "1")
    assert (made["documents"], made["sentences"]) == (2, 12 + 24)
    assert run([*map(str, words), str(text), "--vocab", "v"]) == 2


def write_dev(path: Path, answers: list[str]) -> Path:
    path.write_text("index\tprediction\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(answers)))
    return path


def test_eval_glue_has_the_scores_of_the_benchmark(glue: Path, tmp_path: Path) -> None:
    words = ["eval", "glue", "--predictions", str(tmp_path / "answers.tsv")]
    write_dev(tmp_path / "answers.tsv", ["0", "1"] * 5 + ["1", "0", "1"])
    found = document(*words, "--task", "cola", "--labels", str(glue / "CoLA" / "dev.tsv"))
    assert found["scores"] == {"matthews": pytest.approx(2 / 3), "accuracy": pytest.approx(10 / 12)}
    assert (found["rows"], found["headline"], found["extra"]) == (12, "matthews", [12])
    write_dev(tmp_path / "answers.tsv", ["entailment", "neutral", "contradiction"] * 4)
    found = document(*words, "--task", "mnli", "--labels", str(glue / "MNLI" / "dev_mismatched.tsv"))
    assert found["scores"] == {"accuracy": 1.0}
    write_dev(tmp_path / "answers.tsv", ["1.0"] * 12)
    found = document(*words, "--task", "stsb", "--labels", str(glue / "STS-B" / "dev.tsv"))
    assert found["scores"] == {"pearson": None, "spearman": None, "pearson_spearman": None}


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        ("index,prediction\n0,1\n", "file-format", ["line 1"]),
        ("index\tprediction\n0\t1\n0\t1\n", "answers-invalid", ["line 3", "cola"]),
        ("index\tprediction\n0\t2\n", "answers-invalid", ["line 2", "cola", "0, 1"]),
        ("index\tprediction\n0 1\n", "answers-invalid", ["line 2", "'0 1'"]),
        ("index\tprediction\n0\t1\n", "answers-invalid", ["11 of the 12"]),
        ("", "file-empty", []),
    ],
)
def test_answers_that_cannot_be_scored_are_refused_with_their_line(
    content: str, code: Code, facts: list[str], glue: Path, tmp_path: Path
) -> None:
    path = tmp_path / "answers.tsv"
    path.write_text(content)
    with refused(code, path.name, *facts):
        document("eval", "glue", "--task", "cola", "--labels", glue / "CoLA" / "dev.tsv", "--predictions", path)


def test_answers_are_written_as_the_server_takes_them(tmp_path: Path) -> None:
    index = np.array([2, 0, 1])

    def written(task: str, split: str, *values: float) -> str:
        write_answers(tmp_path / "a.tsv", TASKS[task], split, index, np.array(values))
        return (tmp_path / "a.tsv").read_text()

    assert written("rte", "test", 1, 0, 1) == "index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tnot_entailment\n"
    assert written("stsb", "test", 5.25, -0.5, 1.23456789) == "index\tprediction\n0\t0\n1\t1.234568\n2\t5\n"
    assert "2\t5.25\n" in written("stsb", "dev", 5.25, -0.5, 1.25)
    names = {spec.answer_file(split) for spec in TASKS.values() for split in spec.splits if is_test(split)}
    assert names == {
        "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
        "WNLI.tsv", "AX.tsv",
    }  # fmt: skip
    for spec in TASKS.values():
        values = np.array([0, 1, 0]) if spec.classes else np.array([0.0, 2.5, 5.0])
        write_answers(tmp_path / "b.tsv", spec, "test", index, values)
        assert read_answers(tmp_path / "b.tsv", spec) == dict(zip(index.tolist(), values.tolist(), strict=True))


def saved_model(folder: Path, task: str) -> Path:
    import torch

    from bert.checkpoints.files import new_folder, save_model
    from bert.model.config import preset
    from bert.tasks.glue.task import GlueTask

    torch.manual_seed(0)
    pieces = len((folder.parent / "vocab.txt").read_text().splitlines())
    shape = preset("tiny").replace(vocab_size=pieces, hidden_size=16, num_heads=2, intermediate_size=32)
    with new_folder(folder) as place:
        save_model(place, GlueTask(task=task).build_model(shape))
    return folder


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("mnli", ["MNLI-dev_matched.tsv", "MNLI-dev_mismatched.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]),
        ("stsb", ["STS-B-dev.tsv", "STS-B.tsv"]),
    ],
)
def test_predict_glue_answers_every_table_and_eval_glue_finds_the_same_scores(
    glue: Path, tmp_path: Path, task: str, names: list[str]
) -> None:
    out, spec = tmp_path / "answers", TASKS[task]
    (glue / "diagnostic").mkdir()
    shutil.copy(glue / "MNLI" / "test_matched.tsv", glue / "diagnostic" / "diagnostic.tsv")
    glue_features(glue, tmp_path / "data", tasks=(task,))
    words = ("--features", tmp_path / "data", "--out", out, "--device", "cpu", "--precision", "fp32")
    made = document("predict", "glue", *words, "--checkpoint", saved_model(tmp_path / "model", task))
    assert [Path(table["written"]).name for table in made["tables"]] == names
    assert all(len((out / name).read_text().splitlines()) == 13 for name in names)
    labels = glue / spec.folder / f"{spec.evaluations[0]}.tsv"
    found = document("eval", "glue", "--task", task, "--labels", labels, "--predictions", out / names[0])["scores"]
    assert found == pytest.approx(made["tables"][0]["scores"], abs=1e-5)  # numbers have 7 digits in the file


def test_predictions_that_cannot_be_made_are_refused(
    glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    cola = str(glue_features(glue, data)["cola", "dev"])
    model = str(saved_model(tmp_path / "model", "cola"))
    words = ["predict", "glue", "--checkpoint", model, "--out", str(tmp_path / "out"), "--features"]
    for more, code, facts in (
        ([str(data)], "data-ambiguous", ["cola, mnli, stsb"]),
        ([str(tmp_path)], "data-unprepared", [tmp_path]),
        ([cola, "--batch-size", "0"], "option-value", ["--batch-size"]),
    ):
        assert run([*words, *more]) == 2
        check_refusal(capsys.readouterr().err, code, *facts)
    assert not (tmp_path / "out").exists()
