"""TensorFlow checkpoints are read without TensorFlow: equal to its own reading, and no damage goes unseen."""

import json
from pathlib import Path

import pytest
import torch
from support import checkpoints as writer
from support import shared_files
from support.refusals import refused

from bert.checkpoints.tensorflow import hugging_face_name, is_weight, read_variables

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
