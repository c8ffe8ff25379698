"""Predicted memory: an example worked by hand, and the parts it is made of against the real model."""

import dataclasses
from dataclasses import replace

import pytest
import torch

from bert.data.batch import Batch
from bert.data.batches import DataSpec
from bert.memory import predict_memory
from bert.model.config import PRESETS, shape_in_words
from bert.model.encoder import recompute_activations
from bert.model.heads import BertForPretraining
from bert.optim.precision import Precision
from bert.speed import apply, native
from bert.tasks.pretrain.task import PretrainTask
from common.train_spec import TrainSpec

SMALL = TrainSpec(
    preset="tiny", vocab_size=1000, dropout=0.0, precision="fp32", micro_batch_size=4, seq_len=64, max_predictions=10
)


def test_the_worked_example():
    found = predict_memory(SMALL, "cuda")
    # Tiny with 1,000 words: H = 128, F = 512, 2 layers. Rows 1,000 + 512 + 2; a layer 4 H^2 + 2 H F + 9 H + F.
    parameters = 1514 * 128 + 256 + 2 * (4 * 128**2 + 2 * 128 * 512 + 9 * 128 + 512)
    parameters += (128**2 + 3 * 128 + 1000) + (128**2 + 128 + 2 * 128 + 2)  # heads
    assert (found.parameters, found.gradients, found.optimizer) == (4 * parameters, 4 * parameters, 8 * parameters)
    # 256 tokens; per token and layer 6 x 4 H + 2 x 4 F + 2 x 4 H = 8,192 bytes; logits 40 x 1,000 x 12; embeddings 4 H.
    assert found.activations == 2 * 256 * 8192 + 40 * 1000 * 12 + 256 * 4 * 128
    assert found.workspace == 2 * 4 * 256 * 512 + (64 << 20)
    assert found.total == sum(dataclasses.astuple(found))


@pytest.mark.parametrize(
    ("strategy", "options", "divided"), [
        ("deepspeed", '{"zero_stage":0}', ()), ("deepspeed", '{"zero_stage":1}', ("optimizer",)),
        ("deepspeed", '{"zero_stage":2}', ("optimizer", "gradients")),
        ("deepspeed", '{"zero_stage":3}', ("optimizer", "gradients", "parameters")),
        ("fsdp", "", ("optimizer", "gradients", "parameters")), ("ddp", "", ()),
    ],
)  # fmt: skip
def test_each_stage_of_zero_divides_one_part_more(strategy, options, divided):
    whole = predict_memory(replace(SMALL, precision="bf16"), "cuda")
    four = replace(SMALL, precision="bf16", world_size=4, strategy=strategy, strategy_options=options)
    found = predict_memory(four, "cuda")
    for part in ("parameters", "gradients", "optimizer", "activations"):
        assert getattr(found, part) == getattr(whole, part) // (4 if part in divided else 1)


def test_16_bits_and_recomputing_keep_less_and_dropout_more():
    def activations(device="cuda", **changes):
        return predict_memory(replace(SMALL, task="squad", shape=shape, **changes), device).activations

    shape = shape_in_words(PRESETS["tiny"].replace(num_layers=12))
    plain = activations()
    assert activations(precision="bf16") < 0.7 * plain
    assert activations(activation_checkpointing=True) < 0.2 * plain
    assert plain < activations(dropout=0.1) < activations("cpu", dropout=0.1)


def kept_bytes(spec, precision, dropout=0.0, recompute=False):
    """Return the bytes that a forward pass of `mini` keeps for the backward pass, and the columns of its batch."""
    config = PRESETS["mini"].replace(vocab_size=1000, hidden_dropout=dropout, attention_dropout=dropout)
    model = BertForPretraining(config)
    apply(model, "fast")
    if recompute:
        recompute_activations(model)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    made = next(iter(PretrainTask().batches(spec)))  # views of a whole pool of samples
    all_real = replace(made.counts, real_tokens=made.counts.padded_tokens)  # what is predicted is the most
    batch = Batch({name: tensor.clone() for name, tensor in made.tensors.items()}, all_real)
    shapes = {tuple(parameter.shape) for parameter in model.parameters() if parameter.ndim == 2}
    shapes |= {shape[::-1] for shape in shapes}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tuple(tensor.shape) not in shapes:  # casts of weights are workspace
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), Precision(precision, "cpu").autocast():
        loss = model(batch).loss
    loss.backward()
    return sum(kept.values()), batch.tensors["input_ids"].shape[1]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_what_the_model_keeps_for_the_backward_pass(dropout, precision, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "1")
    spec = DataSpec(
        data="synthetic", seq_len=128, micro_batch_size=7, max_predictions=10, vocab_size=1000, padding="longest"
    )
    kept, longest = kept_bytes(spec, precision, dropout)
    predicted = predict_memory(
        replace(spec, preset="mini", dropout=dropout, precision=precision, seq_len=longest), "cpu"
    )
    assert predicted.activations == pytest.approx(kept, rel=0.03)
    assert kept_bytes(spec, precision, dropout, recompute=True)[0] < 0.5 * kept
