"""What each rank runs: an implementation, trained by the loop, with the observers of the trial. Started by torchrun."""

import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from analysis.records import Trial, TrialDirectory, write_record
from bench.processes import STOP_VARIABLE, die_with_parent, listen_for_stop
from common.errors import BertbenchError, StorageError

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
    try:
        should_stop = listen_for_stop() if STOP_VARIABLE in os.environ else None
        trial = directory.read_trial()
        if should_stop is None:
            _run(directory, trial, rank)
        else:
            _train(directory, trial, rank, should_stop)
    except Exception as error:
        status, reason = _explain(error)
        if status == "crashed" and not isinstance(error, BertbenchError):
            sys.excepthook(*sys.exc_info())
        try:
            write_record(directory.failure_json(rank), {"status": status, "reason": reason, "time": time.time()})
        except StorageError as full:
            sys.stderr.write(f"{full}\n")
        return EXPLAINED
    return 0


def _run(directory: TrialDirectory, trial: Trial, rank: int) -> None:
    _take_share_of_cores(trial)
    seconds = _import_torch()
    import torch

    from bench.input_only import without_training
    from bench.recorder import step_writer
    from bench.timing import StepClock
    from bench.window import Window
    from bert.observer import Observers
    from bert.precision import Precision
    from bert.strategies import STRATEGIES
    from bert.tasks import TASKS
    from common.registry import load

    _limit_memory(trial)
    torch.manual_seed(trial.seed)
    strategy = load(STRATEGIES, trial.strategy, "strategy")()
    strategy.setup(trial.device)
    precision = Precision(trial.precision, trial.device)
    task = load(TASKS, trial.task, "task")()
    config = _model_config(trial)
    implementation = _implementation(trial)
    input_only = trial.kind == "input"
    with step_writer(directory.steps_csv(rank)) as writer:

        def on_row(row: dict[str, Any]) -> None:
            writer.write(without_training(row) if input_only else row)
            window.record(row["step_time_ms"])

        # Batches that stay on the host are timed there.
        clock = StepClock(
            "cpu" if input_only else trial.device, lambda counts: task.model_flops(config, counts), on_row
        )
        window = Window(trial, clock.flush, strategy.maximum)
        if input_only:
            measured = _measure_input(trial, task, implementation, strategy, window, clock, seconds)
        else:
            # The clock comes last: it starts after the profiler has and stops before the profiler writes.
            observer = Observers([*_profiler_observers(directory, trial, rank), clock])
            built = _timed(seconds, "build_model", lambda: implementation.build(trial, task, config, observer))
            batches = _batches(trial, task.batches(_data_spec(trial, strategy)), strategy, implementation)
            training = _timed(
                seconds, "prepare", lambda: _training(trial, built, batches, strategy, precision, observer)
            )
            measured = _measure(training, trial, rank, window, observer, seconds)
    write_record(directory.rank_json(rank), {"rank": rank, **measured, "torch": _torch_versions()})
    strategy.barrier()
    strategy.teardown()


def _train(directory: TrialDirectory, trial: Trial, rank: int, should_stop: Callable[[], bool]) -> None:
    """Make one attempt at a training run."""
    _take_share_of_cores(trial)
    seconds = _import_torch()
    import torch

    from bench.train_worker import run_attempt
    from bert.strategies import STRATEGIES
    from common.registry import load

    _limit_memory(trial)
    strategy = load(STRATEGIES, trial.strategy, "strategy")()
    strategy.setup(trial.device)
    measured = _timed(seconds, "train", lambda: run_attempt(directory, trial, strategy, should_stop))
    seconds["total"] = time.perf_counter() - _START
    record = {
        "rank": rank,
        **measured,
        **_memory(strategy.device),
        "unknown": dict.fromkeys(("mfu", "measured_peak_flops"), "a training run measures no peak"),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "torch": _torch_versions(),
    }
    write_record(directory.rank_json(rank), record)
    strategy.barrier()
    strategy.teardown()


def _measure(
    training: Any, trial: Trial, rank: int, window: Any, observer: Any, seconds: dict[str, float]
) -> dict[str, Any]:
    """Train between two measurements of the achievable peak; return the rank's record."""
    import torch

    from bench.peak import matmul_peak
    from bert.train import train

    strategy, dtype = training.strategy, training.precision.matmul_dtype
    peak_before = matmul_peak(strategy.device, dtype)
    strategy.barrier()
    torch.manual_seed(trial.seed + 1 + rank)
    if strategy.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps = _timed(seconds, "train", lambda: train(training, observer, window.keep_going))
    memory = _memory(strategy.device)
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
        },
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }


def _measure_input(
    trial: Trial, task: Any, implementation: Any, strategy: Any, window: Any, observer: Any, seconds: dict[str, float]
) -> dict[str, Any]:
    """Draw batches and do nothing with them; return the rank's record."""
    import torch

    from bench.input_only import draw, rank_record

    stream = task.batches(_data_spec(trial, strategy))
    batches = _batches(trial, stream, strategy, implementation)
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


