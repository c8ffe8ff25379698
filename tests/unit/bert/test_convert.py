"""Hugging Face names in and out."""

import pytest
import torch
from support.refusals import refused
from torch import nn
from transformers import BertConfig, BertForPreTraining, BertModel, DistilBertConfig, DistilBertForMaskedLM

from bert.checkpoints.hugging_face import load_hugging_face_state, match_hugging_face_state, to_hugging_face_state
from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder
from bert.model.heads import PADDING_BIAS
from bert.model.models import BertForPretraining
from bert.tasks.gap.heads import BertForMentions

VOCAB = 21
CONFIG = ModelConfig(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=VOCAB, max_positions=8)
DISTILLED = CONFIG.replace(type_vocab_size=0)


def bert(kind=BertForPreTraining):
    torch.manual_seed(0)
    return kind(
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=8,
        )
    )


def distilbert():
    torch.manual_seed(0)
    return DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=VOCAB, max_position_embeddings=8, n_layers=2, n_heads=2, dim=16, hidden_dim=32)
    )


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_pretraining_weights_make_the_exact_round_trip():
    theirs = bert()
    ours = BertForPretraining(CONFIG)
    report = load_hugging_face_state(ours, theirs.state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    assert set(report.loaded) == {name for name, _ in ours.named_parameters()}
    state = to_hugging_face_state(ours)
    assert_same(state, theirs.state_dict())
    fresh = bert()
    fresh.load_state_dict(state, strict=True)


def test_our_weights_make_the_exact_round_trip():
    first, second = BertForPretraining(CONFIG), BertForPretraining(CONFIG)
    load_hugging_face_state(second, to_hugging_face_state(first))
    assert_same(second.state_dict(), first.state_dict())


def test_vocabulary_is_padded_with_rows_that_never_win():
    ours = BertForPretraining(CONFIG)
    with torch.no_grad():
        ours.encoder.embeddings.word.weight.fill_(7.0)
        ours.masked_words.bias.fill_(7.0)
    load_hugging_face_state(ours, bert().state_dict())
    assert (ours.encoder.embeddings.word.weight[VOCAB:] == 0).all()
    assert (ours.masked_words.bias[VOCAB:] == PADDING_BIAS).all()


def test_padded_weights_load_as_the_unpadded_ones():
    state = bert().state_dict()
    padded = dict(state)
    for name in list(padded):
        if name.endswith("word_embeddings.weight") or name.startswith(("cls.predictions.bias", "cls.predictions.dec")):
            padded[name] = torch.cat([padded[name], torch.full((3, *padded[name].shape[1:]), 0.5)])
    one, other = BertForPretraining(CONFIG), BertForPretraining(CONFIG)
    load_hugging_face_state(one, state)
    load_hugging_face_state(other, padded)
    assert_same(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_encoder_weights_load_with_and_without_prefix(prefix):
    theirs = bert(BertModel)
    state = {prefix + name: value for name, value in theirs.state_dict().items()}
    state[prefix + "embeddings.position_ids"] = torch.arange(8)[None]
    encoder = BertEncoder(CONFIG)
    report = load_hugging_face_state(encoder, state)
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(encoder), theirs.state_dict())


def test_encoder_weights_leave_the_heads_as_they_were_and_say_so():
    ours = BertForPretraining(CONFIG)
    before = ours.masked_words.dense.weight.clone()
    report = load_hugging_face_state(ours, bert(BertModel).state_dict())
    assert torch.equal(ours.masked_words.dense.weight, before)
    assert set(report.missing) == {
        "cls.predictions.bias",
        *(f"cls.predictions.transform.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")),
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }


def test_a_head_that_hugging_face_has_no_names_for_is_among_the_missing_ones():
    ours = BertForMentions(CONFIG, "mul")
    report = load_hugging_face_state(ours, bert(BertModel).state_dict())
    assert report.missing == ("mention_head.mul.neither",)


