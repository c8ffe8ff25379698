"""What each rank runs, started by torchrun: one trial, whatever its kind. What goes wrong is written down."""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.run.out_of_memory import ran_out_of_memory
from bench.run.processes import STOP_VARIABLE, die_with_parent, listen_for_stop
from bench.run.resources import backend, limit_memory, take_share_of_cores, torch_versions, used_memory
from common.errors import BertbenchError, Code, StorageError
from records.files import write_record
from records.run import TrialDirectory
from records.trial import Trial

_START = time.perf_counter()

# Exit code of a rank that has written down why it stopped.
EXPLAINED = 3


def main(argv: list[str]) -> int:
    """Run the trial whose folder is argv[0]; what goes wrong is written there, for the harness to read."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    directory = TrialDirectory(Path(argv[0]))
    memory_limit: int | None = None
    try:
        should_stop = listen_for_stop() if STOP_VARIABLE in os.environ else None
        trial = directory.read_trial()
        memory_limit = trial.memory_limit_bytes
        run_rank(directory, trial, should_stop)
    except Exception as error:
        status, reason, code = _explain(error, memory_limit)
        if status == "crashed" and not isinstance(error, BertbenchError):
            sys.excepthook(*sys.exc_info())
        failure = {"status": status, "code": code, "reason": reason, "time": time.time()}
        try:
            write_record(directory.failure_json(int(os.environ.get("RANK", "0"))), failure)
        except StorageError as full:
            sys.stderr.write(f"{full}\n")
        return EXPLAINED
    return 0


class Rank:
    """One rank of a trial, which has joined the others, and the seconds that each part of its work takes."""

    def __init__(self, directory: TrialDirectory, trial: Trial) -> None:
        self.directory, self.trial = directory, trial
        take_share_of_cores(trial)
        began = time.perf_counter()
        import torch
        import torch._dynamo  # the first optimizer of a process loads it, which would otherwise look like our set-up

        self.seconds = {"before_torch": began - _START, "import_torch": time.perf_counter() - began}
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
        from bert.parallel.options import make_strategy

        limit_memory(trial)
        torch.manual_seed(trial.seed)
        self.strategy = make_strategy(trial.strategy, trial.strategy_options)
        self.strategy.setup(trial.device)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long a part of the work takes."""
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began

    def end(self) -> None:
        """Note that all of the work is done."""
        self.seconds["total"] = time.perf_counter() - _START

    def write(self, measured: dict[str, Any]) -> None:
        """Write this rank's record: what was measured, and what holds of every rank."""
        import torch

        rank = self.strategy.rank
        common = {"seconds": self.seconds, "threads": torch.get_num_threads(), "torch": torch_versions()}
        write_record(self.directory.rank_json(rank), {"rank": rank, **measured, **common})


def run_rank(directory: TrialDirectory, trial: Trial, should_stop: Callable[[], bool] | None = None) -> None:
    """Do one rank's part of a trial and write its records; with `should_stop` it is one of kind train."""
    rank = Rank(directory, trial)
    if should_stop is not None:
        _train(rank, should_stop)
    elif trial.kind == "comm":
        from bench.run.collectives import measure

        measure(directory, trial, rank.strategy, {"seconds": rank.seconds, "torch": torch_versions()})
    else:
        from bench.run.measure import measure_steps

        measure_steps(rank)
    rank.strategy.barrier()  # until every rank has written its records
    rank.strategy.teardown()


def _train(rank: Rank, should_stop: Callable[[], bool]) -> None:
    from bench.run.train_worker import run_attempt

    with rank.timed("train"):
        attempt = run_attempt(rank.directory, rank.trial, rank.strategy, should_stop)
    rank.end()
    unknown = dict.fromkeys(("mfu", "measured_peak_flops"), "a training run measures no peak")
    rank.write({**attempt, **used_memory(rank.strategy.device), "backend": backend(), "unknown": unknown})


def _explain(error: Exception, memory_limit_bytes: int | None = None) -> tuple[str, str, Code]:
    expected = isinstance(error, BertbenchError)
    code: Code = error.code if isinstance(error, BertbenchError) else "rank-failed"
    text = (str(error) if expected else f"{type(error).__name__}: {error}").strip()[:2000]
    if ran_out_of_memory(error):
        text = text.removesuffix(":")
        if memory_limit_bytes is not None:
            text = f"more than the {memory_limit_bytes / 2**30:.3g} GiB a rank may use (--memory-limit-gib): {text}"
        return "oom", text, "out-of-memory"
    from bert.train.loop import DivergenceError  # torch, for which there may be no memory

    if isinstance(error, StorageError):
        return "interrupted", text, code  # with more space the same command makes it again
    # The plain class is what the other ranks see of a rank's unexpected failure.
    if expected and type(error) is not BertbenchError and not isinstance(error, DivergenceError):
        return "refused", text, code
    return "crashed", text, code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken process group must not hold the process, and an orderly exit of torch takes half a second.
    os._exit(exit_code)
