"""Hugging Face names in and out; those of NVIDIA: test_hugging_face_files.py."""

import pytest
import torch
from support.bert_folders import SHAPE, VOCAB, theirs
from support.refusals import refused

from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.model.encoder import BertEncoder
from bert.model.heads import PADDING_BIAS, BertForPretraining

CONFIG = SHAPE


def bert_state():
    return {name: value.clone() for name, value in theirs().state_dict().items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_vocabulary_is_padded_with_rows_that_never_win():
    ours = BertForPretraining(CONFIG)
    with torch.no_grad():
        ours.encoder.embeddings.word.weight.fill_(7.0)
        ours.masked_words.bias.fill_(7.0)
    load_hugging_face_state(ours, bert_state())
    assert (ours.encoder.embeddings.word.weight[VOCAB:] == 0).all()
    assert (ours.masked_words.bias[VOCAB:] == PADDING_BIAS).all()


@pytest.mark.parametrize("prefix", ["", "bert.", "module.", "_orig_mod.module.bert."])
def test_encoder_weights_load_with_and_without_prefix(prefix):
    original = theirs("BertModel")
    state = {prefix + name: value for name, value in original.state_dict().items()}
    state[prefix + "embeddings.position_ids"] = torch.arange(8)[None]
    encoder = BertEncoder(CONFIG)
    report = load_hugging_face_state(encoder, state)
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(encoder), original.state_dict())


def test_weights_without_a_place_are_listed_under_their_own_name():
    report = load_hugging_face_state(BertEncoder(CONFIG), bert_state())
    assert report.missing == ()
    heads = {name for name in bert_state() if name.startswith("cls.")}
    assert set(report.unexpected) == heads - {"cls.predictions.decoder.weight"}  # it is the word embedding


def test_old_names_load():
    state = bert_state()
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in state.items()
    }
    assert len(renamed.keys() - state.keys()) > 10
    ours = BertForPretraining(CONFIG)
    report = load_hugging_face_state(ours, renamed)
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(ours), state)


@pytest.mark.parametrize("kind", [BertForPretraining, BertEncoder])
def test_the_decoder_alone_is_the_word_embedding(kind):
    state = bert_state()
    words = state.pop("bert.embeddings.word_embeddings.weight")
    ours = kind(CONFIG)
    report = load_hugging_face_state(ours, state)
    assert report.missing == ()
    assert "cls.predictions.decoder.weight" in report.used
    encoder = ours if kind is BertEncoder else ours.encoder
    assert torch.equal(encoder.embeddings.word.weight[:VOCAB], words)


ATTENTION = "bert.encoder.layer.0.attention.self.{}.weight"


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda s: s["cls.predictions.decoder.bias"].add_(1), ["decoder.bias", "cls.predictions.bias"]),
        (lambda s: s["cls.predictions.decoder.weight"].add_(1), ["cls.predictions.decoder.weight"]),
        (
            lambda s: s.update({"module.bert.pooler.dense.bias": torch.zeros(16)}),
            ["bert.pooler.dense.bias", "module.bert.pooler.dense.bias"],
        ),
        (  # rows of query and key do not make up for each other
            lambda s: s.update(
                {ATTENTION.format("query"): torch.zeros(8, 16), ATTENTION.format("key"): torch.zeros(24, 16)}
            ),
            ["attention.qkv.weight"],
        ),
    ],
)
def test_weights_that_contradict_themselves_are_refused(change, facts):
    state = bert_state()
    change(state)
    with refused("weights-mismatch", *facts):
        load_hugging_face_state(BertForPretraining(CONFIG), state)
