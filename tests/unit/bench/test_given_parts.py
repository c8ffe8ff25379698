"""The floor of a given model: parts seen in its own forward pass, by the definition of bertbench's own parts."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.given_models import CONFIGS, CPU, HIDDEN, INNER, LAYERS, LONGEST, VOCAB, trial_of, write_config
from support.refusals import refused
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bench.cli.main import run
from bench.cli.speed_of_light import SpeedOfLightOptions, planned
from bench.implementations.given import GivenModel
from bench.implementations.module_flops import NotTracedError
from bench.steplight.given_parts import GivenSubject, make_given_parts
from bench.steplight.parts import make_parts
from bench.steplight.subject import Part, Subject
from bench.steplight.trace import GEMM, OTHER, Ref, trace_forward
from bert.model.config import ModelConfig
from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.single import SingleStrategy
from bert.speed.registry import resolve_levers, use_levers
from bert.tasks import make_task, task_step
from bert.tasks.base import DataSpec, Task
from bert.train.loop import Training
from records.kinds import Component
from records.trial import Trial

TRACED = [kind for kind in CONFIGS if kind != "deberta-v2"]
BATCH = 3


def spec_of_data() -> DataSpec:
    return DataSpec(data="synthetic:uniform", seq_len=LONGEST, micro_batch_size=BATCH, vocab_size=VOCAB)


def training_of(model: Any, task: Task, loss: Any, precision: str) -> Training:
    return Training(
        model=model, optimizer=adamw(model, 1e-4), compute_loss=loss, batches=iter(task.batches(spec_of_data())),
        strategy=SingleStrategy(), precision=Precision(precision, "cpu"),
    )  # fmt: skip


def subject(folder: Path, task_name: str = "pretrain", precision: str = "fp32") -> GivenSubject:
    torch.manual_seed(0)
    trial = trial_of(folder, task=task_name)
    given = GivenModel(Trial.from_json({**trial.to_json(), "precision": precision}), made(trial))
    model = given.module()
    training = training_of(model, given.task, given.loss, precision)
    batch = given.adapt(next(iter(given.task.batches(spec_of_data()))))
    return GivenSubject(given=given, model=model, training=training, batch=batch)


def made(trial: Trial) -> Task:
    return make_task(trial.task, trial.task_options)


def own_parts() -> dict[str, Component]:
    """Those of bertbench's own model of the shape of CONFIGS["bert"], padded, by name."""
    shape = ModelConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_heads=4, intermediate_size=INNER, vocab_size=VOCAB,
        max_positions=LONGEST,
    )  # fmt: skip
    task = make_task("pretrain", "")
    model = task.build_model(shape)
    use_levers(model, resolve_levers("none", "cpu"))
    training = training_of(model, task, task.loss, "fp32")
    batch = next(iter(task.batches(spec_of_data())))
    step = task_step("pretrain", "", shape)
    return by_name(make_parts(Subject(task=task, step=step, model=model, training=training, batch=batch)))


def by_name(parts: list[Part]) -> dict[str, Component]:
    return {part.component.name: part.component for part in parts}


def total(parts: dict[str, Component], group: str, amount: str) -> float:
    """Of the parts of a group; bytes of those that memory bounds."""
    found = [one for one in parts.values() if one.group == group and (amount != "bytes" or not one.computed_flops)]
    return sum(one.calls_per_step * float(getattr(one, amount)) for one in found)


@pytest.mark.parametrize(
    ("kind", "task", "precision"),
    [*((kind, "pretrain", "fp32") for kind in TRACED), ("bert", "classify", "fp32"), ("roberta", "classify", "bf16"),
     ("modernbert", "pretrain", "bf16"), ("modernbert", "classify", "bf16")],
)  # fmt: skip
def test_parts_have_the_flops_of_the_module_and_change_nothing(
    kind: str, task: str, precision: str, tmp_path: Path
) -> None:
    step = subject(write_config(tmp_path / kind, kind), task, precision)
    before = {name: weight.detach().clone() for name, weight in step.model.named_parameters()}
    parts = make_given_parts(step)
    for part in parts:
        part.run()
    assert sum(part.component.calls_per_step * part.component.model_flops for part in parts) == step.given.model_flops(
        step.batch.counts
    )
    assert len(by_name(parts)) == len(parts)
    assert {part.component.group for part in parts} == {
        "layers", "attention", "head", "elementwise", "copies", "optimizer"
    }  # fmt: skip
    for name, weight in step.model.named_parameters():
        assert torch.equal(weight, before[name]) and weight.grad is None, name


def test_a_bert_has_the_floor_of_the_preset_of_its_shape_but_for_the_heads(tmp_path: Path) -> None:
    step = subject(write_config(tmp_path / "bert"))
    given, own = by_name(make_given_parts(step)), own_parts()
    counts = step.batch.counts
    for group in ("layers", "attention"):
        for amount in ("model_flops", "computed_flops"):
            assert total(given, group, amount) == total(own, group, amount) > 0, (group, amount)
    assert total(given, "elementwise", "bytes") == total(own, "elementwise", "bytes") > 0
    assert total(given, "copies", "bytes") == total(own, "copies", "bytes") == 0
    parameters = sum(weight.numel() for weight in step.model.parameters())
    assert given["optimizer"].bytes == 28 * parameters
    # The heads: words, of positions with a label; the preset has a pooler and a second head, and gathers positions.
    words = counts.predicted_positions
    assert total(given, "head", "model_flops") == 6 * words * (HIDDEN**2 + HIDDEN * VOCAB)
    assert total(given, "head", "computed_flops") == 6 * counts.padded_tokens * (HIDDEN**2 + HIDDEN * VOCAB)
    assert total(given, "head", "bytes") == pytest.approx(4 * words * (5 * HIDDEN + 3 * VOCAB))
    assert own["head GELU, norm"].bytes == 4 * words * 5 * HIDDEN


