"""Question answering: losses and gradients of transformers, fine-tuning on SQuAD, exact resume, ranks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import datasets
from support.checkpoints import theirs
from support.datasets import squad_settings
from support.refusals import refused
from support.training_runs import Recorder, run
from torch import Tensor

from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.checkpoints.read import saved_steps
from bert.data.batch import Batch, BatchCounts
from bert.data.batches import DataSpec, evaluation_rows
from bert.model.config import ModelConfig, model_config
from bert.model.heads import BertForPretraining, BertForQuestionAnswering, span_losses
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.tasks.base import EvaluationSpec
from bert.tasks.squad.features import open_features
from bert.tasks.squad.task import Questions, SquadTask
from bert.train.base_run import evaluate

VOCAB = 21
SHAPE = ModelConfig(
    num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=VOCAB, max_positions=8,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


def windows(lengths: list[int], starts: list[int], ends: list[int], columns: int = 8) -> Batch:
    torch.manual_seed(1)
    real = torch.arange(columns) < torch.tensor(lengths)[:, None]
    tensors = {
        "input_ids": torch.randint(5, VOCAB, real.shape) * real,
        "attention_mask": real.long(),
        "token_type_ids": (real & (torch.arange(columns) > 2)).long(),
        "start_positions": torch.tensor(starts),
        "end_positions": torch.tensor(ends),
    }
    counts = BatchCounts(len(lengths), sum(lengths), real.numel(), 0, sum(n * n for n in lengths))
    return Batch(tensors, counts)


def pair(kind: str = "BertForQuestionAnswering", config: ModelConfig = SHAPE) -> tuple[BertForQuestionAnswering, Any]:
    """Ours and theirs with the same weights."""
    other = theirs(kind)
    model = BertForQuestionAnswering(config)
    report = load_hugging_face_state(model, other.state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    return model, other


def call(model: Any, batch: Batch, **changes: Tensor) -> Any:
    segments = {} if "Distil" in type(model).__name__ else {"token_type_ids": batch.tensors["token_type_ids"]}
    names = ("input_ids", "attention_mask", "start_positions", "end_positions")
    return model(**{name: batch.tensors[name] for name in names} | segments | changes)


def gradients(model: BertForQuestionAnswering) -> dict[str, Tensor]:
    """Gradients under transformers' names."""
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    return to_hugging_face_state(model)


@pytest.mark.parametrize(("kind", "segments"), [("BertForQuestionAnswering", 2), ("DistilBertForQuestionAnswering", 0)])
@pytest.mark.parametrize(
    ("lengths", "starts", "ends"), [([8, 8, 8], [3, 0, 7], [4, 0, 7]), ([8, 5, 6], [3, 0, 4], [4, 0, 5])]
)
def test_losses_logits_and_gradients_are_those_of_transformers_over_the_real_tokens(
    kind: str, segments: int, lengths: list[int], starts: list[int], ends: list[int]
) -> None:
    model, other = pair(kind, SHAPE.replace(type_vocab_size=segments))
    batch = windows(lengths, starts, ends)
    mine, their = model(batch), call(other, batch)
    real = batch.tensors["attention_mask"].bool()
    expected = []
    for name, logits, own in (
        ("start", their.start_logits, mine.start_logits), ("end", their.end_logits, mine.end_logits)
    ):  # fmt: skip
        torch.testing.assert_close(own[real], logits[real], atol=1e-6, rtol=0)
        assert (own[~real] == -math.inf).all()
        targets = batch.tensors[f"{name}_positions"]
        rows = zip(logits, targets, real, strict=True)
        expected.append(torch.stack([-row[keep].log_softmax(0)[target] for row, target, keep in rows]).mean())
    loss = their.loss if real.all() else (expected[0] + expected[1]) / 2
    torch.testing.assert_close(mine.loss, loss, atol=1e-6, rtol=0)
    assert [mine.start_loss.item(), mine.end_loss.item()] == pytest.approx([each.item() for each in expected], abs=1e-6)
    mine.loss.backward()
    loss.backward()
    found = gradients(model)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=0, msg=name)
    assert max(gradient.abs().max() for gradient in found.values()) > 1e-3


