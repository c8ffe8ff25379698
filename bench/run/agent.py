"""The parent of a trial's ranks: starts them, ends with them, writes down which of them failed and how."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cluster.world import AGENT_STORE_VARIABLE
from bench.run.processes import STOP_VARIABLE, TRIAL_FOLDER, die_with_parent, hold_stop_signals, own_folder
from records.files import write_record

# Several ranks on this host, whose store may have any free port.
_TORCHRUN = (
    "--nnodes=1",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0",
    "--local-addr=127.0.0.1",
    "--monitor-interval=0.1",
    "--max-restarts=0",
)
# What torchrun tells a rank that is the only one. Its store may have any free port, since nobody else connects.
_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    AGENT_STORE_VARIABLE: "False",  # torchrun's store, where the harness itself runs in one, is not for this rank
}


def main(argv: list[str]) -> int:
    """Run Python with the words argv[2:] as argv[1] ranks; write the exit codes of those that fail to argv[0]."""
    ranks, words = int(argv[1]), argv[2:]
    if ranks == 1:
        return supervise(Path(argv[0]), lambda: _one_rank(words))
    return supervise(Path(argv[0]), lambda: torchrun([f"--nproc-per-node={ranks}", *_TORCHRUN, *words]))


def supervise(failures_path: Path, run_ranks: Callable[[], dict[str, Any]]) -> int:
    """Write the record that `run_ranks` returns; die with the parent meanwhile. Return 1 if ranks failed, else 0."""
    die_with_parent(signal.SIGKILL)
    if STOP_VARIABLE in os.environ:
        hold_stop_signals()
    record = run_ranks()
    write_record(failures_path, record)
    return 1 if record["failures"] else 0


def torchrun(words: list[str]) -> dict[str, Any]:
    """Run torchrun with these words; return `failures` by rank and the seconds of its imports."""
    began = time.perf_counter()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    import_seconds = time.perf_counter() - began
    failures = []
    try:
        with own_folder(TRIAL_FOLDER) as folder:
            wanted = parse_args(words)
            wanted.log_dir = wanted.log_dir or str(folder)  # torchrun would leave an empty one behind
            run(wanted)
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exit_code": failure.exitcode, "time": failure.timestamp}
            for rank, failure in sorted(error.failures.items())
        ]
    return {"failures": failures, "import_seconds": import_seconds}


def _one_rank(words: list[str]) -> dict[str, Any]:
    """Run the only rank without torchrun, which would import torch too and take as long for it as the rank does."""
    exit_code = subprocess.call([sys.executable, "-u", *words], env=os.environ | _ALONE)
    failure = {"rank": 0, "exit_code": exit_code, "time": time.time()}
    return {"failures": [failure] if exit_code else [], "import_seconds": 0.0}


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # an orderly exit of torch takes half a second per trial