def _model_config(trial: Trial) -> Any:
    from bert.config import preset, shape_from_words

    config = shape_from_words(trial.shape) if trial.shape else preset(trial.preset)
    return config.replace(
        vocab_size=trial.vocab_size,
        hidden_dropout=trial.dropout,
        attention_dropout=trial.dropout,
        max_positions=max(config.max_positions, trial.seq_len),
    )


def _implementation(trial: Trial) -> Any:
    from bench.implementations import IMPLEMENTATIONS
    from common.registry import load

    implementation = load(IMPLEMENTATIONS, trial.implementation, "implementation")()
    implementation.check(trial)
    return implementation


def _training(trial: Trial, built: Any, batches: Iterator[Any], strategy: Any, precision: Any, observer: Any) -> Any:
    from bert.train import Training

    model = strategy.wrap(built.model, observer)
    return Training(
        model=model,
        optimizer=built.make_optimizer(model),
        compute_loss=built.compute_loss,
        batches=batches,
        strategy=strategy,
        precision=precision,
        grad_accum_steps=trial.grad_accum_steps,
    )


def _batches(trial: Trial, stream: Any, strategy: Any, implementation: Any) -> Iterator[Any]:
    from bench.feed import feed

    return feed(iter(stream), implementation.adapt, pinned=strategy.device.type == "cuda")


def _data_spec(trial: Trial, strategy: Any) -> Any:
    from bert.data.lengths import PADDINGS
    from bert.tasks.base import DataSpec

    return DataSpec(
        source=trial.data,
        seq_len=trial.seq_len,
        micro_batch_size=trial.micro_batch_size,
        max_predictions=trial.max_predictions,
        vocab_size=trial.vocab_size,
        seed=trial.seed,
        rank=strategy.rank,
        world_size=strategy.world_size,
        padding=trial.padding or PADDINGS[0],
    )


def _profiler_observers(directory: TrialDirectory, trial: Trial, rank: int) -> list[Any]:
    if trial.profiler is None:
        return []
    from bench.profilers import load_profiler
    from bench.profilers.base import Scope

    profiler = load_profiler(trial.profiler, trial.profiler_options)
    return [profiler.observer(Scope(trial=trial, directory=directory.profile), rank)]


def _take_share_of_cores(trial: Trial) -> None:
    """On a CPU a device is a rank with an equal share of the physical cores: keep this rank on its own ones."""
    if trial.device != "cpu" or not hasattr(os, "sched_setaffinity"):
        return
    from bench.devices import core_groups

    groups = core_groups()
    share = len(groups) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own = groups[int(os.environ.get("LOCAL_RANK", "0")) * share :][:share]
    if own:
        os.sched_setaffinity(0, {cpu for group in own for cpu in group})


def _limit_memory(trial: Trial) -> None:
    """Have memory beyond the limit refused, so that a trial runs out before the machine does.

    On a CPU the kernel refuses private memory, on a GPU the allocator device memory.
    """
    if trial.memory_limit_bytes is None:
        return
    if trial.device == "cuda":
        import torch

        device = int(os.environ.get("LOCAL_RANK", "0"))
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, trial.memory_limit_bytes / total), device)
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (trial.memory_limit_bytes, hard))


def _memory(device: Any) -> dict[str, Any]:
    if device.type == "cuda":
        import torch

        return {
            "peak_memory_bytes": int(torch.cuda.max_memory_allocated(device)),
            "peak_memory_kind": "device allocator",
            "peak_reserved_bytes": int(torch.cuda.max_memory_reserved(device)),
        }
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_memory_bytes": peak * unit, "peak_memory_kind": "resident set"}


def _torch_versions() -> dict[str, str | None]:
    import torch

    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "nccl": nccl,
    }


# What allocators say when memory is refused: torch's CPU allocator, CUDA and cuBLAS, the C++ runtime, oneDNN.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "bad_alloc",
    "bad allocation",
    "ALLOC_FAILED",
)


def _explain(error: Exception) -> tuple[str, str]:
    """Return the status and the reason of a failure."""
    import torch

    from bert.train import DivergenceError

    text = f"{type(error).__name__}: {error}" if not isinstance(error, BertbenchError) else str(error)
    text = text.strip()[:2000]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _OUT_OF_MEMORY):
        return "oom", text
    # The plain class is what the other ranks see of a rank's unexpected failure.
    expected = isinstance(error, BertbenchError) and type(error) is not BertbenchError
    if expected and not isinstance(error, StorageError | DivergenceError):
        return "refused", text
    return "crashed", text


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken process group must not hold the process, and taking torch apart costs half a second.
    os._exit(exit_code)
