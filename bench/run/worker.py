"""What each rank runs: an implementation, trained by the loop, with the observers of the trial. Started by torchrun."""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bench.run.out_of_memory import memory_is_short, ran_out_of_memory
from bench.run.processes import STOP_VARIABLE, die_with_parent, listen_for_stop
from bench.run.rank_resources import (
    backend,
    limit_memory,
    reset_used_memory,
    take_share_of_cores,
    torch_versions,
    used_memory,
)
from bert.model.config import model_config
from common.errors import BertbenchError, Code, StorageError
from common.redact import redact_text
from records.files import write_record
from records.run import TrialDirectory
from records.trial import Trial

T = TypeVar("T")

_START = time.perf_counter()

# Exit code of a rank that has written down why it stopped.
EXPLAINED = 3


def main(argv: list[str]) -> int:
    """Train the trial whose folder is argv[0]; what goes wrong is written there, for the harness to read."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = int(os.environ.get("RANK", "0"))
    directory = TrialDirectory(Path(argv[0]))
    trial: Trial | None = None
    try:
        should_stop = listen_for_stop() if STOP_VARIABLE in os.environ else None
        trial = directory.read_trial()
        if trial.kind == "comm":
            _measure_collectives(directory, trial)
        elif should_stop is None:
            run_rank(directory, trial, rank)
        else:
            _train(directory, trial, rank, should_stop)
    except Exception as error:
        status, reason, code = _explain(error, trial.memory_limit_bytes if trial is not None else None)
        if status == "crashed" and not isinstance(error, BertbenchError):
            sys.excepthook(*sys.exc_info())
        try:
            said = {"status": status, "code": code, "reason": redact_text(reason)}
            write_record(directory.failure_json(rank), {**said, "time": time.time()})
        except StorageError as full:
            sys.stderr.write(f"{full}\n")
        return EXPLAINED
    return 0


def run_rank(directory: TrialDirectory, trial: Trial, rank: int) -> None:
    """Measure as one rank of a trial that trains or draws batches, and write this rank's records."""
    take_share_of_cores(trial)
    seconds = _import_torch()
    import torch

    from bench.run.clock import StepClock
    from bench.run.input_only import without_training
    from bench.run.recorder import step_writer
    from bench.run.window import Window
    from bert.optim.precision import Precision
    from bert.parallel.options import make_strategy
    from bert.tasks import make_task, task_step
    from bert.train.feed import data_spec
    from bert.train.observer import Observers

    limit_memory(trial)
    torch.manual_seed(trial.seed)
    strategy = make_strategy(trial.strategy, trial.strategy_options)
    strategy.setup(trial.device)
    precision = Precision(trial.precision, trial.device)
    task = make_task(trial.task, trial.task_options)
    config = model_config(trial)
    step = task_step(trial.task, trial.task_options, config)
    implementation = _implementation(trial)
    input_only = trial.kind == "input"
    with step_writer(directory.steps_csv(rank)) as writer:

        def on_row(row: dict[str, Any]) -> None:
            writer.write(without_training(row) if input_only else row)
            window.record(row["step_time_ms"])

        # Batches that stay on the host are timed there.
        clock = StepClock("cpu" if input_only else trial.device, step.model_flops, on_row)
        window = Window(trial, clock.flush, strategy.maximum)
        if input_only:
            measured = _measure_input(trial, task, implementation, strategy, window, clock, seconds)
        else:
            # The clock comes last: it starts after the profiler has and stops before the profiler writes.
            observer = Observers([*_profiler_observers(directory, trial, rank), clock])
            built = _timed(seconds, "build_model", lambda: implementation.build(trial, task, config, observer))
            parameters = sum(parameter.numel() for parameter in built.model.parameters())
            batches = _batches(task.batches(data_spec(trial, strategy)), strategy, implementation)
            training = _timed(
                seconds, "prepare", lambda: _training(trial, built, batches, strategy, precision, observer)
            )
            if trial.kind == "components":
                measured = _measure_components(directory, trial, training, built, task, step, observer, seconds)
            else:
                measured = _measure(training, trial, rank, window, observer, built.loop, seconds, parameters)
    write_record(directory.rank_json(rank), {"rank": rank, **measured, "torch": torch_versions()})
    strategy.barrier()
    strategy.teardown()


