"""Files of checkpoints: TensorFlow's are read without it, no damage goes unseen, and what is refused leaves nothing."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import checkpoints as writer
from support import shared_files, training_runs
from support.checkpoints import PIECES, loaded, saved, theirs
from support.refusals import refused

from bert.checkpoints.conversion import convert
from bert.checkpoints.files import new_folder, read_tensors
from bert.checkpoints.tensorflow import hugging_face_name, is_weight, read_variables
from common.errors import Code

KERAS = shared_files.DATA / "checkpoints/keras-bert-tiny"

NAMES = [f"bert/encoder/layer_{layer}/{part}" for layer in range(12) for part in ("kernel", "bias", "kernel/adam_m")]


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    tensors = {name: torch.randn(3, 5).to(kinds[place % 4]) for place, name in enumerate(NAMES)}
    return {
        **tensors,
        "global_step": torch.tensor(-7),
        "counts": torch.arange(6, dtype=torch.int32).reshape(1, 2, 3),
        "none": torch.zeros(0, 4),
    }


def read_all(prefix: Path) -> dict[str, torch.Tensor]:
    tensors, others = read_variables(prefix, lambda name: True)
    assert set(others) <= {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return tensors


@pytest.mark.public
def test_every_tensor_of_a_real_checkpoint_is_what_tensorflow_itself_read() -> None:
    expected = json.loads((KERAS / "expected_by_tensorflow_2.21.json").read_text())
    found = read_all(KERAS / "bert_model.ckpt")
    assert len(expected) == 139 and found.keys() == expected.keys()
    for name, facts in expected.items():
        tensor = found[name]
        assert (list(tensor.shape), str(tensor.dtype)) == (facts["shape"], f"torch.{facts['dtype']}"), name
        assert tensor.flatten()[0].item() == facts["first"], name
        assert tensor.double().sum().item() == pytest.approx(facts["sum"], rel=1e-12, abs=1e-15), name


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_types_files_and_compressed_indexes(tmp_path: Path, shards: int, compressed: bool) -> None:
    tensors = some_tensors()
    prefix = tmp_path / "odd [name]" / "model.ckpt-10"
    prefix.parent.mkdir()
    writer.write_checkpoint(prefix, tensors, shards=shards, compressed=compressed)
    found = read_all(prefix)
    assert list(found) == sorted(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_missing_and_short_data_files_are_named_with_a_remedy(tmp_path: Path) -> None:
    writer.write_checkpoint(tmp_path / "x", some_tensors(), shards=2)
    second = tmp_path / "x.data-00001-of-00002"
    content = second.read_bytes()
    second.write_bytes(content[:-5])
    with refused("file-damaged", "x.data-00001-of-00002", "copy all files x.*"):
        read_all(tmp_path / "x")
    second.unlink()
    with refused("path-missing", "x.data-00001-of-00002", "copy all files x.*"):
        read_all(tmp_path / "x")


def test_every_wrong_bit_in_the_data_is_found(tmp_path: Path) -> None:
    writer.write_checkpoint(tmp_path / "x", {"a": torch.randn(4), "b": torch.randn(3)})
    data = tmp_path / "x.data-00000-of-00001"
    content = data.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        data.write_bytes(changed)
        with refused("file-damaged", "x.data-00000-of-00001", "checksum"):
            read_all(tmp_path / "x")


def test_truncated_empty_foreign_and_damaged_indexes_are_refused(tmp_path: Path) -> None:
    writer.write_checkpoint(tmp_path / "x", some_tensors())
    index = tmp_path / "x.index"
    whole = index.read_bytes()
    footer = whole[-48:]
    contents = [whole[:length] for length in range(0, len(whole), 7)] + [b"PK\x03\x04" * 40, whole[1:]]
    # In the first block, its trailer's kind, the index block, and where it lies.
    for place in (
        5,
        whole.index(footer) - 60,
        whole.index(footer) - 5,
        len(whole) - 48,
        len(whole) - 46,
        len(whole) - 1,
    ):
        contents.append(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    for content in contents:
        index.write_bytes(content)
        with refused("file-damaged", index):
            read_all(tmp_path / "x")
    index.unlink()
    with refused("path-missing", index):
        read_all(tmp_path / "x")


def test_partitioned_variables_are_refused_by_name(tmp_path: Path) -> None:
    rows, files = writer.rows_of({"bert/embeddings/word_embeddings": torch.randn(4, 2)})
    name, entry = rows[1]
    writer.write_rows(tmp_path / "x", [rows[0], (name, entry + writer.message(7, b""))], files)
    with refused("model-unsupported", "bert/embeddings/word_embeddings", "x.index"):
        read_all(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "expected", "transposed"),
    [
        ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", False),
        ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", False),
        ("bert/encoder/layer_11/output/dense/kernel", "bert.encoder.layer.11.output.dense.weight", True),
        ("bert/encoder/layer_0/output/LayerNorm/beta", "bert.encoder.layer.0.output.LayerNorm.bias", False),
        ("cls/predictions/output_bias", "cls.predictions.bias", False),
        ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", True),
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", False),
        ("cls/squad/output_weights", "qa_outputs.weight", False),
        ("module/cls/squad/output_bias", "qa_outputs.bias", False),
        ("output_bias", "classifier.bias", False),
    ],
)
def test_names_follow_the_published_rules(name: str, expected: str, transposed: bool) -> None:
    assert hugging_face_name(name) == (expected, transposed)
    assert is_weight(name)


@pytest.mark.parametrize(
    "name",
    ["global_step", "bert/pooler/dense/kernel/adam_m", "x/adam_v", "y/LAMB_m", "x/Adam_1", "loss_scale", "beta1_power"],
)
def test_variables_of_optimizers_are_no_weights(name: str) -> None:
    assert not is_weight(name)


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = {"model": theirs().state_dict(), "extra": Evil()}
    torch.save(state, "zip.bin")
    torch.save(state, "legacy.bin", _use_new_zipfile_serialization=False)
    Path("plain.bin").write_bytes(pickle.dumps(Evil()))
    for name in ("zip.bin", "legacy.bin", "plain.bin"):
        with refused("file-damaged" if name == "plain.bin" else "file-unsafe", name):
            read_tensors(tmp_path / name)
    assert not Path("ran").exists()


def test_what_trainings_save_beside_weights_still_loads(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "size": torch.Size([2]),
               "device": torch.device("cpu"), "half": torch.bfloat16, "list": [1.5, None, ("é", 2)],
               "parameters": dict(model.named_parameters())}  # fmt: skip
    for name, is_zip in (("zip.bin", True), ("old.bin", False)):
        torch.save(content, tmp_path / name, _use_new_zipfile_serialization=is_zip)
        assert read_tensors(tmp_path / name).keys() == {"weight", "bias"}


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b"", "file-damaged", []),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n", "file-format", ["git lfs pull"]),
        (b"<!DOCTYPE html><html></html>", "file-damaged", ["safetensors"]),
        (b"PK\x03\x04" + bytes(100), "file-damaged", ["PyTorch"]),
    ],
)
def test_foreign_and_empty_files_are_named(tmp_path: Path, content: bytes, code: Code, facts: list[str]) -> None:
    source = saved(tmp_path / "src", theirs())
    (source / "model.safetensors").write_bytes(content)
    with refused(code, "model.safetensors", *facts):
        convert(source / "model.safetensors", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize(
    ("changes", "code", "facts"),
    [
        (
            {"hidden_size": 32},
            "weights-mismatch",
            ["model.safetensors", "encoder.embeddings.word.weight", "[21, 16]", "[24, 32]"],
        ),
        ({"num_hidden_layers": 3}, "weights-mismatch", ["lacks 12 encoder", "layers.2"]),
        ({"num_hidden_layers": 1}, "weights-mismatch", ["16 encoder weights too many", "layer.1", "--config"]),
        ({"num_attention_heads": 3}, "file-damaged", ["hidden_size=16", "num_heads=3"]),
        ({"hidden_size": "16"}, "file-damaged", ["hidden_size"]),
        ({"hidden_dropout_prob": 1.5}, "file-damaged", ["hidden_dropout=1.5"]),
        ({"model_type": "roberta"}, "model-unsupported", ["'roberta'", "'bert'"]),
        ({"hidden_act": "relu"}, "model-unsupported", ["'relu'", "gelu"]),
        ({"position_embedding_type": "relative_key"}, "model-unsupported", ["'relative_key'", "absolute"]),
        ({"is_decoder": True}, "model-unsupported", ["is_decoder"]),
    ],
)
def test_a_configuration_of_another_model_is_named(
    tmp_path: Path, changes: dict[str, Any], code: Code, facts: list[str]
) -> None:
    source = saved(tmp_path / "src", theirs(), None)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads((source / "config.json").read_text()) | changes))
    with refused(code, *facts):
        convert(source, tmp_path / "dst", config_file=other)
    assert not (tmp_path / "dst").exists()


def test_a_wrong_vocabulary_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "src", theirs(), [*PIECES, "q"])
    with refused("vocabulary-mismatch", "vocab.txt", "22", "21", "--vocab"):
        convert(source, tmp_path / "dst")
    given = tmp_path / "given.txt"
    given.write_text("\n".join(PIECES))
    done = convert(source, tmp_path / "dst", vocab_file=given)
    assert done.vocab == given and (tmp_path / "dst/vocab.txt").read_text() == given.read_text()
    with refused("path-missing", tmp_path / "none"):
        convert(source, tmp_path / "other", vocab_file=tmp_path / "none")
    given.write_text("\n".join(PIECES[:10]))
    assert "has 10 pieces, the model 21" in convert(source, tmp_path / "short", vocab_file=given).notes[0]
    convert(tmp_path / "dst", tmp_path / "ours", target="bertbench")
    with refused("vocabulary-mismatch", "vocab.txt", "22", "21"):
        convert(tmp_path / "ours", tmp_path / "other", vocab_file=source / "vocab.txt")


def test_a_checkpoint_of_a_run_brings_its_vocabulary_and_takes_no_other(tmp_path: Path) -> None:
    shards = training_runs.shards(tmp_path / "data")
    training_runs.run(training_runs.settings(shards, steps=1), tmp_path / "run/checkpoints")
    done = convert(tmp_path / "run", tmp_path / "dst")
    assert (tmp_path / "dst/vocab.txt").read_text() == (shards / "vocab.txt").read_text()
    assert not done.notes
    pieces = (shards / "vocab.txt").read_text().split()
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]))
    with refused("vocabulary-mismatch", "other.txt", "67", "step-0000001"):
        convert(tmp_path / "run", tmp_path / "wrong", vocab_file=other)
    convert(tmp_path / "run", tmp_path / "right", vocab_file=shards / "vocab.txt")


def test_quantised_weights_are_refused_and_half_precision_becomes_float32(tmp_path: Path) -> None:
    source = saved(tmp_path / "src", theirs())
    state = load_file(source / "model.safetensors")
    save_file({name: value.half() for name, value in state.items()}, source / "model.safetensors")
    convert(source, tmp_path / "dst")
    written = load_file(tmp_path / "dst/model.safetensors")
    assert all(torch.equal(written[name], value.half().float()) for name, value in state.items())
    save_file({name: value.to(torch.int8) for name, value in state.items()}, source / "model.safetensors")
    with refused("model-unsupported", "torch.int8"):
        convert(source, tmp_path / "other")


def test_a_destination_with_something_in_it_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(tmp_path / "src", theirs())
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (taken, file, source):
        with refused("folder-occupied", place):
            convert(source, place)
    assert [path.name for path in taken.iterdir()] == ["thesis.txt"] and file.read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(empty)
        with refused("folder-occupied"):
            convert(source, Path())
    convert(source, empty)
    loaded(empty)
    with refused("write-failed", file / "dst"):
        convert(source, file / "dst")


def test_a_conversion_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "dst") as half:
        (half / "model.safetensors").write_bytes(b"half")
        assert not (tmp_path / "dst").exists()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
