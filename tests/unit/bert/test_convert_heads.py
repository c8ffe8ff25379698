"""Models with heads in every format: equal logits and losses, and what a new run takes of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import (
    IDS,
    MASK,
    PIECES,
    SHAPE,
    assert_equal_outputs,
    loaded,
    saved,
    saved_by_tensorflow,
    theirs,
)
from support.refusals import refused
from support.training_runs import Recorder, run, settings
from torch import Tensor

from bert.checkpoints.conversion import convert
from bert.checkpoints.files import load_model, save_model, write_model
from bert.checkpoints.hugging_face import load_hugging_face_state
from bert.checkpoints.read import find_checkpoint
from bert.checkpoints.weights import LoadReport
from bert.data.batch import Batch, BatchCounts
from bert.model.config import shape_in_words
from bert.model.encoder import BertEncoder
from bert.model.heads import BertForPretraining, BertForQuestionAnswering, BertForSequenceClassification
from bert.train.resume import load_weights

REAL = MASK.bool()
INPUTS = {"input_ids": IDS, "attention_mask": MASK}
SEGMENTS = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]])
POOLER = {"bert/pooler/dense/bias": torch.ones(16), "bert/pooler/dense/kernel": torch.ones(16, 16)}


def ours(kind: str, labels: int) -> Any:
    torch.manual_seed(0)
    shape = SHAPE.replace(type_vocab_size=0 if "Distil" in kind else 2)
    answers = "QuestionAnswering" in kind
    model = BertForQuestionAnswering(shape) if answers else classifier(labels)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return model.eval()


def classifier(labels: int) -> BertForSequenceClassification:
    return BertForSequenceClassification(SHAPE, labels, regression=labels == 1).eval()


def batch(**columns: Tensor) -> Batch:
    return Batch({**INPUTS, "token_type_ids": SEGMENTS, **columns}, BatchCounts(2, 10, IDS.numel(), 0, 0))


def logits_of(found: Any) -> list[Tensor]:
    """Of real tokens, or of rows."""
    answers = hasattr(found, "start_logits")
    return [found.start_logits[REAL], found.end_logits[REAL]] if answers else [found.logits]


@pytest.mark.parametrize("labels", [1, 2, 3, 77])
def test_logits_and_losses_of_labels_are_theirs_with_their_weights(labels: int) -> None:
    model, mine = theirs("BertForSequenceClassification", num_labels=labels), classifier(labels)
    report = load_hugging_face_state(mine, model.state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    wanted = torch.tensor([0.5, 2.0]) if labels == 1 else torch.tensor([0, labels - 1])
    with torch.no_grad():
        found = mine(batch(labels=wanted))
        expected = model(**INPUTS, token_type_ids=SEGMENTS, labels=wanted)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("BertForQuestionAnswering", 2),
        ("DistilBertForQuestionAnswering", 2),
        ("BertForSequenceClassification", 1),
        ("BertForSequenceClassification", 3),
    ],
)
def test_a_model_of_ours_answers_alike_in_transformers_and_comes_back_bit_by_bit(
    tmp_path: Path, kind: str, labels: int
) -> None:
    model = ours(kind, labels)
    save_model(tmp_path / "ours", model)
    (tmp_path / "ours" / "vocab.txt").write_text("\n".join(PIECES))
    done = convert(tmp_path / "ours", tmp_path / "hf")
    assert (done.architecture, done.missing, done.unexpected, done.notes) == (kind, (), (), ())
    assert done.converted == done.tensors_read == len(model.state_dict())
    written = loaded(tmp_path / "hf")
    assert (type(written).__name__, written.config.num_labels) == (kind, labels)
    targets = dict.fromkeys(("start_positions", "end_positions"), torch.zeros(2, dtype=torch.long))
    segments = {} if "Distil" in kind else {"token_type_ids": SEGMENTS}
    with torch.no_grad():
        found, expected = model(batch(**targets)), written(**INPUTS, **segments)
    for one, other in zip(logits_of(found), logits_of(expected), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    done = convert(tmp_path / "hf", tmp_path / "back", target="bertbench")
    assert (done.architecture, done.missing, done.unexpected) == (kind, (), ())
    back = load_model(tmp_path / "back")[1]
    assert all(torch.equal(value, back[name]) for name, value in model.state_dict().items())
    convert(tmp_path / "ours", tmp_path / "copy", target="bertbench")
    assert load_model(tmp_path / "copy")[1].keys() == model.state_dict().keys()


@pytest.mark.parametrize("target", ["hugging-face", "bertbench"])
def test_a_tensorflow_checkpoint_of_run_squad_keeps_its_head_and_loses_its_pooler(tmp_path: Path, target: Any) -> None:
    source = theirs("BertForQuestionAnswering")
    slots = {"cls/squad/output_weights/adam_m": torch.zeros(2, 16), "global_step": torch.tensor(3)}
    prefix = saved_by_tensorflow(tmp_path / "tf" / "model.ckpt-10", source, POOLER | slots)
    done = convert(prefix, tmp_path / "dst", target=target)
    assert (done.architecture, done.missing, done.unexpected) == ("BertForQuestionAnswering", (), tuple(sorted(POOLER)))
    assert done.skipped == tuple(sorted(slots)) and done.converted == done.tensors_read - 2
    if target == "bertbench":
        convert(tmp_path / "dst", tmp_path / "back")
    written = loaded(tmp_path / ("dst" if target == "hugging-face" else "back"))
    assert all(torch.equal(written.state_dict()[name], value) for name, value in source.state_dict().items())
    assert_equal_outputs(written, source)


def test_a_classifier_of_other_labels_stays_fresh_and_is_named(tmp_path: Path) -> None:
    save_model(tmp_path / "ours", classifier(3))
    saved(tmp_path / "theirs", theirs("BertForSequenceClassification", num_labels=3), None)
    for name in ("ours", "theirs"):
        model = classifier(2)
        before = model.classifier.weight.clone()
        word = model.encoder.embeddings.word.weight.clone()
        taken = load_weights(find_checkpoint(tmp_path / name), model, SHAPE, whole=False)
        assert taken.unexpected == ("classifier.bias", "classifier.weight")
        assert torch.equal(model.classifier.weight, before)
        assert not torch.equal(model.encoder.embeddings.word.weight, word)
        taken = load_weights(find_checkpoint(tmp_path / name), classifier(3), SHAPE, whole=False)
        assert (taken.missing, taken.unexpected) == ((), ())


HEADS = ("masked_words.", "next_sentence.", "encoder.pooler.")


def load(path: Path, model: torch.nn.Module, whole: bool = False) -> LoadReport:
    return load_weights(find_checkpoint(path), model, SHAPE, whole)


def same_encoder(model: Any, source: Any) -> bool:
    query = source.state_dict()["bert.encoder.layer.1.attention.self.query.weight"]
    return torch.equal(model.encoder.layers[1].attention.qkv.weight[: len(query)], query)


def wanted(init: Path, **changes: Any) -> Any:
    values = {
        "preset": "2x16",
        "shape": shape_in_words(SHAPE),
        "vocab_size": SHAPE.vocab_size,
        "seq_len": 8,
        "steps": 1,
    }
    return settings("synthetic:full", max_predictions=1, init=str(init), **{**values, **changes})


def test_heads_that_are_absent_keep_fresh_values_and_are_named(tmp_path: Path) -> None:
    source, model = theirs("BertForMaskedLM"), BertForPretraining(SHAPE)
    before = model.next_sentence.weight.clone()
    taken = load(saved(tmp_path / "hf", source), model)
    assert torch.equal(model.next_sentence.weight, before) and same_encoder(model, source)
    assert sorted(taken.missing) == [
        "encoder.pooler.bias", "encoder.pooler.weight", "next_sentence.bias", "next_sentence.weight",
    ]  # fmt: skip
    recorder = Recorder()
    assert run(wanted(tmp_path / "hf"), tmp_path / "run", recorder).finished
    (begun,) = recorder.of("Resumed")
    assert begun.new_phase and not begun.moments and begun.missing == taken.missing
    assert "4 weights of the model" in recorder.warnings


def test_a_bare_encoder_of_ours_loads_where_the_task_begins_from_one(tmp_path: Path) -> None:
    encoder, model = BertEncoder(SHAPE), BertForPretraining(SHAPE)
    save_model(tmp_path, encoder)
    taken = load(tmp_path, model)
    assert torch.equal(model.encoder.layers[0].output.weight, encoder.layers[0].output.weight)
    assert len(taken.missing) == 7 and all(name.startswith(HEADS) for name in taken.missing)
    with refused("weights-mismatch", tmp_path):
        load(tmp_path, model, whole=True)


def test_an_encoder_that_is_not_complete_or_larger_is_refused(tmp_path: Path) -> None:
    state = theirs().state_dict()
    lacking = {name: value for name, value in state.items() if "layer.1.output.dense" not in name}
    more = {**state, "bert.encoder.layer.2.output.dense.weight": torch.zeros(16, 32)}
    smaller = {**state, "bert.embeddings.position_embeddings.weight": torch.zeros(7, 16)}
    for name, tensors, facts in (
        ("a", lacking, (" 2 encoder parameters", "layers.1.output")),
        ("b", more, (" 1 encoder weights", "layer.2")),
        ("c", smaller, ("[7, 16]", "[8, 16]")),
    ):
        torch.save(tensors, tmp_path / f"{name}.bin")
        model = BertForPretraining(SHAPE)
        before = model.encoder.embeddings.word.weight.clone()
        with refused("weights-mismatch", f"{name}.bin", *facts):
            load(tmp_path / f"{name}.bin", model)
        assert torch.equal(model.encoder.embeddings.word.weight, before)
    ours = BertForPretraining(SHAPE)
    part = {name: value for name, value in ours.state_dict().items() if "layers.1.output." not in name}
    write_model(tmp_path / "ours", SHAPE, part)
    with refused("weights-mismatch", "2", "encoder.layers.1.output"):
        load(tmp_path / "ours", ours)


def test_absent_weights_are_one_clear_error(tmp_path: Path) -> None:
    folder = saved(tmp_path / "hf", theirs())
    (folder / "model.safetensors").unlink()
    with refused("checkpoint-missing", "hf", "2x16 model", "21 word pieces"):
        run(wanted(folder), tmp_path / "run")
