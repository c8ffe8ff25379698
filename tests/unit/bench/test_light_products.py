"""The products of a step are those whose FLOPs bert.model.flops counts."""

from dataclasses import replace

import numpy as np
import pytest
from support.refusals import refused

from bench.steplight.products import (
    HEADS,
    Layout,
    attention_component,
    head_products,
    layer_products,
    packed_layout,
    padded_layout,
    unpadded_layout,
)
from bert.data.batch import BatchCounts
from bert.model.config import PRESETS, ModelConfig
from bert.model.flops import classification_flops, model_flops, span_flops
from bert.tasks import TASKS, task_data
from records.components import Component

LENGTHS = np.array([128, 128, 77, 5])
COUNTS = BatchCounts(
    samples=4, real_tokens=int(LENGTHS.sum()), padded_tokens=4 * 128, predicted_positions=51,
    squared_lengths=int((LENGTHS**2).sum()),
)  # fmt: skip
EXPECTED = {
    "pretrain": model_flops,
    "squad": span_flops,
    "glue": lambda config, counts: classification_flops(config, 3, counts),
    "classify": lambda config, counts: classification_flops(config, 3, counts),
}


def components(task: str, config: ModelConfig, layout: Layout) -> list[Component]:
    products = [*layer_products(config, COUNTS, layout), *head_products(task, config, COUNTS, layout, labels=3)]
    found = [component for product in products for component in product.components(2)]
    return [*found, attention_component(config, COUNTS, layout, 2)]


@pytest.mark.parametrize("name", ["tiny", "base", "distilbert"])
@pytest.mark.parametrize("task", list(EXPECTED))
def test_model_flops_add_up_to_those_of_the_task_whatever_is_padded(task: str, name: str) -> None:
    config = PRESETS[name]
    for layout in (padded_layout(COUNTS), unpadded_layout(COUNTS), packed_layout(3, 128)):
        total = sum(c.calls_per_step * c.model_flops for c in components(task, config, layout))
        assert total == EXPECTED[task](config, COUNTS)


def test_what_is_computed_on_padding_is_the_padding() -> None:
    config = PRESETS["tiny"]
    full = BatchCounts(4, 4 * 128, 4 * 128, 51, 4 * 128**2)
    computed = sum(c.calls_per_step * c.computed_flops for c in components("pretrain", config, padded_layout(COUNTS)))
    rows_of_padded_vocabulary = config.padded_vocab_size - config.vocab_size
    assert rows_of_padded_vocabulary == 6
    head = 6 * config.hidden_size * rows_of_padded_vocabulary * COUNTS.predicted_positions
    assert computed == model_flops(config, full) + head
    unpadded = components("pretrain", config.replace(vocab_multiple=1), unpadded_layout(COUNTS))
    assert all(c.computed_flops == c.model_flops for c in unpadded)


def test_packed_rows_are_computed_as_so_many_full_ones() -> None:
    config, three = PRESETS["tiny"], BatchCounts(3, 3 * 128, 3 * 128, 51, 3 * 128**2)
    assert packed_layout(3, 128) == replace(padded_layout(three), name="packed")
    computed = sum(c.calls_per_step * c.computed_flops for c in components("squad", config, packed_layout(3, 128)))
    assert computed == span_flops(config, three)


def test_shapes_are_those_of_the_three_products() -> None:
    found = [c for c in components("pretrain", PRESETS["base"], padded_layout(COUNTS)) if "feed-forward in" in c.name]
    assert [c.shape for c in found] == [
        "[512 x 768] [768 x 3072]", "[512 x 3072] [3072 x 768]", "[3072 x 512] [512 x 768]"
    ]  # fmt: skip
    assert {c.calls_per_step for c in found} == {12}
    assert {c.computed_flops for c in found} == {2.0 * 512 * 768 * 3072}


def test_tasks_with_unknown_heads_are_refused_by_name() -> None:
    assert {task for task in TASKS if task_data(task).heads not in HEADS} == {"gap"}
    with refused("option-choice", "pretrain, squad, classify, glue", "'gap'"):
        head_products("gap", PRESETS["tiny"], COUNTS, padded_layout(COUNTS))