@pytest.mark.parametrize("far", [8, 9, 511])
def test_a_target_beyond_the_window_is_left_out_as_in_transformers(far: int) -> None:
    model, other = pair()
    batch = windows([8, 8, 8], [3, far, -1], [4, 5, far])
    mine, their = model(batch), call(other, batch)
    torch.testing.assert_close(mine.loss, their.loss, atol=1e-6, rtol=0)
    mine.loss.backward()
    their.loss.backward()
    torch.testing.assert_close(model.answer_span.output.weight.grad, other.qa_outputs.weight.grad, atol=1e-6, rtol=0)


def test_windows_without_a_target_have_the_loss_0_and_no_gradients() -> None:
    model, _ = pair()
    loss = model(windows([8, 5], [8, 9], [9, 5])).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_float32(dtype: torch.dtype) -> None:
    model, _ = pair()
    batch = windows([8, 8], [3, 0], [4, 0])
    with torch.autocast("cpu", dtype):
        output = model(batch)
    assert output.loss.dtype == output.start_logits.dtype == torch.float32
    logits = torch.stack([output.start_logits, output.end_logits], 1).double()
    targets = torch.tensor([[3, 4], [0, 0]])
    assert output.loss.item() == pytest.approx(span_losses(logits, targets).mean().item(), rel=1e-6)


CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    place = tmp_path_factory.mktemp("squad")
    return {version: datasets.squad_splits(place / version, version) for version in ("1.1", "2.0")}


def spec(files: dict[str, Path], **changes: Any) -> DataSpec:
    known = open_features(files["training"], "training").settings
    values = {"seq_len": known.max_seq_length, "micro_batch_size": 3, "vocab_size": known.vocab_size, **changes}
    return DataSpec(data=str(files["training"]), **values)


def questions(files: dict[str, Path], samples: int = 0, **changes: Any) -> Questions:
    return Questions(spec(files, **changes), files["evaluation"], samples)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_a_handful_of_questions_is_learned_to_the_last_one(
    files: dict[str, dict[str, Path]], tmp_path: Path, version: str
) -> None:
    wanted = squad_settings(
        files[version], steps=120, eval_every=60, save_every=200, dropout=0.0, micro_batch_size=8, schedule="constant"
    )
    recorder = Recorder()
    outcome = run(wanted, tmp_path, recorder)
    assert outcome.evaluation.values["f1"] == outcome.evaluation.values["exact"] == 100.0
    assert outcome.best.value == 100.0 and outcome.best.score == "f1"
    first, last = recorder.progress[0], recorder.progress[-1]
    assert last.loss < 0.1 < first.loss and set(first.parts) == {"start_loss", "end_loss"}
    assert first.loss == pytest.approx(sum(first.parts.values()) / 2, rel=1e-5)
    if version == "2.0":
        assert outcome.evaluation.values["NoAns_f1"] == outcome.evaluation.values["best_f1"] == 100.0
        assert outcome.evaluation.counts == {"HasAns_total": 7, "NoAns_total": 3}
    assert set(outcome.evaluation.values) <= set(SquadTask.scores)


@pytest.mark.parametrize(("precision", "accumulation"), [("fp32", 2), ("fp16", 1), ("bf16", 1)])
def test_a_stopped_fine_tuning_goes_on_with_identical_losses_and_scores(
    files: dict[str, dict[str, Path]], tmp_path: Path, precision: str, accumulation: int
) -> None:
    wanted = squad_settings(files["2.0"], eval_every=3, precision=precision, grad_accum_steps=accumulation)
    whole, begun, ended = Recorder(), Recorder(stop_after=4), Recorder()
    expected = run(wanted, tmp_path / "whole", whole)
    assert run(wanted, tmp_path / "parts", begun).applied_steps == 4
    outcome = run(wanted, tmp_path / "parts", ended)
    assert {**begun.losses, **ended.losses} == whole.losses
    assert outcome.evaluation == expected.evaluation and outcome.best == expected.best
    assert saved_steps(tmp_path / "parts") == saved_steps(tmp_path / "whole") or saved_steps(tmp_path / "parts")[0] == 3


