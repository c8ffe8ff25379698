"""`hf-unpadded`: concatenated sequences give the loss and the gradients of padded ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.given_models import CONFIGS, LONGEST, VOCAB, trial_of, write_config
from support.refusals import refused

from bench.implementations import make_implementation
from bench.implementations.hugging_face import traced_model
from bert.data.batch import Batch, BatchCounts
from bert.tasks import make_task

NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0.0)
WINDOW = {"local_attention": 16, "global_attn_every_n_layers": 2}


def batch() -> Batch:
    ids = torch.randint(5, VOCAB, (3, LONGEST), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    ids[1, 40:], mask[1, 40:] = 0, 0
    ids[2, 7:], mask[2, 7:] = 0, 0
    tensors = {
        "input_ids": ids, "attention_mask": mask, "token_type_ids": (torch.arange(LONGEST) > 5).long() * mask,
        "masked_positions": torch.tensor([3, 9, LONGEST + 7, 2 * LONGEST + 3]),
        "masked_labels": torch.tensor([11, 12, 13, 14]), "next_sentence_labels": torch.zeros(3).long(),
    }  # fmt: skip
    return Batch(tensors, BatchCounts(3, LONGEST + 47, 3 * LONGEST, 4, LONGEST**2 + 1649))


def loss_and_gradients(folder: Path, implementation: str) -> tuple[float, list[torch.Tensor]]:
    trial = trial_of(folder, implementation)
    given = traced_model(trial, make_task("pretrain", ""), implementation)
    torch.manual_seed(1)
    model = given.module()
    adapted = given.adapt(batch())
    if implementation == "hf-unpadded":
        assert adapted.tensors["input_ids"].shape == (1, LONGEST + 47)
    loss = given.loss(model, adapted)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize(
    "kind",
    [
        name if name in ("roberta", "modernbert") else pytest.param(name, marks=pytest.mark.slow)
        for name in CONFIGS
        if name != "deberta-v2"
    ],
)
def test_loss_and_gradients_are_those_with_padding(kind: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = WINDOW if kind == "modernbert" else {}
    folder = write_config(tmp_path / kind, kind, **NO_DROPOUT, **changes)
    padded, unpadded = loss_and_gradients(folder, "hf"), loss_and_gradients(folder, "hf-unpadded")
    assert unpadded[0] == pytest.approx(padded[0], abs=1e-6) and len(unpadded[1]) == len(padded[1]) > 0
    for theirs, ours in zip(padded[1], unpadded[1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    if kind == "modernbert":  # its windows are narrower than the sequences
        whole = write_config(tmp_path / "whole", kind, **NO_DROPOUT, **{**WINDOW, "local_attention": 2 * LONGEST})
        assert loss_and_gradients(whole, "hf-unpadded")[0] != pytest.approx(unpadded[0], abs=1e-6)


def test_what_cannot_be_concatenated_is_refused(tmp_path: Path) -> None:
    with refused("unsupported-combination", "--implementations hf"):
        loss_and_gradients(write_config(tmp_path / "deberta-v2", "deberta-v2"), "hf-unpadded")
    folder = write_config(tmp_path / "bert")
    implementation = make_implementation("hf-unpadded")
    with refused("unsupported-combination", "classify"):
        implementation.check(trial_of(folder, "hf-unpadded", task="classify"))
    with refused("unsupported-combination", "--model"):
        implementation.check(trial_of(folder, "hf-unpadded", model="", model_fingerprint="", preset="tiny"))
    leading = batch()
    leading.tensors["attention_mask"][0, 0] = 0
    given = traced_model(trial_of(folder, "hf-unpadded"), make_task("pretrain", ""), "hf-unpadded")
    with refused("unsupported-combination", "begins with padding"):
        given.adapt(leading)
