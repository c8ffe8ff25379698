"""`--model`: what is counted of a module, what is refused, the loss of its masked positions, also unpadded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pretraining_shards import PIECES, write_folder
from support.refusals import refused
from torch import nn

from bench.cli.parser import parse
from bench.cli.throughput import ThroughputOptions
from bench.implementations import make_implementation
from bench.implementations.hugging_face import GivenModel, built, traced_model
from bench.implementations.model_folder import RANDOM, SAFETENSORS, find_model
from bench.implementations.module_flops import NotTracedError, training_flops
from bench.machine.devices import Devices
from bench.search.throughput import command
from bench.sweep.training import TrainOptions, plan_training
from bench.sweep.trials import Sweep, expand
from bert.data.batch import Batch, BatchCounts
from bert.tasks import make_task
from records.trial import Trial

VOCAB, HIDDEN, INNER, LAYERS, LONGEST = 203, 32, 80, 2, 64
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": INNER, "max_position_embeddings": LONGEST, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SHAPE,
    "roberta": {**SHAPE, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {
        "vocab_size": VOCAB, "dim": HIDDEN, "n_layers": LAYERS, "n_heads": 4, "hidden_dim": INNER,
        "max_position_embeddings": LONGEST,
    },
    "electra": {**SHAPE, "embedding_size": 16},
    "deberta-v2": {
        **SHAPE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
        "share_att_key": True, "type_vocab_size": 0,
    },
    "modernbert": {**SHAPE, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
}  # fmt: skip
CPU = Devices("cpu", (), 4)


def write_config(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"model_type": kind, **CONFIGS.get(kind, SHAPE), **changes}
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in fields.items() if value is not None})
    )
    return folder


def trial_of(folder: Path, implementation: str = "hf", task: str = "pretrain", **changes: Any) -> Trial:
    (trial,) = expand(
        Sweep(
            task=task, model=str(folder), implementations=(implementation,), devices=(1,), seq_lens=(LONGEST,), rounds=1
        ),
        CPU,
    )
    return Trial.from_json({**trial.to_json(), **changes})


COUNTS = BatchCounts(
    samples=3, real_tokens=64 + 31 + 5, padded_tokens=192, predicted_positions=17, squared_lengths=64**2 + 31**2 + 25
)


def test_a_model_that_reads_values_is_counted_with_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    trial = trial_of(write_config(tmp_path))
    expected, forward = given_model(trial).model_flops(COUNTS), transformers.BertModel.forward

    def reads(self: Any, *inputs: Any, **named: Any) -> Any:
        (inputs[0] if inputs else named["input_ids"]).max().item()
        return forward(self, *inputs, **named)

    monkeypatch.setattr(transformers.BertModel, "forward", reads)
    assert expected is not None and given_model(trial).model_flops(COUNTS) == expected


def given_model(trial: Trial) -> GivenModel:
    return GivenModel(trial, make_task(trial.task, trial.task_options))


def by_hand(kind: str) -> int:
    """FLOPs of the forward passes: 2 for each multiplication with a weight, 4 H for each pair of tokens and layer."""
    tokens, predictions = COUNTS.real_tokens, COUNTS.predicted_positions
    layer = 4 * HIDDEN**2 + 2 * HIDDEN * INNER
    head, once, table = HIDDEN**2 + HIDDEN * VOCAB, 0, 0
    if kind == "modernbert":  # a gated feed-forward layer has a third matrix
        layer += HIDDEN * INNER
    if kind == "electra":  # a narrow embedding, which the head goes back to
        table, head = 16 * HIDDEN, HIDDEN * 16 + 16 * VOCAB
    if kind == "deberta-v2":  # 2 x 8 relative positions: projected twice a batch, multiplied with queries and keys
        layer += 2 * 16 * HIDDEN
        once = LAYERS * 2 * 2 * 16 * HIDDEN**2
    forward = 2 * tokens * (LAYERS * layer + table) + 2 * predictions * head + once
    return forward + LAYERS * 4 * HIDDEN * COUNTS.squared_lengths


@pytest.mark.parametrize("task", ["pretrain", "classify"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_flops_of_the_module_are_those_counted_by_hand(kind: str, task: str, tmp_path: Path) -> None:
    expected = by_hand(kind)
    if task == "classify":  # pooler or dense layer, and two classes; BERT's pooler is part of its encoder
        of_words = (HIDDEN**2 + HIDDEN * VOCAB) if kind != "electra" else HIDDEN * 16 + 16 * VOCAB
        expected -= 2 * COUNTS.predicted_positions * of_words
        expected += 2 * COUNTS.samples * (HIDDEN**2 + HIDDEN * 2)
    given = given_model(trial_of(write_config(tmp_path / kind, kind), task=task))
    assert given.model_flops(COUNTS) == 3 * expected


class Encoder(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.base_model = body
        self.head = nn.Linear(8, 50, device="meta")

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.head(self.base_model(input_ids))


class Body(nn.Module):
    """Attention in a window."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(*input_ids.shape, 8, device="meta")
        near = hidden[:, :20]
        return hidden + (hidden @ near.transpose(1, 2)) @ near


def test_flops_are_unknown_where_the_form_does_not_hold() -> None:
    with pytest.raises(NotTracedError, match="quadratic"):
        training_flops(Encoder(Body()), LONGEST)


