"""What a step is said to compute, against PyTorch's own count of the operations, real models, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bert.data.batch import BatchCounts
from bert.data.batches import DataSpec
from bert.model.config import PRESETS, ModelConfig, preset
from bert.model.step import Extent, Step
from bert.tasks import make_task, resolve_options, task_data

ODD = ModelConfig(num_layers=3, hidden_size=48, num_heads=2, intermediate_size=100, vocab_size=999, vocab_multiple=1)
LENGTHS = np.array([128, 128, 77, 5])
COUNTS = BatchCounts(
    samples=4, real_tokens=int(LENGTHS.sum()), padded_tokens=4 * 128, predicted_positions=51,
    squared_lengths=int((LENGTHS**2).sum()),
)  # fmt: skip
# GAP's other heads multiply with what is no parameter.
TASKS = [
    ("pretrain", {}), ("squad", {}), ("classify", {}), ("glue", {"task": "mnli"}), ("glue", {"task": "stsb"}),
    ("gap", {"head": "concat"}), ("gap", {"head": "segment"}),
]  # fmt: skip


def options_of(task: str, given: dict[str, str]) -> str:
    return resolve_options(task, given, task_data(task).inspect("synthetic", 32, given))


def of(name: str, config: ModelConfig, **given: str) -> Step:
    return make_task(name, options_of(name, given)).step(config)


@pytest.mark.parametrize("config", [preset("tiny"), ODD], ids=["tiny", "odd"])
@pytest.mark.parametrize(("name", "given"), TASKS)
def test_flops_are_what_pytorch_counts_on_a_full_batch(name: str, given: dict[str, str], config: ModelConfig) -> None:
    config = config.replace(hidden_dropout=0.0, attention_dropout=0.0)
    task = make_task(name, options_of(name, given))
    spec = DataSpec(data="synthetic:full", seq_len=64, micro_batch_size=2, vocab_size=config.vocab_size)
    batch = next(iter(task.batches(spec)))
    counts = batch.counts
    assert counts.real_tokens == counts.padded_tokens == 2 * 64
    # The math backend makes every product where the counter sees it, and none twice, as the backward of flash does.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.loss(task.build_model(config), batch).backward()
    # What is computed beyond the model: the decoder's padding rows, 6 x hidden for each row and prediction.
    padding = 6 * (config.padded_vocab_size - config.vocab_size) * config.hidden_size * counts.predicted_positions
    assert of(name, config, **given).model_flops(counts) == counter.get_total_flops() - padding


@pytest.mark.parametrize("name", ["tiny", "distilbert"])
@pytest.mark.parametrize(("task", "given"), [*TASKS, ("gap", {"head": "mul"}), ("gap", {"head": "span"})])
def test_parameters_are_those_of_the_model(task: str, given: dict[str, str], name: str) -> None:
    config = PRESETS[name].replace(num_layers=2)
    with torch.device("meta"):
        model = make_task(task, options_of(task, given)).build_model(config)
    assert of(task, config, **given).parameters == sum(p.numel() for p in model.parameters())


def test_base_costs_what_its_published_shape_says_and_padding_is_free() -> None:
    pretraining, questions = of("pretrain", preset("base")), of("squad", preset("base"))
    token = pretraining.model_flops(BatchCounts(0, 1, 1, 0, 0))
    assert token == 6 * 12 * (4 * 768**2 + 2 * 768 * 3072) == 6 * 84_934_656
    assert pretraining.model_flops(BatchCounts(0, 0, 0, 1, 0)) == 6 * (768**2 + 768 * 30522)
    assert pretraining.model_flops(BatchCounts(0, 0, 0, 0, 128**2)) == 12 * 12 * 768 * 128**2
    assert pretraining.model_flops(BatchCounts(1, 0, 0, 0, 0)) == 6 * (768**2 + 2 * 768)
    assert questions.model_flops(BatchCounts(0, 1, 1, 0, 0)) == token + 6 * 2 * 768
    assert questions.model_flops(BatchCounts(3, 0, 999, 0, 0)) == 0
    step = of("pretrain", preset("mini"))
    first, second = BatchCounts(2, 150, 256, 20, 12_000), BatchCounts(3, 300, 384, 45, 33_000)
    assert step.model_flops(first + second) == step.model_flops(first) + step.model_flops(second)
    assert step.model_flops(replace(first, padded_tokens=1024)) == step.model_flops(first)


@pytest.mark.parametrize("task", ["pretrain", "squad"])
def test_what_is_computed_on_padding_is_the_padding(task: str) -> None:
    step = of(task, PRESETS["tiny"])

    def computed(layers: Extent, heads: Extent) -> int:
        gemms = [*((gemm, layers) for gemm in step.layers), *((gemm, heads) for gemm in step.head)]
        products = sum(6 * gemm.times * gemm.rows(extent) * gemm.inner * gemm.columns for gemm, extent in gemms)
        return products + step.config.num_layers * step.attention_flops(layers.squared_lengths)

    padding_words = 6 * 6 * step.config.hidden_size * COUNTS.predicted_positions if task == "pretrain" else 0
    padded, unpadded = Extent.padded(COUNTS), Extent.unpadded(COUNTS)
    full = BatchCounts(4, 4 * 128, 4 * 128, 51, 4 * 128**2)
    assert computed(padded, padded) == step.model_flops(full) + padding_words
    assert computed(unpadded, unpadded) == step.model_flops(COUNTS) + padding_words


def test_a_pass_moves_and_keeps_what_its_elements_take() -> None:
    activation, closing = of("squad", PRESETS["tiny"]).layer_passes
    assert activation.traffic(10, 2) == 5 * 10 * 512 * 2 and activation.kept(10, 2, 1) == 10 * 512 * 2
    assert closing.traffic(10, 2) == 10 * 128 * (2 * 2 + 5 * 4) and closing.kept(10, 2, 1) == 10 * 128 * (4 + 1)
