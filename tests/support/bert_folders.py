"""Small models of transformers in folders, for the tests of conversion."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from support import bundle_writer
from torch import Tensor

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
    bundle_writer.write_checkpoint(prefix, {**tensors, **(more or {})})
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