@pytest.mark.parametrize(
    ("kind", "task"),
    [("roberta", "pretrain"), ("modernbert", "pretrain"), *((kind, "classify") for kind in ("bert", "deberta-v2"))],
)
def test_the_loss_is_the_cross_entropy_of_masked_words_or_classes(kind: str, task: str, tmp_path: Path) -> None:
    trial = trial_of(write_config(tmp_path / kind, kind), task=task)
    given = given_model(trial)
    made = built(trial, given)
    model: Any = made.model.eval()
    ids = torch.randint(5, VOCAB, (2, LONGEST), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[1, 40:], mask[1, 40:] = 0, 0
    positions, labels = torch.tensor([3, 9, LONGEST + 7]), torch.tensor([11, 12, 13])
    tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    tensors |= (
        {"masked_positions": positions, "masked_labels": labels} if task == "pretrain" else {"labels": labels[:2] % 2}
    )
    adapted = given.adapt(Batch(tensors, COUNTS))
    assert (adapted.tensors["input_ids"][1, 40:] == CONFIGS[kind]["pad_token_id"]).all() and (ids[1, 40:] == 0).all()
    logits = model(input_ids=adapted.tensors["input_ids"], attention_mask=mask).logits
    wanted = (logits.flatten(0, 1)[positions], labels) if task == "pretrain" else (logits, labels[:2] % 2)
    torch.testing.assert_close(made.compute_loss(model, adapted), F.cross_entropy(*wanted))
    assert given.record()["model"]["weights"] == RANDOM


def test_weights_of_a_folder_are_loaded(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForMaskedLM

    folder = write_config(tmp_path / "bert")
    saved = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder))
    saved.save_pretrained(folder)
    trial = trial_of(folder)
    loaded = built(trial, given_model(trial)).model.state_dict()
    assert trial.model_weights == SAFETENSORS
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.state_dict().items())


def test_a_moved_model_keeps_its_trial_and_another_shape_is_another_trial(tmp_path: Path) -> None:
    first = trial_of(write_config(tmp_path / "a" / "small"))
    moved = trial_of(write_config(tmp_path / "b" / "small"))
    other = trial_of(write_config(tmp_path / "c" / "small", num_hidden_layers=3))
    assert first.trial_id == moved.trial_id and first.model != moved.model
    assert other.trial_id != first.trial_id and other.preset != first.preset
    assert (first.vocab_size, first.dropout) == (VOCAB, 0.1)


def test_pickled_weights_alone_are_refused_and_the_configuration_is_not(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "bert")
    (folder / "pytorch_model.bin").write_bytes(b"no matter")
    with refused("model-unsupported", folder, "safetensors"):
        given_model(trial_of(folder)).module()
    found = find_model(str(folder / "config.json")).settings
    assert found["model_weights"] == RANDOM and found["preset"].startswith("bert-")


def test_code_of_a_folder_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "own", "own", auto_map={"AutoConfig": "own.OwnConfig"})
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import BertConfig\n"
        f"Path({str(ran)!r}).touch()\n\n\nclass OwnConfig(BertConfig):\n    model_type = 'own'\n"
    )
    with refused("model-unsupported", "--trust-remote-code"):
        find_model(str(folder))
    assert not ran.exists()
    assert find_model(str(folder), trust_remote_code=True).vocab_size == VOCAB and ran.exists()


def test_sequences_and_shards_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    roberta = write_config(tmp_path / "roberta", "roberta")
    with refused("option-value", LONGEST, LONGEST + 1):
        expand(Sweep(model=str(roberta), implementations=("hf",), devices=(1,), seq_lens=(LONGEST + 1,)), CPU)
    shards = write_folder(tmp_path / "shards")
    source = json.loads((shards / "metadata.json").read_text())["instances"]["seq_len"]

    def plan(folder: Path) -> list[Trial]:
        options = {"devices": (1,), "seq_lens": (source,), "data": str(shards)}
        return expand(Sweep(model=str(folder), implementations=("hf",), **options), CPU)  # type: ignore[arg-type]

    model = write_config(tmp_path / "fits", max_position_embeddings=512)
    assert plan(model)[0].vocab_size == len(PIECES)
    with refused("vocabulary-mismatch", len(PIECES), 40):
        plan(write_config(tmp_path / "few", vocab_size=40, max_position_embeddings=512))
    (model / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    with refused("vocabulary-mismatch", model):
        plan(model)
    (model / "vocab.txt").write_bytes((shards / "vocab.txt").read_bytes())
    assert plan(model)
    (model / "vocab.txt").write_text("".join(f"{piece}\n" for piece in reversed(PIECES)))
    with refused("vocabulary-mismatch", "vocab.txt"):
        plan(model)


def test_the_fastest_configuration_is_trained_by_a_command_of_the_same_model_or_measured(tmp_path: Path) -> None:
    trial = trial_of(write_config(tmp_path / "bert"), "hf-trainer")
    assert command(trial_of(tmp_path / "bert"))[1] == "throughput" and command(trial)[1] == "train"
    options = parse(TrainOptions, command(trial)[2:], "bertbench train")
    settings = plan_training(options, CPU).settings
    assert (settings.model, settings.model_fingerprint) == (trial.model, trial.model_fingerprint)
    assert (settings.micro_batch_size, settings.vocab_size) == (trial.micro_batch_size, trial.vocab_size)
    measured = parse(ThroughputOptions, command(trial_of(tmp_path / "bert"))[2:], "bertbench throughput").sweep
    assert (measured.model, measured.batch_sizes) == (trial.model, (trial.micro_batch_size,))


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