def _measure_collectives(directory: TrialDirectory, trial: Trial) -> None:
    """Measure one collective and train nothing."""
    take_share_of_cores(trial)
    seconds = _import_torch()
    from bench.run.collectives import measure
    from bert.parallel import STRATEGIES
    from common.registry import load

    strategy = load(STRATEGIES, trial.strategy, "strategy")()
    strategy.setup(trial.device)
    measure(directory, trial, strategy, {"seconds": seconds, "torch": torch_versions()})
    strategy.barrier()
    strategy.teardown()


def _train(directory: TrialDirectory, trial: Trial, rank: int, should_stop: Callable[[], bool]) -> None:
    """Make one attempt at a training run."""
    take_share_of_cores(trial)
    seconds = _import_torch()
    import torch

    from bench.run.train_worker import run_attempt
    from bert.parallel.options import make_strategy

    limit_memory(trial)
    strategy = make_strategy(trial.strategy, trial.strategy_options)
    strategy.setup(trial.device)
    measured = _timed(seconds, "train", lambda: run_attempt(directory, trial, strategy, should_stop))
    seconds["total"] = time.perf_counter() - _START
    record = {
        "rank": rank,
        **measured,
        **used_memory(strategy.device),
        "backend": backend(),
        "unknown": dict.fromkeys(("mfu", "measured_peak_flops"), "a training run measures no peak"),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "torch": torch_versions(),
    }
    write_record(directory.rank_json(rank), record)
    strategy.barrier()
    strategy.teardown()


def _measure(
    training: Any,
    trial: Trial,
    rank: int,
    window: Any,
    observer: Any,
    loop: Any,
    seconds: dict[str, float],
    parameters: int,
) -> dict[str, Any]:
    """Train between two measurements of the achievable peak; return the rank's record."""
    import torch

    from bench.run.backward import backward_of
    from bench.run.peak import matmul_peak
    from bert.speed.fp8 import products_dtype
    from bert.train.loop import train

    strategy, dtype = training.strategy, training.precision.matmul_dtype
    products = products_dtype(training.model, dtype)
    if strategy.device.type == "cuda":  # a CPU only imitates FP8, more slowly than bf16: that rate is no peak
        dtype = products
    peak_before = matmul_peak(strategy.device, dtype)
    strategy.barrier()
    torch.manual_seed(trial.seed + 1 + rank)
    reset_used_memory(strategy.device)
    steps = _timed(seconds, "train", lambda: (loop or train)(training, observer, window.keep_going))
    memory = used_memory(strategy.device)
    strategy.barrier()
    backward = _timed(seconds, "backward_timeline", lambda: backward_of(training, trial))
    strategy.barrier()
    peak_after = matmul_peak(strategy.device, dtype)
    seconds["total"] = time.perf_counter() - _START
    return {
        **memory,
        "steps": steps,
        "stopped_because": window.stopped_because,
        "measured_peak": {
            "before": peak_before["flops_per_second"],
            "after": peak_after["flops_per_second"],
            "dtype": peak_after["dtype"],
            "shape": peak_after["shape"],
            "products": str(products).removeprefix("torch."),
        },
        "parameters": parameters,
        "backward": backward,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }


