"""What is taken for a checkpoint in a folder, and what is not."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from support.gap_files import prepared
from support.refusals import refused

from bert.checkpoints.read import find_checkpoint
from bert.tasks.base import DataIdentity
from bert.train.resume import find_weights


def test_features_are_no_weights(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    for source in (folder, *folder.glob("*.safetensors")):
        with refused("file-format", source):
            find_checkpoint(source)
    with refused("file-format", "this run needs a model", "step-"):
        find_weights(folder, DataIdentity(source="data"), print, "this run needs a model")
    save_file({"bert.pooler.dense.bias": torch.zeros(4)}, folder / "weights.safetensors")
    assert find_checkpoint(folder).path == folder / "weights.safetensors"