def test_weights_without_a_place_are_listed_under_their_own_name():
    report = load_hugging_face_state(BertEncoder(CONFIG), bert().state_dict())
    assert report.missing == ()
    assert report.unexpected == tuple(sorted(name for name in bert().state_dict() if name.startswith("cls.")))


def test_old_and_nvidia_names_load():
    state = bert().state_dict()
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta")
        .replace("intermediate.dense.", "intermediate.dense_act.")
        .replace("transform.dense.", "transform.dense_act.")
        .replace("pooler.dense.", "pooler.dense_act."): value
        for name, value in state.items()
    }
    assert len(renamed.keys() - state.keys()) > 10
    ours = BertForPretraining(CONFIG)
    report = load_hugging_face_state(ours, renamed)
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(ours), state)


def test_decoder_bias_alone_is_the_prediction_bias():
    state = {name: value.clone() for name, value in bert().state_dict().items()}
    state["cls.predictions.decoder.bias"].normal_()
    del state["cls.predictions.bias"]
    ours = BertForPretraining(CONFIG)
    assert load_hugging_face_state(ours, state).missing == ()
    assert torch.equal(ours.masked_words.bias[:VOCAB], state["cls.predictions.decoder.bias"])


def test_a_decoder_bias_of_its_own_is_refused():
    state = {name: value.clone() for name, value in bert().state_dict().items()}
    state["cls.predictions.decoder.bias"] += 1
    with refused("weights-mismatch", "decoder.bias", "cls.predictions.bias"):
        load_hugging_face_state(BertForPretraining(CONFIG), state)


@pytest.mark.parametrize("kind", [BertForPretraining, BertEncoder])
def test_the_decoder_alone_is_the_word_embedding(kind):
    state = dict(bert().state_dict())
    words = state.pop("bert.embeddings.word_embeddings.weight")
    ours = kind(CONFIG)
    report = load_hugging_face_state(ours, state)
    assert report.missing == ()
    assert "cls.predictions.decoder.weight" in report.used
    encoder = ours if kind is BertEncoder else ours.encoder
    assert torch.equal(encoder.embeddings.word.weight[:VOCAB], words)


def test_distilbert_weights_make_the_exact_round_trip():
    theirs = distilbert()
    ours = BertForPretraining(DISTILLED)
    report = load_hugging_face_state(ours, theirs.state_dict())
    assert report.unexpected == ()
    assert all(name.startswith(("pooler.", "cls.seq_relationship.")) for name in report.missing)
    state = to_hugging_face_state(ours)
    assert_same({name: state[name] for name in theirs.state_dict()}, theirs.state_dict())
    again = BertForPretraining(DISTILLED)
    assert load_hugging_face_state(again, state).missing == ()
    assert_same(again.state_dict(), ours.state_dict())


def test_bare_distilbert_encoder_loads_without_prefix():
    theirs = distilbert().distilbert
    encoder = BertEncoder(DISTILLED, pooler=False)
    report = load_hugging_face_state(encoder, theirs.state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(encoder), theirs.state_dict())


def test_missing_encoder_weights_are_refused_unless_allowed_and_nothing_is_half_loaded():
    state = bert().state_dict()
    del state["bert.encoder.layer.1.attention.self.key.weight"]
    ours = BertForPretraining(CONFIG)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with refused("weights-mismatch", "1", "encoder.layer.1.attention.self.key.weight"):
        load_hugging_face_state(ours, state)
    assert_same(ours.state_dict(), before)
    report = load_hugging_face_state(ours, state, allow_missing=True)
    assert report.missing == ("encoder.layer.1.attention.self.key.weight",)
    kept = "encoder.layers.1.attention.qkv.weight"
    assert kept not in report.loaded and torch.equal(ours.state_dict()[kept], before[kept])


def test_weights_of_another_model_name_what_they_hold():
    with refused("weights-mismatch", "conv.weight"):
        load_hugging_face_state(BertEncoder(CONFIG), {"conv.weight": torch.zeros(1)})
    with refused("weights-mismatch", "embeddings"):
        load_hugging_face_state(BertEncoder(CONFIG), {})