def _measure_components(
    directory: TrialDirectory,
    trial: Trial,
    training: Any,
    built: Any,
    task: Any,
    step: Any,
    observer: Any,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Time the parts of a step alone, and whole steps around them; return the rank's record."""
    import torch

    from bench.steplight.measure import measure_components
    from bert.train.feed import data_spec

    torch.manual_seed(trial.seed + 1 + training.strategy.rank)
    sample = iter(task.batches(data_spec(trial, training.strategy)))
    measured = _timed(
        seconds,
        "components",
        lambda: measure_components(directory, trial, training, built.model, task, step, sample, observer),
    )
    seconds["total"] = time.perf_counter() - _START
    return {**measured, "seconds": seconds}


def _measure_input(
    trial: Trial, task: Any, implementation: Any, strategy: Any, window: Any, observer: Any, seconds: dict[str, float]
) -> dict[str, Any]:
    """Draw batches and do nothing with them; return the rank's record."""
    import torch

    from bench.run.input_only import draw, rank_record
    from bert.train.feed import data_spec

    stream = task.batches(data_spec(trial, strategy))
    batches = _batches(stream, strategy, implementation)
    strategy.barrier()
    steps = _timed(seconds, "draw", lambda: draw(batches, trial.grad_accum_steps, observer, window.keep_going))
    strategy.barrier()
    seconds["total"] = time.perf_counter() - _START
    return {
        **rank_record(stream),
        "steps": steps,
        "stopped_because": window.stopped_because,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }


def _import_torch() -> dict[str, float]:
    """Import torch and what its optimizers import anyway; return the seconds it took."""
    began = time.perf_counter()
    import torch
    import torch._dynamo  # the first optimizer of a process loads it, which would otherwise look like our set-up

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    return {"before_torch": began - _START, "import_torch": time.perf_counter() - began}


def _timed(seconds: dict[str, float], name: str, work: Callable[[], T]) -> T:
    began = time.perf_counter()
    result = work()
    seconds[name] = time.perf_counter() - began
    return result


def _implementation(trial: Trial) -> Any:
    from bench.implementations import IMPLEMENTATIONS
    from common.registry import load

    implementation = load(IMPLEMENTATIONS, trial.implementation, "implementation")()
    implementation.check(trial)
    return implementation


def _training(trial: Trial, built: Any, batches: Iterator[Any], strategy: Any, precision: Any, observer: Any) -> Any:
    from bert.parallel.base import StepPlan
    from bert.train.loop import Training

    plan = StepPlan(train=trial, levers=built.levers)
    # A loop of its own wraps the model, too.
    model = strategy.wrap(built.model, observer, plan) if built.loop is None else built.model.to(strategy.device)
    optimizer = built.make_optimizer(model)
    strategy.prepare(optimizer, precision)
    return Training(
        model=model,
        optimizer=optimizer,
        compute_loss=built.compute_loss,
        batches=batches,
        strategy=strategy,
        precision=precision,
        grad_accum_steps=trial.grad_accum_steps,
    )


def _batches(stream: Any, strategy: Any, implementation: Any) -> Iterator[Any]:
    from bert.train.feed import Feed

    return Feed(stream, strategy.device.type == "cuda", implementation.adapt)


def _profiler_observers(directory: TrialDirectory, trial: Trial, rank: int) -> list[Any]:
    if trial.profiler is None:
        return []
    from bench.profilers import load_profiler
    from bench.profilers.base import Scope

    profiler = load_profiler(trial.profiler, trial.profiler_options)
    return [profiler.observer(Scope(trial=trial, directory=directory.profile), rank)]


def _explain(error: Exception, memory_limit_bytes: int | None = None) -> tuple[str, str, Code]:
    """Return the status, the reason and the code of a failure; of a lack of memory with the limit a rank was given."""
    code: Code = error.code if isinstance(error, BertbenchError) else "rank-failed"
    text = f"{type(error).__name__}: {error}" if not isinstance(error, BertbenchError) else str(error)
    text = text.strip()[:2000]
    if ran_out_of_memory(error) or (not isinstance(error, BertbenchError) and memory_is_short()):
        text = text.removesuffix(":")
        if memory_limit_bytes is not None:
            text = f"more than the {memory_limit_bytes / 2**30:.3g} GiB a rank may use (--memory-limit-gib): {text}"
        return "oom", text, "out-of-memory"
    from bert.train.loop import DivergenceError  # torch, for which there may be no memory

    if isinstance(error, StorageError):
        return "interrupted", text, code  # with more space the same command makes it again
    # The plain class is what the other ranks see of a rank's unexpected failure.
    expected = isinstance(error, BertbenchError) and type(error) is not BertbenchError
    if expected and not isinstance(error, DivergenceError):
        return "refused", text, code
    return "crashed", text, code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken process group must not hold the process, and taking torch apart costs half a second.
    os._exit(exit_code)
