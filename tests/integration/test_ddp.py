"""Two real gloo processes against one."""

import json
from pathlib import Path

import pytest
from support.warm_processes import start_world, wait


def be_rank(out: str, strategy_name: str, accumulation: int, overflows: bool = False) -> int:
    """Train six steps as one rank, or on the batches of two where there is one; write what came of it.

    With `overflows` in fp16, and in the third step a gradient of rank 1 alone overflows.
    """
    import torch

    from bert.data.batch import Batch
    from bert.data.batches import DataSpec
    from bert.model.config import ModelConfig
    from bert.observer import Observer, StepResult
    from bert.optim.precision import Precision
    from bert.optim.registry import adamw
    from bert.parallel import STRATEGIES, base
    from bert.parallel.base import StepPlan
    from bert.tasks.pretrain.batches import SyntheticBatches
    from bert.tasks.pretrain.task import PretrainTask
    from bert.train.loop import Training, train
    from common.registry import load
    from common.train_spec import TrainSpec

    torch.set_num_threads(1)
    strategy = load(STRATEGIES, strategy_name, "strategy")()
    strategy.setup("cpu")
    torch.manual_seed(0)
    config = ModelConfig(
        num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64, vocab_size=1000, hidden_dropout=0.0,
        attention_dropout=0.0, max_positions=64,
    )  # fmt: skip
    task = PretrainTask()
    marks: list[str] = []
    losses: list[float] = []
    applied: list[bool] = []
    kind = "fp16" if overflows else "fp32"

    def compute_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        loss = task.loss(model, batch)
        if not (overflows and strategy.rank == 1 and len(losses) == 2):
            return loss
        # No number, with an infinite gradient of one weight.
        weight = next(model.parameters()).flatten()[0]
        return loss + (weight - weight.detach()) * torch.inf

    class Ear(Observer):
        def mark(self, name: str) -> None:
            marks.append(name)

        def step_end(self, step: int, result: StepResult) -> None:
            losses.append(float(result.loss))
            applied.append(result.applied is not False)

    # Two streams, as two ranks would see them; one process reads both in turn.
    specs = [
        DataSpec(
            data="synthetic:full", seq_len=32, micro_batch_size=4, max_predictions=5, vocab_size=1000, rank=rank,
            world_size=2,
        )
        for rank in range(2)
    ]  # fmt: skip
    if strategy.world_size == 2:
        stream = iter(SyntheticBatches(specs[strategy.rank]))
    else:
        pair = [iter(SyntheticBatches(spec)) for spec in specs]
        stream = (next(side) for _ in iter(int, 1) for side in pair)
    observer = Ear()
    spec = TrainSpec(precision=kind, grad_accum_steps=accumulation)
    plan = StepPlan(train=spec)
    model = strategy.wrap(task.build_model(config, observer), observer, plan)
    training = Training(
        model=model, optimizer=adamw(model, learning_rate=1e-3), compute_loss=compute_loss, batches=stream,
        strategy=strategy, precision=Precision(kind, "cpu"), grad_accum_steps=accumulation, max_grad_norm=1.0,
    )  # fmt: skip
    train(training, observer, lambda step: step < 6)
    total = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
    highest = strategy.maximum(torch.tensor([float(strategy.rank), 5.0], dtype=torch.float64)).tolist()
    found = {"losses": losses, "weights": total, "marks": len(marks), "maximum": highest, "applied": applied}
    (Path(out) / f"{strategy.rank}.json").write_text(json.dumps(found))
    strategy.barrier()
    strategy.teardown()
    # Whoever drops a group last may wait for ever for gloo's threads.
    assert bool(base._LEFT) == (strategy.world_size > 1)
    return 0


def run(out: Path, strategy: str, ranks: int, accumulation: int, overflows: bool = False) -> list[dict[str, object]]:
    codes = wait(start_world(be_rank, str(out), strategy, accumulation, overflows, ranks=ranks, place=out), out)
    assert codes == [0] * ranks, "".join(path.read_text() for path in out.glob("errors-*.txt"))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_ranks_train_as_one_at_the_same_global_batch(tmp_path: Path, accumulation: int) -> None:
    (alone,) = run(tmp_path / "alone", "single", 1, 2 * accumulation)
    first, second = run(tmp_path / "pair", "ddp", 2, accumulation)
    assert first["weights"] == second["weights"], "the ranks hold the same model"
    assert first["weights"] == pytest.approx(alone["weights"], rel=1e-6)
    pairs = zip(first["losses"], second["losses"], strict=True)  # type: ignore[call-overload]
    mean = [(left + right) / 2 for left, right in pairs]
    assert mean == pytest.approx(alone["losses"], rel=1e-5)
    assert first["marks"] == 6, "gradients are reduced once per step, whatever the accumulation"
    assert first["maximum"] == second["maximum"] == [1.0, 5.0]
    assert alone["maximum"] == [0.0, 5.0]


def test_ranks_in_fp8_have_scales_of_their_own_and_train_as_one(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from support import process_runs, training_runs
    from support.fp8_needed import need_fast_fp8

    from bert.speed.fp8 import GRADIENT, INPUT, WEIGHT

    need_fast_fp8()
    data = training_runs.shards(tmp_path / "data")
    same = {"precision": "fp8"}
    expected = process_runs.alone(data, tmp_path / "alone", **same).losses
    found = process_runs.losses_of(process_runs.pair(data, tmp_path, "ddp", tmp_path / "pair", **same))
    assert found.keys() == expected.keys()
    for step, loss in found.items():
        assert abs(loss - float.fromhex(expected[step])) < 0.02 * loss
    scales = [load_file(tmp_path / f"pair/step-0000006/fp8-{rank}.safetensors")["scale"] for rank in range(2)]
    assert (scales[0][:, WEIGHT] == scales[1][:, WEIGHT]).all()
    assert (scales[0][:, [INPUT, GRADIENT]] != scales[1][:, [INPUT, GRADIENT]]).any()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_overflow_of_one_rank_in_fp16_is_skipped_by_both(tmp_path: Path, accumulation: int) -> None:
    first, second = run(tmp_path / "fp16", "ddp", 2, accumulation, True)
    assert first["weights"] == second["weights"], "the ranks hold the same model"
    assert first["applied"] == second["applied"] == [True, True, False, True, True, True]
