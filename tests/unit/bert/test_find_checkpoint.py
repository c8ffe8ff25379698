"""What is taken for a checkpoint in a folder, and what is not."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.gap_files import prepared

from bert.checkpoints.read import find_checkpoint
from bert.tasks.base import DataIdentity
from bert.training.resume import find_weights
from common.errors import InputError


def test_features_are_no_weights(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    for source in (folder, *folder.glob("*.safetensors")):
        with pytest.raises(InputError, match=r"holds features, data to train on .*no weights: give a checkpoint"):
            find_checkpoint(source)
    with pytest.raises(InputError, match=r"this run needs a model: a folder step-.*holds features"):
        find_weights(folder, DataIdentity(source="data"), print, "this run needs a model")
    save_file({"bert.pooler.dense.bias": torch.zeros(4)}, folder / "weights.safetensors")
    assert find_checkpoint(folder).path == folder / "weights.safetensors"
