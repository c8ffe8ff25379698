"""hf-trainer against ours: the same weights, batches, optimizer and schedule give the same losses."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pretraining_shards import PIECES
from support.refusals import refused
from support.training_runs import Recorder, run, settings, shards

from common.errors import MissingToolError

pytest.importorskip("transformers", reason="needs transformers: pip install 'bertbench[hf]'")
HAS_ACCELERATE = importlib.util.find_spec("accelerate") is not None
needs_accelerate = pytest.mark.skipif(not HAS_ACCELERATE, reason="needs accelerate: pip install 'bertbench[hf]'")


def train_theirs(wanted: Any, folder: Path, recorder: Recorder) -> Any:
    from bench.implementations.hf_trainer import run_training
    from bert.observer import Observer
    from bert.parallel.base import SingleStrategy
    from bert.train.base_run import RunRequest

    return run_training(RunRequest(wanted, folder, SingleStrategy(), Observer(), recorder.should_stop, recorder))


@needs_accelerate
@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "adamw", "grad_accum_steps": 2, "max_grad_norm": 0.5, "activation_checkpointing": True}],
    ids=["lamb", "adamw, clipped, accumulated, recomputed"],
)
def test_losses_rates_and_scores_are_ours(
    data: Path, tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bert.train.base_run import Run

    make = Run.training
    # Trainer takes the mean of the micro-batches' means: without weights ours does so, too.
    monkeypatch.setattr(Run, "training", lambda *given: dataclasses.replace(make(*given), weighted=False))
    wanted = settings(data, steps=4, dropout=0.0, eval_every=2, **changes)
    ours, theirs = Recorder(), Recorder()
    run(wanted, tmp_path / "ours", ours)
    outcome = train_theirs(wanted, tmp_path / "theirs", theirs)
    first, second = ([event.loss for event in one.progress] for one in (ours, theirs))
    # LAMB scales the step of each weight by its norm, and theirs has query, key and value apart.
    assert second == pytest.approx(first, abs=2e-4 if wanted.optimizer == "lamb" else 1e-5) and len(second) == 4
    assert [event.learning_rate for event in theirs.progress] == [event.learning_rate for event in ours.progress]
    assert [event.applied_steps for event in theirs.of("Evaluated")] == [2, 4]
    for mine, other in zip(ours.of("Evaluated"), theirs.of("Evaluated"), strict=True):
        assert other.evaluation.values == pytest.approx(mine.evaluation.values, abs=1e-4)
    assert outcome.finished and outcome.samples_seen == 4 * wanted.global_batch_size
    last_is_best = [event.best for event in theirs.of("Evaluated")][-1]
    assert (outcome.best is not None) == last_is_best  # the weights of an earlier one are nowhere


@needs_accelerate
def test_the_weights_are_saved_as_ours_at_the_end_only(data: Path, tmp_path: Path) -> None:
    from bert.checkpoints.files import load_model

    stopped = Recorder(stop_after=2)
    wanted = settings(data, steps=3, dropout=0.0)
    outcome = train_theirs(wanted, tmp_path / "run", stopped)
    assert not outcome.finished and outcome.checkpoint is None and "hf-trainer saves no" in stopped.warnings
    whole = Recorder()
    outcome = train_theirs(wanted, tmp_path / "run", whole)
    assert outcome.finished and outcome.checkpoint is not None and outcome.checkpoint.name == "step-0000003"
    _, state = load_model(outcome.checkpoint)
    reference = Recorder()
    run(wanted, tmp_path / "ours", reference)
    _, expected = load_model(tmp_path / "ours" / "step-0000003")
    assert whole.losses.keys() == {0, 1, 2} and state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, atol=1e-4, rtol=0, msg=name)
    again = Recorder()  # a finished run is not trained once more, nor are its weights said to be of other settings
    outcome = train_theirs(settings(data, steps=3, dropout=0.0, learning_rate=1.0), tmp_path / "run", again)
    assert outcome.finished and outcome.applied_steps == 3 and outcome.checkpoint == tmp_path / "run" / "step-0000003"
    assert again.losses == {} and "give another --out" in again.warnings
    torch.testing.assert_close(load_model(outcome.checkpoint)[1], state, atol=0, rtol=0)


@needs_accelerate
def test_a_run_of_theirs_is_opened_by_its_folder_and_only_weights_that_are_there_are_the_best(tmp_path: Path) -> None:
    from bert.tasks.base import DataIdentity
    from bert.train.resume import find_weights

    wanted = settings(shards(tmp_path / "data"), steps=3, dropout=0.0, eval_every=1)
    recorder = Recorder()
    outcome = train_theirs(wanted, tmp_path / "run/checkpoints", recorder)
    best = max(range(3), key=lambda number: -recorder.of("Evaluated")[number].evaluation.values["mlm_loss"]) + 1
    assert (outcome.best is None) == (best != 3) and outcome.best == recorder.of("Saved")[-1].best
    for place in (tmp_path / "run", tmp_path / "run/checkpoints", outcome.checkpoint):
        found = find_weights(place, DataIdentity(source="anything"), recorder, "a model is needed")
        assert found.state is None and found.path == outcome.checkpoint


def test_without_accelerate_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "accelerate" else found(name))
    with refused("package-missing", "accelerate", "pip install 'bertbench[hf]'", kind=MissingToolError):
        train_theirs(settings("synthetic"), tmp_path, Recorder())


@needs_accelerate
def test_other_strategies_are_refused(tmp_path: Path) -> None:
    wanted = settings("synthetic")
    from bench.implementations.hugging_face import HuggingFaceImplementation
    from records.trial import Trial

    object.__setattr__(wanted, "strategy", "fsdp")
    with refused("unsupported-combination", "single", "ddp", "'fsdp'"):
        train_theirs(wanted, tmp_path, Recorder())
    with refused("unsupported-combination", "single", "ddp", "'fsdp'"):
        HuggingFaceImplementation().check(Trial(implementation="hf-trainer", strategy="fsdp"))


@needs_accelerate
def test_a_given_model_is_trained_evaluated_and_saved_as_transformers_does(data: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForMaskedLM

    from bert.parallel.base import SingleStrategy
    from bert.tasks.pretrain.batches import TestShards
    from bert.tasks.pretrain.task import PretrainTask
    from bert.train.feed import data_spec

    shape = {
        "vocab_size": len(PIECES), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 130, "pad_token_id": 1, "type_vocab_size": 1,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    given = tmp_path / "roberta"
    AutoModelForMaskedLM.from_config(AutoConfig.for_model("roberta", **shape)).save_pretrained(given)
    wanted = settings(
        data, steps=3, eval_every=3, optimizer="adamw", model=str(given), model_weights="safetensors", preset="roberta"
    )
    recorder = Recorder()
    outcome = train_theirs(wanted, tmp_path / "run", recorder)
    assert outcome.finished and outcome.checkpoint is not None

    def logits(model: Any, batch: Any) -> torch.Tensor:
        ids, mask = batch.tensors["input_ids"].clone(), batch.tensors["attention_mask"]
        ids[mask == 0] = 1
        return model(input_ids=ids, attention_mask=mask).logits.flatten(0, 1)[batch.tensors["masked_positions"]]

    spec = data_spec(wanted, SingleStrategy())
    first = next(iter(PretrainTask().batches(spec)))
    with torch.no_grad():
        before = F.cross_entropy(
            logits(AutoModelForMaskedLM.from_pretrained(given), first), first.tensors["masked_labels"]
        )
        assert wanted.grad_accum_steps == 1
        assert recorder.progress[0].loss == pytest.approx(float(before), abs=1e-5)
        saved = AutoModelForMaskedLM.from_pretrained(outcome.checkpoint).eval()
        rows = list(TestShards(spec).batches())
        right = [logits(saved, batch).argmax(-1) == batch.tensors["masked_labels"] for batch in rows]
        total = sum(
            float(F.cross_entropy(logits(saved, batch), batch.tensors["masked_labels"], reduction="sum"))
            for batch in rows
        )
    count = sum(len(each) for each in right)
    (evaluated,) = recorder.of("Evaluated")
    assert evaluated.evaluation.values == pytest.approx(
        {"mlm_loss": total / count, "mlm_accuracy": float(torch.cat(right).float().mean())}, abs=1e-5
    )
