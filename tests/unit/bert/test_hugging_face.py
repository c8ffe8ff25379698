"""Hugging Face's names and folders, theirs and ours, and nothing that is wrong with them goes unsaid."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from support import training_runs
from support.checkpoints import PIECES, SHAPE, VOCAB, assert_equal_outputs, loaded, saved, theirs
from support.refusals import refused
from support.shared_files import OWN, samples
from torch import Tensor

from bert.checkpoints.conversion import convert
from bert.checkpoints.files import load_model, save_model
from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.model.encoder import BertEncoder
from bert.model.heads import PADDING_BIAS, BertForPretraining


def bert_state():
    return {name: value.clone() for name, value in theirs().state_dict().items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_vocabulary_is_padded_with_rows_that_never_win():
    ours = BertForPretraining(SHAPE)
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
    encoder = BertEncoder(SHAPE)
    report = load_hugging_face_state(encoder, state)
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(encoder), original.state_dict())


def test_weights_without_a_place_are_listed_under_their_own_name():
    report = load_hugging_face_state(BertEncoder(SHAPE), bert_state())
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
    ours = BertForPretraining(SHAPE)
    report = load_hugging_face_state(ours, renamed)
    assert (report.missing, report.unexpected) == ((), ())
    assert_same(to_hugging_face_state(ours), state)


@pytest.mark.parametrize("kind", [BertForPretraining, BertEncoder])
def test_the_decoder_alone_is_the_word_embedding(kind):
    state = bert_state()
    words = state.pop("bert.embeddings.word_embeddings.weight")
    ours = kind(SHAPE)
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
        load_hugging_face_state(BertForPretraining(SHAPE), state)


@pytest.mark.parametrize("target", ["hugging-face", "bertbench"])
@pytest.mark.parametrize(
    "kind",
    [
        *("BertForPreTraining", "BertModel", "BertForMaskedLM", "BertForQuestionAnswering"),
        "BertForSequenceClassification",
        *("DistilBertForMaskedLM", "DistilBertModel", "DistilBertForQuestionAnswering"),
    ],
)
def test_every_kind_makes_the_way_there_and_back(tmp_path: Path, kind: str, target: Any) -> None:
    model = theirs(kind)
    done = convert(saved(tmp_path / "src", model), tmp_path / "dst", target=target)
    assert (done.missing, done.unexpected, done.architecture) == ((), (), kind)
    assert done.converted == done.tensors_read and done.notes == ()
    if target == "bertbench":
        done = convert(tmp_path / "dst", tmp_path / "back")
        assert (done.missing, done.unexpected, done.architecture) == ((), (), kind)
        assert done.converted == done.tensors_read
    back = loaded(tmp_path / ("dst" if target == "hugging-face" else "back"))
    assert type(back).__name__ == kind
    for name, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    assert_equal_outputs(model, back)
    assert done.parameters == sum(value.numel() for value in model.parameters())
    assert (tmp_path / "dst" / "vocab.txt").read_text().split() == PIECES


@pytest.mark.parametrize("path", samples("checkpoints/*tensorflow", "checkpoints/keras*/", "checkpoints/*/*ckpt.*"))
def test_any_file_of_a_tensorflow_checkpoint_stands_for_it(path: Path, tmp_path: Path) -> None:
    count = 48 if path.is_relative_to(OWN) else 46
    done = convert(path, tmp_path / "dst")
    assert (done.source_format, done.architecture) == ("tensorflow", "BertForPreTraining")
    assert (done.tensors_read, done.converted, done.missing, done.unexpected) == (count, count, (), ())
    found = loaded(tmp_path / "dst").state_dict()
    if count == 48:  # the model that was saved for transformers, too
        saved_state = torch.load(OWN / "checkpoints/hugging-face/pytorch_model.bin", weights_only=True)
        assert all(torch.equal(found[name], value) for name, value in saved_state.items())


@pytest.mark.parametrize("path", samples("checkpoints/*hugging-face", "checkpoints/*dummy", "checkpoints/*/*.bin"))
def test_the_legacy_bin_loads(path: Path, tmp_path: Path) -> None:
    done = convert(path, tmp_path / "dst")
    original = torch.load(path / "pytorch_model.bin" if path.is_dir() else path, weights_only=True)
    count = len(original)
    assert (done.tensors_read, done.converted, done.missing, done.unexpected) == (count, count, (), ())
    model = loaded(tmp_path / "dst")
    for key, value in original.items():
        assert torch.equal(model.state_dict()[key], value), key


@pytest.mark.parametrize("kind", ["BertModel", "DistilBertModel"])
def test_the_new_folder_reads_text_in_the_casing_of_its_vocabulary(tmp_path: Path, kind: str) -> None:
    def tokens(name: str, pieces: list[str], config: dict[str, Any] | None = None) -> list[str]:
        source = saved(tmp_path / name, theirs(kind), pieces)
        if config is not None:
            (source / "tokenizer_config.json").write_text(json.dumps(config))
        convert(source, tmp_path / f"{name}-dst")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / f"{name}-dst")
        assert tokenizer.model_max_length == SHAPE.max_positions
        found: list[str] = tokenizer.tokenize("A b C")
        return found

    cased = [*PIECES[:5], *"abcdefghABCDEFGH"]
    assert tokens("uncased", PIECES) == ["a", "b", "c"]
    assert tokens("cased", cased) == ["A", "b", "C"]
    assert tokens("told", cased, {"do_lower_case": True}) == ["a", "b", "c"]
    assert tokens("unsaid", cased, {"do_lower_case": None}) == ["A", "b", "C"]


def test_a_distilbert_of_ours_becomes_a_folder_without_unexpected_keys(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForPretraining(SHAPE.replace(type_vocab_size=0))
    save_model(tmp_path / "ours", model)
    done = convert(tmp_path / "ours", tmp_path / "dst")
    left_out = ("encoder.pooler.bias", "encoder.pooler.weight", "next_sentence.bias", "next_sentence.weight")
    assert (done.architecture, done.missing, done.unexpected) == ("DistilBertForMaskedLM", (), left_out)
    assert done.converted == done.tensors_read - 4 and "4 weights" in done.notes[-1]
    written = loaded(tmp_path / "dst").distilbert.embeddings.word_embeddings.weight
    assert torch.equal(written, model.encoder.embeddings.word.weight[:VOCAB])
    same = convert(tmp_path / "ours", tmp_path / "same", target="bertbench")
    assert same.unexpected == () and load_model(tmp_path / "same")[1].keys() == model.state_dict().keys()


def test_a_training_run_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    training_runs.run(
        training_runs.settings(training_runs.shards(tmp_path / "data"), steps=3, save_every=1),
        tmp_path / "run" / "checkpoints",
    )
    checkpoints = tmp_path / "run" / "checkpoints"
    done = convert(tmp_path / "run", tmp_path / "a")
    assert (done.source, done.missing, done.unexpected) == (checkpoints / "step-0000003", (), ())
    assert convert(checkpoints, tmp_path / "b").source == checkpoints / "step-0000003"
    assert convert(checkpoints / "step-0000001", tmp_path / "c").source == checkpoints / "step-0000001"
    os.truncate(checkpoints / "step-0000003" / "model.safetensors", 1000)
    done = convert(tmp_path / "run", tmp_path / "d")
    assert done.source == checkpoints / "step-0000002"
    assert "step-0000003 is damaged" in done.notes[0]


def nvidia_state(rows: int) -> dict[str, Tensor]:
    """The state dict of NVIDIA's pretraining: other names of dense layers, a padded vocabulary, DDP's prefix."""
    state = {}
    for name, value in theirs().state_dict().items():
        if name.endswith("word_embeddings.weight") or name in (
            "cls.predictions.bias",
            "cls.predictions.decoder.weight",
        ):
            value = torch.cat([value, torch.full((rows - VOCAB, *value.shape[1:]), 0.5)])
        if name == "cls.predictions.decoder.bias":
            continue
        for part in ("intermediate", "transform", "pooler"):
            name = name.replace(f"{part}.dense.", f"{part}.dense_act.")
        state[f"module.{name}"] = value
    return state


@pytest.mark.parametrize("counted", [VOCAB, 24])
def test_a_checkpoint_of_nvidia_becomes_an_unpadded_folder(tmp_path: Path, counted: int) -> None:
    source = saved(tmp_path / "src", theirs())
    (source / "model.safetensors").unlink()
    content = json.loads((source / "config.json").read_text()) | {"vocab_size": counted}
    (source / "bert_config.json").write_text(json.dumps(content))
    (source / "config.json").unlink()
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-3}]}
    torch.save({"model": nvidia_state(24), "optimizer": optimizer, "epoch": 3, "files": ["a"]}, source / "ckpt_7038.pt")
    done = convert(source / "ckpt_7038.pt", tmp_path / "dst")
    assert (done.missing, done.unexpected, done.config.vocab_size) == ((), (), VOCAB)
    assert bool(done.notes) == (counted != VOCAB)
    assert_equal_outputs(loaded(tmp_path / "dst"), theirs())


def test_files_in_shards_are_joined_and_a_missing_one_is_named(tmp_path: Path) -> None:
    model = theirs()
    source = tmp_path / "src"
    model.save_pretrained(source, max_shard_size="4KB")
    (source / "vocab.txt").write_text("\n".join(PIECES))
    shards = sorted(source.glob("model-*.safetensors"))
    assert len(shards) > 2
    convert(source, tmp_path / "dst")
    assert_equal_outputs(loaded(tmp_path / "dst"), model)
    save_file({"x": torch.zeros(1)}, shards[1])
    with refused("file-damaged", source / "model.safetensors.index.json"):
        convert(source, tmp_path / "other")
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../x"}}))
    with refused("file-unsafe", index, repr("../x")):
        convert(source, tmp_path / "other")
