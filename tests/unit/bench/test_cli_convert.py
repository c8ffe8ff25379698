"""`bertbench convert` says what it read, what became of it and what is wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import facts, result, text

from bert.checkpoints.files import save_model
from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining

CONFIG = ModelConfig(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=16, vocab_size=13, max_positions=8)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    folder = tmp_path / "source"
    save_model(folder, BertForPretraining(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    return folder


def test_the_table_counts_what_was_read_and_what_became_of_it(source: Path, tmp_path: Path) -> None:
    done = result("convert", source, tmp_path / "hf")
    shown = dict(facts(done.blocks))
    assert shown["tensors read"] == shown["converted"] == "26"
    assert (shown["missing"], shown["unexpected"]) == ("0", "0")
    numbers = sum(value.numel() for value in load_file(tmp_path / "hf/model.safetensors").values())
    assert shown["parameters"] == f"{numbers:,}"
    assert shown["model"].startswith("BertForPreTraining: 1 layers, hidden size 8, 13 word pieces")
    assert str(tmp_path / "hf") in shown["folder"] and not done.notes


def test_missing_and_unexpected_names_are_listed(source: Path, tmp_path: Path) -> None:
    result("convert", source, tmp_path / "hf")
    weights = tmp_path / "hf" / "model.safetensors"
    state = {name: value for name, value in load_file(weights).items() if not name.startswith("bert.pooler.")}
    save_file({**state, **{f"head.{number}": torch.zeros(1) for number in range(30)}}, weights)
    shown = text(result("convert", tmp_path / "hf", tmp_path / "again").blocks)
    assert "2 encoder.pooler.bias, encoder.pooler.weight" in shown
    assert "30 head.0, head.1" in shown and ", ..." in shown