def test_the_traffic_of_a_modernbert_is_that_counted_by_hand(tmp_path: Path) -> None:
    """In elements of a token; each is read or written forward and backward, and one is read again."""
    step = subject(write_config(tmp_path / "modernbert", "modernbert"))
    parts, tokens = by_name(make_given_parts(step)), step.batch.counts.padded_tokens
    rotary = 2 * (2 * HIDDEN + 2 * HIDDEN)  # queries and keys in and out; values are not touched, none is read again
    gated = 2 * (2 * INNER + INNER) + 2 * INNER
    norm = 2 * (2 * HIDDEN + 2 * HIDDEN) + HIDDEN  # its input is an output, too: the residual
    last = 2 * (2 * HIDDEN + HIDDEN) + HIDDEN
    expected = LAYERS * (rotary + gated) + (2 * LAYERS - 1) * norm + last + 5 * HIDDEN
    assert total(parts, "elementwise", "bytes") == 4 * tokens * expected


def test_recorded_calls_give_the_same_loss_again(tmp_path: Path) -> None:
    """So nothing between inputs and loss is missing from the trace."""
    for kind in TRACED:
        step = subject(write_config(tmp_path / kind, kind))
        model = step.model.eval()
        losses: list[Tensor] = []

        def forward(step: GivenSubject = step, losses: list[Tensor] = losses) -> Tensor:
            losses.append(step.given.loss(step.model, step.batch))
            return losses[-1]

        trace = trace_forward(model, forward)
        known: dict[int, Any] = {}
        for call in trace.calls:
            args, named = tree_map(
                lambda leaf, known=known: known[leaf.value] if isinstance(leaf, Ref) else leaf, call.args
            )
            made = [
                leaf
                for leaf in torch.utils._pytree.tree_leaves(call.function(*args, **named))
                if isinstance(leaf, Tensor)
            ]
            known |= {value: made[place] for place, value in call.outputs}
        torch.testing.assert_close(known[trace.result], losses[0], rtol=0, atol=0)
        linear = sum(isinstance(module, nn.Linear) for module in model.modules())
        assert len(trace.of_kind(GEMM)) == linear, kind


def test_equal_regions_are_one_part_and_as_often_as_they_are_there(tmp_path: Path) -> None:
    found = by_name(make_given_parts(subject(write_config(tmp_path / "bert", num_hidden_layers=5))))
    calls = Counter({name: one.calls_per_step for name, one in found.items() if one.group == "elementwise"})
    assert calls == {"embedding, add, layer norm, dropout": 1, "dropout, add, layer norm": 10, "gelu": 5}
    assert found["attention"].calls_per_step == 5


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * grad


class Encoder(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.base_model = nn.Linear(8, 8)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.between(self.base_model(x)).sum()


def double(x: Tensor) -> Tensor:
    return Double.apply(x) + 1  # type: ignore[no-untyped-call,no-any-return]


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (lambda x: x @ x.transpose(0, 1), "multiplies matrices"),
        (lambda x: torch.einsum("ij,kj->ik", x, x), "multiplies matrices"),
        (lambda x: x.add_(1), "in place"),
        (double, "not one of PyTorch's functions"),
    ],
)
def test_what_a_trace_cannot_follow_is_refused(between: Callable[[Tensor], Tensor], message: str) -> None:
    model = Encoder(between)
    with pytest.raises(NotTracedError, match=message):
        trace_forward(model, lambda: model(torch.ones(4, 8)))
    known = Encoder(lambda x: F.gelu(x))
    trace = trace_forward(known, lambda: known(torch.ones(4, 8)))
    assert [call.kind for call in trace.calls] == [GEMM, OTHER, OTHER]


def test_a_floor_is_unknown_where_the_trace_or_its_flops_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("model-unsupported", "DebertaV2ForMaskedLM", "is unknown", "bertbench throughput pretrain"):
        make_given_parts(subject(write_config(tmp_path / "deberta", "deberta-v2")))
    step = subject(write_config(tmp_path / "bert"))
    right = step.given.model_flops(step.batch.counts)
    assert right is not None
    monkeypatch.setattr(step.given, "model_flops", lambda counts: right + 2)
    with refused("model-unsupported", "FLOPs"):
        make_given_parts(step)
    monkeypatch.setattr(step.given, "model_flops", lambda counts: None)
    with refused("model-unsupported", "unknown"):
        make_given_parts(step)


def test_a_given_model_is_broken_down_as_hf_and_has_no_options_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_config(tmp_path / "bert")
    options = SpeedOfLightOptions(task="pretrain", model=str(folder), seq_len=LONGEST)
    trial = planned(options, CPU)
    assert (trial.kind, trial.implementation, trial.model) == ("components", "hf", str(folder.resolve()))
    for words, code in (
        (["pretrain", "--preset", "mini"], "option-conflict"),
        (["pretrain", "--levers", "none"], "option-conflict"),
        (["pretrain", "--dropout", "0"], "option-conflict"),
        (["pretrain", "--winner-of", str(tmp_path)], "option-conflict"),
        (["squad"], "option-not-applicable"),
    ):
        assert run(["speed-of-light", *words, "--model", str(folder), "--out", "/nowhere/run"]) == 2
        assert code in capsys.readouterr().err
