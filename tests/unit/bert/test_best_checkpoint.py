"""The best checkpoint: kept beside the latest, known to the ones after it, the same after every interruption."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.examples import DRAWS_ALL
from support.refusals import refused
from support.training_runs import Recorder, run, settings

from bert.checkpoints.read import saved_steps
from bert.tasks import make_task
from bert.tasks.base import Evaluation, deciding
from bert.tasks.pretrain.batches import TestShards
from bert.train.settings import resolve_settings

# Of the evaluations after 2, 4, ... 12 updates.
LOSSES = (5.0, 3.0, 4.0, float("nan"), 3.0, 2.5)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the evaluation after n updates find LOSSES, whatever the model."""
    updates = {"made": 0.0}
    original = TestShards.measure

    def measure(shards: TestShards, model: Any, *rest: Any) -> torch.Tensor:
        updates["made"] = run_of["recorder"].progress[-1].applied_steps
        return original(shards, model, *rest)

    def score(shards: TestShards, total: torch.Tensor) -> Evaluation:
        return Evaluation(values={"mlm_loss": LOSSES[int(updates["made"]) // 2 - 1]}, samples=5)

    monkeypatch.setattr(TestShards, "measure", measure)
    monkeypatch.setattr(TestShards, "score", score)


run_of: dict[str, Recorder] = {}


def go(data: Path, folder: Path, recorder: Recorder | None = None, **changes: Any) -> tuple[Any, Recorder]:
    run_of["recorder"] = recorder or Recorder()
    wanted = settings(data, **{"eval_every": 2, "steps": 12, "save_every": 3, "keep": 1, **changes})
    return run(wanted, folder, run_of["recorder"]), run_of["recorder"]


def test_the_best_is_saved_when_it_is_found_and_never_pruned(data: Path, tmp_path: Path, scored: None) -> None:
    outcome, recorder = go(data, tmp_path, steps=11)
    assert saved_steps(tmp_path) == [4, 11]
    assert [event.applied_steps for event in recorder.of("Saved")] == [2, 3, 4, 6, 9, 11]
    assert [event.best for event in recorder.of("Evaluated")] == [True, True, False, False, False, False]
    assert outcome.best.applied_steps == 4 and outcome.best.value == 3.0 and outcome.best.score == "mlm_loss"
    outcome, _ = go(data, tmp_path, steps=12)
    assert outcome.best.applied_steps == 12 and saved_steps(tmp_path) == [12]


@pytest.mark.more
def test_a_crash_anywhere_leaves_the_same_checkpoints_and_the_same_best(
    data: Path, tmp_path: Path, scored: None
) -> None:
    whole, heard = go(data, tmp_path / "whole")
    for crash in (3, 5, 7, 10) if DRAWS_ALL else (5,):
        folder = tmp_path / f"crash-{crash}"
        with pytest.raises(KeyboardInterrupt):
            go(data, folder, Recorder(crash_after=crash))
        outcome, recorder = go(data, folder)
        assert outcome.best == whole.best and saved_steps(folder) == saved_steps(tmp_path / "whole")
        assert recorder.losses.items() <= heard.losses.items()


def find(monkeypatch: pytest.MonkeyPatch, losses: tuple[float, ...], accuracies: tuple[float, ...]) -> None:
    """Let the next evaluations find these, whatever the model."""
    found = iter(zip(losses, accuracies, strict=True))

    def score(shards: TestShards, total: torch.Tensor) -> Evaluation:
        return Evaluation(values=dict(zip(("mlm_loss", "mlm_accuracy"), next(found), strict=True)), samples=5)

    monkeypatch.setattr(TestShards, "score", score)


def test_another_score_may_decide_and_its_checkpoint_stays(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, (5.0, 3.0, 2.0), (0.1, 0.4, 0.3))
    outcome, _ = go(data, tmp_path, steps=6, best_by="mlm_accuracy")
    assert (outcome.best.score, outcome.best.value, outcome.best.applied_steps) == ("mlm_accuracy", 0.4, 4)
    assert saved_steps(tmp_path) == [4, 6]


@pytest.mark.parametrize("name", ["best_exact_thresh", "best_f1_thresh"])
def test_a_threshold_says_not_which_model_is_better_and_the_scores_that_do_are_named(name: str) -> None:
    wanted = resolve_settings(None, {"task": "squad", "data": "synthetic", "preset": "tiny", "steps": 2})
    task = make_task(wanted.task, wanted.task_options)
    names = ("exact, f1, HasAns_exact, ", ", best_exact, best_f1")
    with refused("option-choice", name, *names):
        deciding(task, name)
    assert deciding(task, "best_f1") == ("best_f1", True)


def test_a_best_that_is_gone_or_of_other_samples_is_looked_for_anew(data: Path, tmp_path: Path, scored: None) -> None:
    go(data, tmp_path / "run", steps=9)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    outcome, recorder = go(data, tmp_path / "other", steps=10, eval_samples=3)
    assert outcome.best.applied_steps == 10 and "on other samples" in recorder.warnings
    shutil.rmtree(tmp_path / "run" / "step-0000004")
    outcome, recorder = go(data, tmp_path / "run", steps=10)
    assert outcome.best.applied_steps == 10 and "step-0000004, the best checkpoint so far," in recorder.warnings


def test_a_run_that_was_stopped_is_evaluated_at_its_new_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, (5.0, 4.0, 3.0), (0.1, 0.2, 0.3))
    stopped, _ = go(data, tmp_path, Recorder(stop_after=5))
    assert not stopped.finished and stopped.best.applied_steps == 4
    outcome, recorder = go(data, tmp_path, steps=5)
    assert [event.applied_steps for event in recorder.of("Evaluated")] == [5]
    assert (outcome.best.applied_steps, outcome.best.value) == (5, 3.0) and saved_steps(tmp_path) == [5]
