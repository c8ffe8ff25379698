"""BERT around nn.TransformerEncoder: with the same weights its losses and gradients are ours."""

import pytest
import torch
from torch import nn

from bench.implementations.torch_encoder import MODELS, PlainEncoder, PlainModel, TorchEncoderImplementation
from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.observer import Observer
from bert.tasks import make_task, task_data
from records.trial import Trial

VOCAB = 101  # not a multiple of 8: our embedding has three padding rows
SHAPE = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64, max_positions=64, vocab_size=VOCAB,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


def task_of(name: str):
    from bert.tasks import resolve_options, task_data

    data = task_data(name)
    given = {"glue": {"task": "cola"}}.get(name, {})
    return make_task(name, resolve_options(name, given, data.inspect("synthetic", 16, given)))


def make_batch(lengths: list[int], seq_len: int, labels: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(1)
    size, real = len(lengths), torch.tensor(lengths)
    mask = (torch.arange(seq_len) < real[:, None]).long()
    ids = torch.randint(1, VOCAB, (size, seq_len), generator=generator) * mask
    ids[0, 0] = 0  # the padding token as a real one, whose input gradient is left out
    positions = torch.cat([row * seq_len + torch.arange(min(3, n)) for row, n in enumerate(lengths)])
    ends = torch.stack([torch.randint(0, n, (2,), generator=generator) for n in lengths]).sort(1).values
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(seq_len) >= real[:, None] // 2).long() * mask,
        "masked_positions": positions,
        "masked_labels": torch.randint(0, VOCAB, positions.shape, generator=generator),
        "next_sentence_labels": torch.randint(0, 2, (size,), generator=generator),
        "start_positions": ends[:, 0],
        "end_positions": ends[:, 1],
        "labels": torch.randint(0, labels, (size,), generator=generator),
    }
    return Batch(tensors, BatchCounts(size, sum(lengths), size * seq_len, len(positions), int((real**2).sum())))


def names_of_ours(config: ModelConfig) -> dict[str, str]:
    """Parameter of the plain model -> parameter of ours."""
    names = {f"encoder.{name}.weight": f"encoder.embeddings.{name}.weight" for name in ("word", "position")}
    names |= {"encoder.token_type.weight": "encoder.embeddings.token_type.weight"} if config.type_vocab_size else {}
    pairs = {"encoder.norm": "encoder.embeddings.norm", "encoder.pooler": "encoder.pooler"}
    pairs |= {"transform": "masked_words.dense", "transform_norm": "masked_words.norm", "span": "answer_span.output"}
    pairs |= {name: name for name in ("next_sentence", "classifier")}
    for layer in range(config.num_layers):
        plain, own = f"encoder.transformer.layers.{layer}", f"encoder.layers.{layer}"
        pairs |= {f"{plain}.self_attn.out_proj": f"{own}.attention.output", f"{plain}.norm1": f"{own}.attention_norm"}
        pairs |= {f"{plain}.linear1": f"{own}.intermediate", f"{plain}.linear2": f"{own}.output"}
        pairs |= {f"{plain}.norm2": f"{own}.output_norm"}
        names |= {f"{plain}.self_attn.in_proj_{part}": f"{own}.attention.qkv.{part}" for part in ("weight", "bias")}
    names |= {f"{a}.{part}": f"{b}.{part}" for a, b in pairs.items() for part in ("weight", "bias")}
    return {**names, "word_bias": "masked_words.bias"}


def pair(task_name: str, config: ModelConfig) -> tuple[PlainModel, nn.Module, dict[str, str]]:
    """Both models with the same weights, spread wider than at the start so that every part matters."""
    torch.manual_seed(0)
    task = task_of(task_name)
    plain, ours = MODELS[task_data(task_name).heads](config, task), task.build_model(config)
    names = names_of_ours(config)
    own = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            own[names[name]][: len(parameter)] = parameter
    return plain, ours, names


def assert_alike(task_name: str, config: ModelConfig, batch: Batch) -> None:
    plain, ours, names = pair(task_name, config)
    loss, expected = plain(batch), task_of(task_name).loss(ours, batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    own = dict(ours.named_parameters())
    found = {names[name]: parameter.grad for name, parameter in plain.named_parameters()}
    assert found.keys() == own.keys()
    largest = max(float(grad.abs().max()) for grad in found.values())
    last_biases = (f"encoder.layers.{config.num_layers - 1}.output_norm.bias", "answer_span.output.bias")
    for name, grad in found.items():
        # Rows of the padded vocabulary have no gradient. A key bias, and for spans the last two biases, have none but
        # rounding: they shift all that a softmax compares alike.
        other = own[name].grad[: len(grad)]
        shifts_all = name.endswith("qkv.bias") or (task_name == "squad" and name in last_biases)
        scale = largest if shifts_all else float(other.abs().max())
        assert float((grad - other).abs().max()) <= 1e-5 * scale, name


@pytest.mark.parametrize(
    ("config", "lengths", "seq_len"),
    [
        (SHAPE, [24, 24, 24], 24),
        (SHAPE, [24, 9, 3, 17], 24),
        (SHAPE, [64, 1], 64),
        (SHAPE.replace(num_layers=1, hidden_size=48, num_heads=3, vocab_multiple=1), [5], 5),
        (SHAPE.replace(type_vocab_size=0), [31, 30, 2, 8, 31], 31),
    ],
)
def test_losses_and_gradients_of_pretraining_are_ours(config: ModelConfig, lengths: list[int], seq_len: int) -> None:
    assert_alike("pretrain", config, make_batch(lengths, seq_len))


@pytest.mark.parametrize("task_name", ["squad", "glue", "classify"])
def test_losses_and_gradients_of_fine_tuning_are_ours(task_name: str) -> None:
    # Of questions padding competes here, so that full windows alone have the same loss.
    lengths = [24, 24, 24] if task_name == "squad" else [24, 9, 3, 17]
    assert_alike(task_name, SHAPE, make_batch(lengths, 24))


def test_recomputed_activations_change_no_gradient() -> None:
    batch = make_batch([24, 9], 24)
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        trial = Trial(implementation="torch-encoder", activation_checkpointing=recompute)
        model: nn.Module = TorchEncoderImplementation().build(trial, task_of("pretrain"), SHAPE, Observer()).model
        model(batch).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(found[0], found[1])


def test_dropout_is_where_the_configuration_has_it() -> None:
    model = PlainEncoder(SHAPE.replace(hidden_dropout=0.25, attention_dropout=0.125))
    probabilities = [part.p for part in model.modules() if isinstance(part, nn.Dropout)]
    assert probabilities == [0.25] * (1 + 2 * SHAPE.num_layers)
    attention = [part.dropout for part in model.modules() if isinstance(part, nn.MultiheadAttention)]
    assert attention == [0.125] * SHAPE.num_layers
