"""Our sequence classification is Hugging Face's: the same logits and losses with the same weights, under both names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.row_task import VOCAB, made_rows

from bert.checkpoints.conversion import convert
from bert.checkpoints.files import save_model
from bert.checkpoints.hugging_face import load_hugging_face_state
from bert.checkpoints.read import find_checkpoint
from bert.data.batches import row_batch
from bert.model.config import preset
from bert.model.heads import BertForSequenceClassification
from bert.train.resume import load_weights

SHAPE = preset("tiny").replace(vocab_size=VOCAB, hidden_size=32, num_heads=4, intermediate_size=48, max_positions=32)


def theirs(labels: int) -> Any:
    torch.manual_seed(labels)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, num_labels=labels,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


def called(model: Any, batch: Any) -> Any:
    with torch.no_grad():
        return model(**batch.tensors)


@pytest.mark.parametrize("labels", [1, 2, 3, 77])
def test_logits_and_loss_are_theirs_with_their_weights(labels: int) -> None:
    model = theirs(labels)
    ours = BertForSequenceClassification(SHAPE, labels, regression=labels == 1).eval()
    report = load_hugging_face_state(ours, model.state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    batch = row_batch(made_rows(9, labels=labels, regression=labels == 1), np.arange(9))
    assert batch.counts.real_tokens < batch.counts.padded_tokens
    with torch.no_grad():
        found = ours(batch)
    expected = called(model, batch)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_saved_model_becomes_a_folder_that_transformers_reads(tmp_path: Path, labels: int) -> None:
    ours = BertForSequenceClassification(SHAPE, labels, regression=labels == 1).eval()
    (tmp_path / "ours").mkdir()
    save_model(tmp_path / "ours", ours)
    done = convert(tmp_path / "ours", tmp_path / "theirs")
    assert (done.architecture, done.missing, done.unexpected) == ("BertForSequenceClassification", (), ())
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    assert model.config.num_labels == labels
    batch = row_batch(made_rows(5, regression=labels == 1), np.arange(5))
    with torch.no_grad():
        expected = ours(batch)
    found = called(model, batch)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=0)
    back = convert(tmp_path / "theirs", tmp_path / "back", target="bertbench")
    assert (back.missing, back.unexpected) == ((), ())


def test_a_classifier_of_other_labels_stays_fresh_and_is_named(tmp_path: Path) -> None:
    sources = {"ours": tmp_path / "ours", "theirs": tmp_path / "theirs"}
    sources["ours"].mkdir()
    save_model(sources["ours"], BertForSequenceClassification(SHAPE, 3))
    theirs(3).save_pretrained(sources["theirs"])
    for source in sources.values():
        model = BertForSequenceClassification(SHAPE, 2)
        before = model.classifier.weight.clone()
        word = model.encoder.embeddings.word.weight.clone()
        taken = load_weights(find_checkpoint(source), model, SHAPE, whole=False)
        assert taken.unexpected == ("classifier.bias", "classifier.weight")
        assert torch.equal(model.classifier.weight, before)
        assert not torch.equal(model.encoder.embeddings.word.weight, word)
        same = BertForSequenceClassification(SHAPE, 3)
        taken = load_weights(find_checkpoint(source), same, SHAPE, whole=False)
        assert (taken.missing, taken.unexpected) == ((), ())
