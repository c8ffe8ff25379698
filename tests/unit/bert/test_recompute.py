"""Activations that are made again in the backward pass change memory, and nothing else."""

import pytest
import torch
from support.training_runs import Recorder, run, settings

from bert.data.batches import DataSpec
from bert.model.config import PRESETS
from bert.model.encoder import recompute_activations
from bert.model.heads import BertForPretraining
from bert.tasks.pretrain.task import PretrainTask


def saved_bytes(recompute: bool) -> int:
    """Bytes that the forward pass of a tiny model keeps for the backward pass, parameters aside."""
    torch.manual_seed(0)
    model = BertForPretraining(PRESETS["tiny"])
    if recompute:
        recompute_activations(model)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    spec = DataSpec(data="synthetic", seq_len=64, micro_batch_size=4, max_predictions=2)
    batch = next(iter(PretrainTask().batches(spec)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(batch).loss
    loss.backward()
    return sum(kept.values())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_losses_are_the_same_bit_for_bit(tmp_path, dropout):
    plain, again = Recorder(), Recorder()
    run(settings("synthetic", steps=4, dropout=dropout), tmp_path / "plain", plain)
    run(settings("synthetic", steps=4, dropout=dropout, activation_checkpointing=True), tmp_path / "again", again)
    assert again.losses == plain.losses and len(plain.losses) == 4


def test_a_run_goes_on_with_or_without_it_and_says_nothing(tmp_path):
    whole, first, second = Recorder(), Recorder(stop_after=3), Recorder()
    run(settings("synthetic", steps=6), tmp_path / "whole", whole)
    run(settings("synthetic", steps=6, activation_checkpointing=True), tmp_path / "parts", first)
    run(settings("synthetic", steps=6), tmp_path / "parts", second)
    assert {**first.losses, **second.losses} == whole.losses
    assert not second.warnings


def test_less_is_kept_for_the_backward_pass():
    assert saved_bytes(True) < 0.5 * saved_bytes(False)
