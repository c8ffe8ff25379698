"""`bertbench train squad` and `predict squad` in real processes: one rank and two, killed and resumed, refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support import datasets
from support.cli import ROOT, run_to_end
from support.commands import called
from support.datasets import squad_settings
from support.process_runs import finish, losses
from support.refusals import check_refusal
from support.training_runs import read_log


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return datasets.squad_splits(tmp_path_factory.mktemp("squad"), "2.0", times=4)


def job(place: Path, files: dict[str, Path], name: str, **changes: Any) -> dict[str, Any]:
    wanted = squad_settings(files, **{"steps": 12, "save_every": 2, "eval_every": 6, **changes})
    return {"settings": wanted.to_json(), "folder": str(place / name), "log": str(place / f"{name}.jsonl")}


@pytest.fixture(scope="module")
def pair(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of two ranks that nothing interrupted."""
    place = tmp_path_factory.mktemp("pair")
    made = job(place, files, "pair", dropout=0.0, world_size=2, strategy="ddp")
    finish(made, place / "ranks")
    return made


def test_two_ranks_follow_the_curve_of_one_and_give_the_same_answers(
    files: dict[str, Path], tmp_path: Path, pair: dict[str, Any]
) -> None:
    alone = job(tmp_path, files, "alone", dropout=0.0, grad_accum_steps=2)
    finish(alone, tmp_path / "a")
    curves = [[float.fromhex(loss) for _, loss in losses(each)] for each in (alone, pair)]
    assert len(curves[0]) == 12 and curves[1] == pytest.approx(curves[0], rel=1e-4)
    scores = [
        [event["evaluation"] for event in read_log(Path(each["log"])) if event["event"] == "Evaluated"]
        for each in (alone, pair)
    ]
    assert len(scores[0]) == len(scores[1]) == 2 and scores[0][-1]["samples"] == 10
    odds = []
    for each in (alone, pair):
        out = tmp_path / Path(each["folder"]).name / "answers"
        words = ["--checkpoint", each["folder"], "--features", files["evaluation"], "--device", "cpu", "--out", out]
        words += ["--precision", "fp32"]
        called("predict", "squad", *words)
        odds.append(json.loads((out / "null_odds.json").read_text()))
    assert len(odds[0]) == 10 and odds[1] == pytest.approx(odds[0], abs=1e-3)


@pytest.mark.slow
def test_from_features_to_scores_by_the_script(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "my run"
    variables = {
        "DATA": str(files["training"].parent), "OUT": str(out), "PRESET": "tiny", "PRECISION": "fp32", "EPOCHS": "30",
        "EVAL_EVERY": "75",
        "CUDA_VISIBLE_DEVICES": "", "BATCH_SIZE": "8", "LEARNING_RATE": "1e-3", "WARMUP": "0.05",
    }  # fmt: skip
    done = run_to_end(["bash", ROOT / "bert" / "run_squad.sh"], cwd=tmp_path, **variables)
    assert (
        "150 of 150" in done.stdout and "F1 " in done.stdout and "bertbench predict squad --checkpoint" in done.stdout
    )
    state = json.loads((out / "train.json").read_text())
    assert state["finished"] and state["phase"] is None and state["best"]["score"] == "f1"
    assert state["best"]["value"] == 100.0 and state["evaluation"]["samples"] == 10
    assert len(list(csv.DictReader((out / "curve.csv").read_text().splitlines()))) == 150
    predictions = json.loads((out / "predictions" / "predictions.json").read_text())
    assert predictions["0-0-0"] == "Rollo" and predictions["0-1-x"] == ""
    assert {path.name for path in (out / "predictions").iterdir()} == {
        "predictions.json", "nbest_predictions.json", "null_odds.json",
    }  # fmt: skip
    dataset = files["training"].parents[1] / "dev.json"
    answers = out / "predictions/predictions.json"
    scored = called("eval", "squad", "--dataset", dataset, "--predictions", answers, "--json")
    assert json.loads(scored.stdout)["scores"]["f1"] == 100.0
    called("report", out)
    page = (out / "report" / "report.html").read_text()
    assert (
        "BERT-tiny was trained for 150 of 150 steps" in page
        and "F1, unanswerable" in page
        and "held-out MLM" not in page
    )


def test_predictions_refuse_what_was_not_trained_on_squad(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.cli.main import run
    from bert.checkpoints.files import save_model
    from bert.model.config import PRESETS
    from bert.model.heads import BertForPretraining, BertForQuestionAnswering
    from bert.tasks.squad.features import open_features

    config = PRESETS["tiny"].replace(vocab_size=open_features(files["evaluation"], "evaluation").settings.vocab_size)
    save_model(tmp_path / "pretrained", BertForPretraining(config))
    save_model(tmp_path / "other", BertForQuestionAnswering(config.replace(vocab_size=900)))
    save_model(tmp_path / "good", BertForQuestionAnswering(config))
    (tmp_path / "empty").mkdir()
    for name, features, code, facts in (
        ("nowhere", "evaluation", "path-missing", ["nowhere"]),
        ("empty", "evaluation", "checkpoint-missing", [tmp_path / "empty"]),
        ("pretrained", "evaluation", "weights-mismatch", [2, "answer_span.output.bias"]),
        ("other", "evaluation", "vocabulary-mismatch", [900]),
        ("good", "training", "data-mismatch", ["evaluation", "training", "bertbench data squad"]),
    ):
        words = ["--checkpoint", str(tmp_path / name), "--features", str(files[features]), "--device", "cpu"]
        assert run(["predict", "squad", *words, "--out", str(tmp_path / "out")]) == 2
        check_refusal(capsys.readouterr().err, code, *facts)
    words = ["--checkpoint", str(tmp_path / "good"), "--features", str(files["evaluation"].parent), "--device", "cpu"]
    assert run(["predict", "squad", *words, "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["questions"] == 10 and len(found["written"]) == 3
    assert run(["predict"]) == 2
