"""Dumps, tables and databases that would run code, fill memory or read other files are refused."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.refusals import refused

from bert.checkpoints.files import read_tensors
from bert.tasks.glue.tables import TASKS, read_hub


def test_a_release_of_datasets_that_runs_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    old = SimpleNamespace(__version__="3.6.0", load_dataset=lambda *words: asked.append(words))
    monkeypatch.setitem(sys.modules, "datasets", old)
    with refused("tool-version", "datasets 3.6.0", "'datasets>=4'"):
        read_hub("somebody/glue", TASKS["sst2"])
    assert asked == []


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
