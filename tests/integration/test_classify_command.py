"""`bertbench train classify FILE`: from a CSV to predictions, statistics and a model beside it, and back from each."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from support.commands import called
from support.datasets import THINGS, colours_and_animals, write_csv, write_vocabulary
from support.refusals import check_refusal

from bert.tasks.classify.store import read_runs

SMALL = (
    "--preset", "tiny", "--steps", "12", "--global-batch-size", "16", "--micro-batch-size", "16", "--learning-rate",
    "3e-3", "--device", "cpu", "--threads", "1", "--precision", "fp32", "--dropout", "0", "--eval-every", "6",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CSV that was trained on, and all that this left."""
    folder = tmp_path_factory.mktemp("classify")
    write_vocabulary(folder, *THINGS)
    write_csv(folder / "things.csv", colours_and_animals(300), header=("what", "kind"))
    words = ("--text", "what", "--label", "kind", "--vocab", folder / "vocab.txt", "--seq-len", "24")
    log = ("--logfile", folder / "log.txt")
    done = called("train", "classify", folder / "things.csv", *words, *SMALL, *log, "--out", folder / "run")
    for told in ("encoding    utf-8", "evaluation after 6 steps"):
        assert told in done.stderr
    assert " ".join(done.stdout.split()).count("test accuracy") == 1 and "finished; next" in done.stdout
    return folder


def test_a_training_leaves_all_files_beside_the_csv(trained: Path) -> None:
    names = {path.name for path in trained.iterdir() if not path.name.startswith(".")}
    assert names >= {
        "things.sqlite", "things_testset_predictions.csv", "things_train_test_stats.json", "things_trained_model",
    }  # fmt: skip
    model = {path.name for path in (trained / "things_trained_model").iterdir()}
    assert model == {"config.json", "model.safetensors", "vocab.txt", "results.json"}
    stats = json.loads((trained / "things_train_test_stats.json").read_text())
    assert len(stats["curve"]) == 12 and [one["applied_steps"] for one in stats["evaluations"]] == [6, 12]
    with (trained / "things_testset_predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["prediction", "true_label"] and len(rows) == stats["test"]["texts"] == 30
    right = sum(row["prediction"] == row["true_label"] for row in rows) / len(rows)
    assert right == pytest.approx(stats["test"]["accuracy"])
    log = (trained / "log.txt").read_text()
    places = [log.index(part) for part in ("encoding ", "evaluation after 6 steps", "samples/s ", "finished; next")]
    assert places == sorted(places)


def test_a_finished_training_that_is_called_again_adds_no_time_and_no_result(trained: Path, tmp_path: Path) -> None:
    before = json.loads((trained / "things_train_test_stats.json").read_text())
    assert read_runs(trained / "things.sqlite") == [before]
    called("train", "classify", trained / "things.sqlite", *SMALL, "--out", trained / "run")
    # One of the two attempts made the 12 updates: its wall time is that of the training.
    results = [json.loads(path.read_text()) for path in (trained / "run").glob("trials/*/result.json")]
    assert len(results) == 2
    steps = [result["steps_measured"] + result["steps_warmup"] for result in results]
    assert sorted(steps) == [0, 12]
    assert before["run"]["seconds"] == round(results[steps.index(12)]["wall_seconds"], 1)
    assert json.loads((trained / "things_train_test_stats.json").read_text()) == before
    assert read_runs(trained / "things.sqlite") == [before]


def test_a_model_is_not_tested_with_texts_that_were_divided_anew(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "again")
    things = tmp_path / "again" / "things.sqlite"
    things.unlink()
    called("data", "csv", trained / "things.csv", "--text", "what", "--label", "kind", "--vocab", trained / "vocab.txt",
         "--max-seq-length", "24", "--seed", "7", "--output", things)  # fmt: skip
    before = (tmp_path / "again/things_train_test_stats.json").read_bytes()
    refusal = called("train", "classify", things, *SMALL, "--out", tmp_path / "again/run", code=2)
    assert "[data-mismatch]" in refusal.stderr
    assert (tmp_path / "again/things_train_test_stats.json").read_bytes() == before


def test_results_are_printed_from_a_file_and_a_page_is_written(trained: Path, tmp_path: Path) -> None:
    found = json.loads(called("report", trained / "things.sqlite", "--json", "--out", tmp_path / "page").stdout)
    assert found["labels"] == ["colour", "animal", "number"] and found["texts"] == 30
    assert (tmp_path / "page/report.html").is_file()


def test_the_model_predicts_other_texts(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("what,kind\nred green blue,colour\n\ncat dog,\none two three\n")
    done = called("predict", "classify", "--checkpoint", trained / "things_trained_model",
                  "--data", tmp_path / "new.csv",
                "--text", "what", "--label", "kind", "--device", "cpu")  # fmt: skip
    assert "left out 1 rows (line 3: blank line)" in " ".join(done.stdout.split())
    assert "of 1 labels in the file" in done.stdout
    with (tmp_path / "new_predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["line"], row["true_label"]) for row in rows] == [("2", "colour"), ("4", ""), ("5", "")]
    assert list(rows[0]) == ["line", "prediction", "probability", "true_label"]


def test_a_training_prepares_a_csv_as_data_csv_does_and_takes_a_database_as_it_is(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, *THINGS)
    path = write_csv(tmp_path / "d.csv", colours_and_animals(60), header=("what", "kind"))
    words = ("--text", "what", "--label", "kind", "--vocab", tmp_path / "vocab.txt", "--validation", "0.3")
    called("data", "csv", path, *words)
    done = called("train", "classify", path, *words, "--prep-only")
    assert "validate 18, test 6" in done.stderr and "time        finished before" in done.stderr
    done = called("train", "classify", path, *words[:-2], "--prep-only", code=2)
    check_refusal(done.stderr, "folder-occupied", "validation 0.3, not 0.1")


def test_what_cannot_be_is_refused_without_a_traceback(trained: Path, tmp_path: Path) -> None:
    said = called("train", "classify", trained / "things.sqlite", "--text", "other", code=2).stderr
    check_refusal(said, "option-not-applicable", "things.sqlite")
    said = called("train", "classify", trained / "things.csv", code=2).stderr
    check_refusal(said, "option-missing", "--vocab")
    words = ("--vocab", trained / "vocab.txt")
    said = called("train", "classify", trained / "things.csv", "--text", "x", *words, code=2).stderr
    check_refusal(said, "columns-missing", "'x'")
    words = ("--checkpoint", tmp_path, "--data", trained / "things.csv", "--text", "what")
    said = called("predict", "classify", *words, code=2).stderr
    check_refusal(said, "path-missing", tmp_path, "*_trained_model")
    model = shutil.copytree(trained / "things_trained_model", tmp_path / "model")
    pieces = (model / "vocab.txt").read_text().splitlines()
    (model / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2], ""]))
    words = ("--checkpoint", model, "--data", trained / "things.csv", "--text", "what")
    check_refusal(called("predict", "classify", *words, code=2).stderr, "vocabulary-mismatch", model / "vocab.txt")