@pytest.mark.parametrize("changes", [{"hidden_size": 32}, {"vocab_size": 30}, {"max_positions": 16}])
def test_another_shape_is_refused_with_both_shapes(changes):
    ours = BertForPretraining(CONFIG.replace(**changes))
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with refused("weights-mismatch", "shape [", "["):
        load_hugging_face_state(ours, bert().state_dict())
    assert_same(ours.state_dict(), before)


def test_untied_decoder_is_refused():
    state = {name: value.clone() for name, value in bert().state_dict().items()}
    state["cls.predictions.decoder.weight"] += 1
    with refused("weights-mismatch", "cls.predictions.decoder.weight"):
        load_hugging_face_state(BertForPretraining(CONFIG), state)


def test_a_model_without_encoder_is_refused():
    with refused("model-unsupported", "Linear"):
        to_hugging_face_state(nn.Linear(1, 1))


def test_half_precision_weights_load_into_float32():
    state = {name: value.half() for name, value in bert().state_dict().items()}
    ours = BertForPretraining(CONFIG)
    load_hugging_face_state(ours, state)
    assert all(parameter.dtype == torch.float32 for parameter in ours.parameters())
    pooler = state["bert.pooler.dense.weight"].float()
    assert torch.equal(ours.encoder.pooler.weight, pooler)


@pytest.mark.parametrize("prefix", ["module.", "module.bert.", "_orig_mod.module.bert.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_taken_off(prefix):
    theirs = bert(BertModel)
    encoder = BertEncoder(CONFIG)
    report = load_hugging_face_state(encoder, {prefix + name: value for name, value in theirs.state_dict().items()})
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(encoder), theirs.state_dict())


def test_one_weight_under_two_names_is_refused():
    state = dict(bert().state_dict())
    state["module.bert.pooler.dense.bias"] = torch.zeros(16)
    with refused("weights-mismatch", "bert.pooler.dense.bias", "module.bert.pooler.dense.bias"):
        load_hugging_face_state(BertForPretraining(CONFIG), state)


def test_rows_of_query_and_key_do_not_make_up_for_each_other():
    state = dict(bert().state_dict())
    name = "bert.encoder.layer.0.attention.self.{}.weight"
    state[name.format("query")], state[name.format("key")] = torch.zeros(8, 16), torch.zeros(24, 16)
    with refused("weights-mismatch", "attention.qkv.weight", "[8, 16]", "[16, 16]"):
        load_hugging_face_state(BertForPretraining(CONFIG), state)


def test_nothing_that_fits_is_an_error_even_where_weights_may_be_missing():
    with refused("weights-mismatch", "conv.weight"):
        load_hugging_face_state(BertEncoder(CONFIG), {"conv.weight": torch.zeros(1)}, allow_missing=True)


def test_every_given_name_is_used_unexpected_or_incomplete():
    state = {**bert().state_dict(), "classifier.weight": torch.zeros(2, 16)}
    for part in ("query", "value"):
        del state[f"bert.encoder.layer.0.attention.self.{part}.bias"]
    report = load_hugging_face_state(BertForPretraining(CONFIG), state, allow_missing=True)
    assert report.incomplete == ("bert.encoder.layer.0.attention.self.key.bias",)
    assert report.unexpected == ("classifier.weight",)
    assert {*report.used, *report.incomplete, *report.unexpected} == set(state)


def test_a_model_without_memory_shows_what_fits():
    with torch.device("meta"):
        ours = BertForPretraining(CONFIG)
    values, report = match_hugging_face_state(ours, bert().state_dict())
    assert (report.missing, report.unexpected) == ((), ())
    filled = BertForPretraining(CONFIG)
    load_hugging_face_state(filled, bert().state_dict())
    assert_same(values, dict(filled.named_parameters()))
