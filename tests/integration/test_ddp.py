"""Two real gloo processes against one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import ROOT

PROGRAM = """
import json, sys
import torch
from bert.batch import Batch
from bert.config import ModelConfig
from bert.data.synthetic import SyntheticBatches
from bert.observer import Observer
from bert.optim import adamw
from bert.precision import Precision
from bert.strategies import STRATEGIES
from bert.tasks.base import DataSpec
from bert.tasks.pretrain import PretrainTask
from bert.train import Training, train
from common.registry import load

out, strategy_name, accumulation = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
strategy = load(STRATEGIES, strategy_name, "strategy")()
strategy.setup("cpu")
torch.manual_seed(0)
config = ModelConfig(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64, vocab_size=1000,
                     hidden_dropout=0.0, attention_dropout=0.0, max_positions=64)
task = PretrainTask()
marks = []

class Ear(Observer):
    def mark(self, name):
        marks.append(name)
    def step_end(self, step, result):
        losses.append(float(result.loss))

losses = []
# Two streams, as two ranks would see them; one process reads both in turn.
specs = [DataSpec(source="synthetic:full", seq_len=32, micro_batch_size=4, max_predictions=5, vocab_size=1000,
                  rank=rank, world_size=2) for rank in range(2)]
if strategy.world_size == 2:
    stream = iter(SyntheticBatches(specs[strategy.rank]))
else:
    pair = [iter(SyntheticBatches(spec)) for spec in specs]
    stream = (next(side) for _ in iter(int, 1) for side in pair)
observer = Ear()
model = strategy.wrap(task.build_model(config, observer), observer)
training = Training(model=model, optimizer=adamw(model, learning_rate=1e-3), compute_loss=task.loss, batches=stream,
                    strategy=strategy, precision=Precision("fp32", "cpu"), grad_accum_steps=accumulation,
                    max_grad_norm=1.0)
train(training, observer, lambda step: step < 6)
total = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
highest = strategy.maximum(torch.tensor([float(strategy.rank), 5.0], dtype=torch.float64)).tolist()
json.dump({"losses": losses, "weights": total, "marks": len(marks), "maximum": highest},
          open(f"{out}/{strategy.rank}.json", "w"))
strategy.barrier()
strategy.teardown()
"""


def run(out: Path, strategy: str, ranks: int, accumulation: int) -> list[dict[str, object]]:
    out.mkdir()
    program = out / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [*command, str(program), str(out), strategy, str(accumulation)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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