def test_fine_tuning_begins_from_a_pretraining_checkpoint_and_says_what_it_took(
    files: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    from bert.checkpoints.files import save_model

    wanted = squad_settings(files["1.1"], steps=1, eval_every=0, init=str(tmp_path / "weights"))
    pretrained = BertForPretraining(model_config(wanted))
    save_model(tmp_path / "weights", pretrained)
    recorder = Recorder()
    run(wanted, tmp_path / "run", recorder)
    (begun,) = recorder.of("Resumed")
    assert (
        begun.missing == ("answer_span.output.bias", "answer_span.output.weight")
        and not begun.moments
        and begun.new_phase
    )
    assert "next_sentence.weight" in begun.unused and "encoder.pooler.weight" in begun.unused
    assert not recorder.warnings
    second = Recorder()
    run(squad_settings(files["2.0"], steps=1, eval_every=0, init=str(tmp_path / "run")), tmp_path / "more", second)
    (begun,) = second.of("Resumed")
    assert not begun.missing and not begun.unused and not begun.moments, "the head goes along, the moments do not"


def test_batches_hold_windows_with_the_places_of_their_answers(files: dict[str, dict[str, Path]]) -> None:
    features = open_features(files["1.1"]["training"], "training")
    for chosen, batch in evaluation_rows(features.rows, 3):
        tensors = batch.tensors
        assert tensors["token_type_ids"].argmax(1).tolist() == features.document_starts[chosen].tolist()
        for name in ("start_positions", "end_positions"):
            assert tensors[name].tolist() == getattr(features, name)[chosen].tolist()
        for row, number in zip(tensors["input_ids"].tolist(), chosen.tolist(), strict=True):
            assert row[: features.lengths[number]] == features.input_ids[number].tolist()
        assert "labels" not in tensors


def test_ranks_share_the_windows_and_their_sum_is_what_one_rank_finds(files: dict[str, dict[str, Path]]) -> None:
    torch.manual_seed(3)
    wanted = squad_settings(files["2.0"])
    model = BertForQuestionAnswering(model_config(wanted)).eval()
    precision = Precision("fp32", "cpu")
    alone = questions(files["2.0"]).measure(model, CPU, precision)
    for ranks in (2, 3, 50):
        parts = [questions(files["2.0"], rank=r, world_size=ranks).measure(model, CPU, precision) for r in range(ranks)]
        held = torch.stack([part != 0 for part in parts]).sum(0)
        assert int(held.max()) == 1
        torch.testing.assert_close(torch.stack(parts).sum(0), alone, atol=1e-5, rtol=0)
    before = torch.get_rng_state()
    found = evaluate(model, questions(files["2.0"]), SingleStrategy(), precision)
    assert found.samples == 10 and torch.equal(torch.get_rng_state(), before)


def test_some_questions_are_spread_evenly_and_the_others_are_not_looked_at(files: dict[str, dict[str, Path]]) -> None:
    torch.manual_seed(3)
    model = BertForQuestionAnswering(model_config(squad_settings(files["1.1"]))).eval()
    some = questions(files["1.1"], samples=3)
    total = some.measure(model, CPU, Precision("fp32", "cpu"))
    features = some.features
    asked = np.repeat(np.isin(features.window_question, [0, 2, 4]), features.lengths)
    assert np.array_equal(total.numpy().reshape(2, -1)[0] != 0, asked)
    assert some.score(total).samples == 3
    assert questions(files["1.1"], samples=99).score(total).samples == 7
    assert some.fingerprint != questions(files["1.1"]).fingerprint


def test_logits_that_are_no_numbers_are_refused(files: dict[str, dict[str, Path]]) -> None:
    asked = questions(files["1.1"])
    tokens = int(asked.features.lengths.sum())
    with refused("logits-not-finite", "--precision fp32"):
        asked.score(torch.full((2 * tokens,), math.nan, dtype=torch.float64))


def test_evaluation_data_that_do_not_fit_are_refused(files: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    task, known = SquadTask(), spec(files["1.1"])
    with refused("option-missing", "--eval-data"):
        task.evaluator(known, EvaluationSpec())
    with refused("data-unprepared", "bertbench data squad"):
        task.evaluator(known, EvaluationSpec(source=str(tmp_path / "none")))
    with refused("data-mismatch", "training"):
        task.evaluator(known, EvaluationSpec(source=str(files["1.1"]["training"])))
    longer = datasets.squad_splits(tmp_path / "longer", max_seq_length=64)
    with refused("data-mismatch", "64 tokens", "48"):
        task.evaluator(known, EvaluationSpec(source=str(longer["evaluation"])))
    cased = datasets.squad_splits(tmp_path / "cased", lower_case=False)
    with refused("vocabulary-mismatch", cased["evaluation"]):
        task.evaluator(known, EvaluationSpec(source=str(cased["evaluation"])))
