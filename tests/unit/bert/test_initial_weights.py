"""Where a new run's weights may come from: every form, complete encoders only, nothing left out in silence."""

from pathlib import Path
from typing import Any

import torch
from support.checkpoints import SHAPE, saved, theirs
from support.refusals import refused
from support.training_runs import Recorder, run, settings

from bert.checkpoints.files import save_model, write_model
from bert.checkpoints.read import find_checkpoint
from bert.checkpoints.weights import LoadReport
from bert.model.config import shape_in_words
from bert.model.encoder import BertEncoder
from bert.model.heads import BertForPretraining
from bert.train.resume import load_weights

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
