"""What each rank runs, started by torchrun: one trial, whatever its kind. What goes wrong is written down."""

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.run.processes import die_with_parent, listen_for_stop
from bench.run.resources import limit_memory, ran_out_of_memory, take_share_of_cores, torch_versions
from common.errors import BertbenchError, Code, StorageError
from records.files import write_record
from records.run import TrialDirectory
from records.trial import Trial


def main(argv: list[str]) -> int:
    """Run the trial whose folder is argv[0]; what goes wrong is written there, for the harness to read: then 3."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    directory = TrialDirectory(Path(argv[0]))
    trial: Trial | None = None
    try:
        trial = directory.read_trial()
        run_rank(directory, trial)
    except Exception as error:
        status, reason, code = _explain(error, None if trial is None else trial.memory_limit_bytes)
        if status == "crashed" and not isinstance(error, BertbenchError):
            sys.excepthook(*sys.exc_info())
        failure = {"status": status, "code": code, "reason": reason, "time": time.time()}
        try:
            write_record(directory.failure_json(int(os.environ.get("RANK", "0"))), failure)
        except StorageError as full:
            sys.stderr.write(f"{full}\n")
        return 3
    return 0


def run_rank(directory: TrialDirectory, trial: Trial) -> None:
    """Do one rank's part of a trial and write its records."""
    should_stop = listen_for_stop() if trial.kind == "train" else None
    take_share_of_cores(trial)
    import torch
    import torch._dynamo  # the first optimizer of a process loads it, which would otherwise look like our set-up

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    from bert.parallel import make_strategy

    limit_memory(trial)
    torch.manual_seed(trial.seed)
    strategy = make_strategy(trial.strategy, trial.strategy_options)
    strategy.setup(trial.device)
    record: dict[str, Any] | None
    if should_stop is not None:
        from bench.run.train_worker import run_attempt

        record = run_attempt(directory, trial, strategy, should_stop)
    elif trial.kind == "comm":
        from bench.run.collectives import measure_collectives

        record = measure_collectives(directory, trial, strategy)
    else:
        from bench.run.measure import measure_steps

        record = measure_steps(directory, trial, strategy)
    if record is not None:
        about = {"threads": torch.get_num_threads(), "torch": torch_versions()}
        write_record(directory.rank_json(strategy.rank), {"rank": strategy.rank, **record, **about})
    strategy.teardown()  # waits until every rank has written its records


def _explain(error: Exception, memory_limit_bytes: int | None = None) -> tuple[str, str, Code]:
    """Return status, reason and code of a failure."""
    expected = isinstance(error, BertbenchError)
    code: Code = error.code if isinstance(error, BertbenchError) else "rank-failed"
    text = (str(error) if expected else f"{type(error).__name__}: {error}").strip().removesuffix(":")[:2000]
    if ran_out_of_memory(error):
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
