"""What speed is promised: ours against Hugging Face's by our own sweep, and what measuring costs."""

import json
import time
from pathlib import Path

import pytest
import torch
from support.cli import Cli, printed

from bench.run.clock import StepClock
from bert.data.batch import Batch, BatchCounts
from bert.observer import Observer, Observers
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.speed import native
from bert.train.loop import Training, train
from records.files import RowWriter
from records.schema import STEP_COLUMNS

pytestmark = pytest.mark.alone


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("preset", "batch", "least", "seconds"), [("mini", 16, 2.5, 15), ("base", 8, 1.4, 30)])
def test_ours_beats_hugging_face_by_our_own_sweep(
    cli: Cli, preset: str, batch: int, least: float, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.VARIABLE, "1")
    options = ["--preset", preset, "--seq-lens", "128", "--batch-sizes", str(batch), "--precisions", "auto"]
    options += ["--implementations", "bertbench", "hf", "--data", "synthetic", "--device", "cpu"]
    options += ["--max-seconds", str(seconds)]
    for rounds in (1, 3):  # one round is enough where the answer is clear; a noisy one is asked twice more
        words = (*options, "--rounds", rounds, "--out", cli.out, "--json")
        value = json.loads(printed("throughput", "pretrain", *words))
        assert {row["dropout"] for row in value["rows"]} == {0.1}
        (ratio,) = value["ratios"]
        precision = value["rows"][0]["precision"]
        print(f"{preset} batch {batch} {precision}, {rounds} round(s): {ratio['throughput_ratio']:.2f} x hf")
        if ratio["throughput_ratio"] >= least:
            break
    assert ratio["throughput_ratio"] >= least


def test_observers_cost_under_one_percent_of_the_smallest_step_make_bench_measures(tmp_path: Path) -> None:
    smallest_step_ms = 50.0  # mini, batch 4, on a fast CPU or one GPU is no quicker with Python in the loop
    batch = Batch({"x": torch.ones(1)}, BatchCounts(1, 1, 1, 1, 1))

    def milliseconds_per_step(observer: Observer, steps: int = 400) -> float:
        model = torch.nn.Linear(1, 1)
        loop = Training(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters()),
            compute_loss=lambda wrapped, given: wrapped(given.tensors["x"]).sum(),
            batches=iter(lambda: batch, None),
            strategy=SingleStrategy(),
            precision=Precision("fp32", "cpu"),
        )
        began = time.perf_counter()
        train(loop, observer, lambda step: step < steps)
        return 1000 * (time.perf_counter() - began) / steps

    costs = []
    for number in range(5):
        with RowWriter(tmp_path / f"steps-{number}.csv", STEP_COLUMNS) as writer:
            clock = StepClock("cpu", lambda counts: 1.0, writer.write)
            costs.append(milliseconds_per_step(Observers([clock])) - milliseconds_per_step(Observer()))
    print(f"ms per step: {sorted(costs)}")
    assert sorted(costs)[2] < 0.01 * smallest_step_ms
