"""Times whole training steps of several batches and precisions in one process, as total samples / total time.

    python tests/gpu/steps.py [--rows bf16:64 fp8:224 fp8:128:lamb] [--seconds 6] [--json]

One process saves the imports of a trial each. A row is PRECISION:BATCH, with AdamW, or PRECISION:BATCH:lamb; LAMB clips
to a norm of 1, as in MLPerf. Rows have batch, precision, optimizer, steps, samples/s, tokens/s, ms of the median step,
joules per sample and mean power where NVML counts energy, and host_ms: the time that the host takes to issue a step.
`--profile FILE` writes the functions that five steps of the last row spend host time in, by cProfile.
"""

import argparse
import cProfile
import io
import itertools
import json
import pstats
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import torch  # noqa: E402

from bench.implementations import OURS, make_implementation  # noqa: E402
from bert.model.config import model_config  # noqa: E402
from bert.observer import Observer  # noqa: E402
from bert.optim.precision import Precision  # noqa: E402
from bert.optim.registry import lamb  # noqa: E402
from bert.parallel import make_strategy  # noqa: E402
from bert.parallel.base import StepPlan  # noqa: E402
from bert.tasks import make_task  # noqa: E402
from bert.train.feed import Feed, data_spec  # noqa: E402
from bert.train.loop import Training, run_step  # noqa: E402
from records.trial import Trial  # noqa: E402

WARMUP = 5


def trial_of(given: argparse.Namespace, batch: int, precision: str) -> Trial:
    """Return the trial of a row."""
    return Trial(
        task="pretrain", preset=given.preset, data=given.data, seq_len=given.seq_len, micro_batch_size=batch,
        precision=precision, device=given.device,
    )  # fmt: skip


def training_of(trial: Trial, optimizer: str) -> Training:
    """Build what a single rank trains with, as `bertbench throughput` does."""
    torch.manual_seed(trial.seed)
    strategy = make_strategy("single")
    strategy.setup(trial.device)
    task, observer, precision = make_task(trial.task), Observer(), Precision(trial.precision, trial.device)
    implementation = make_implementation(OURS)
    built = implementation.build(trial, task, model_config(trial), observer)
    spec = data_spec(trial, strategy)
    adapt = implementation.adapter(trial)
    model = strategy.wrap(built.model, observer, StepPlan(train=trial))
    made = built.make_optimizer(model)  # gives the weights their copies too
    if optimizer == "lamb":
        made = lamb(model, 1e-4, max_grad_norm=1.0, fused=type(made).__name__ == "FusedAdamW")
    strategy.prepare(made, precision)
    return Training(
        model=model, optimizer=made, compute_loss=built.compute_loss, strategy=strategy, precision=precision,
        batches=Feed(task.batches(spec), trial.device == "cuda", adapt),
    )  # fmt: skip


def millijoules(device: str) -> int | None:
    """Return the energy that the GPU has used so far; None where it is not counted."""
    if device != "cuda":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)))
    except Exception:  # no NVML, or a GPU without a counter
        return None


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measured(training: Training, device: str, seconds: float) -> dict[str, Any]:
    """Return the figures of steps of so many seconds after WARMUP ones."""
    observer, times, host, samples, tokens = Observer(), list[float](), list[float](), 0, 0
    training.model.train()
    for step in range(WARMUP):
        run_step(training, observer, step)
    wait(device)
    marks = [_mark(device)]
    energy, began = millijoules(device), time.perf_counter()
    while len(host) < 2 or time.perf_counter() - began < seconds:
        issued = time.perf_counter()
        counts = run_step(training, observer, WARMUP + len(host)).counts
        host.append(time.perf_counter() - issued)
        marks.append(_mark(device))
        samples, tokens = samples + counts.samples, tokens + counts.real_tokens
    wait(device)
    took, used = time.perf_counter() - began, millijoules(device)
    times = [_between(first, second) for first, second in itertools.pairwise(marks)]
    row = {"steps": len(host), "samples_per_second": samples / took, "tokens_per_second": tokens / took}
    row |= {"step_time_ms": statistics.median(times), "host_ms": 1e3 * statistics.median(host)}
    if energy is not None and used is not None:
        joules = (used - energy) / 1e3
        row |= {"joules_per_sample": joules / samples, "watts": joules / took}
    return row


def _mark(device: str) -> Any:
    if device != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(first: Any, second: Any) -> float:
    return 1e3 * (second - first) if isinstance(first, float) else float(first.elapsed_time(second))


def profile(training: Training, path: Path, steps: int = 5) -> None:
    """Write the 60 functions that take most host time in so many steps."""
    profiler, text = cProfile.Profile(), io.StringIO()
    profiler.enable()
    for step in range(steps):
        run_step(training, Observer(), step)
    profiler.disable()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(60)
    path.write_text(text.getvalue())


def main(argv: Sequence[str]) -> int:
    """Print what each row measured; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--preset", default="large")
    parser.add_argument("--data", default="synthetic:mean254")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rows", nargs="+", default=["bf16:64", "bf16:128", "fp8:64", "fp8:128", "fp8:224"])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--json", action="store_true", help="the only output there is")
    given = parser.parse_args(argv)
    rows, training = list[dict[str, Any]](), None
    for words in given.rows:
        precision, batch, *optimizer = words.split(":")
        row: dict[str, Any] = {"batch": int(batch), "precision": precision, "optimizer": "".join(optimizer) or "adamw"}
        training = None  # frees the memory of the row before
        try:
            training = training_of(trial_of(given, row["batch"], precision), row["optimizer"])
            row |= measured(training, given.device, given.seconds)
        except Exception as error:  # e.g. out of memory; the other rows still run
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
        sys.stderr.write(f"{json.dumps(row)}\n")
    if given.profile is not None and training is not None:
        profile(training, given.profile)
    if given.json:
        sys.stdout.write(json.dumps({"torch": torch.__version__, "rows": rows}) + "\n")
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
