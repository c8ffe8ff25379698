"""The parent of a trial's ranks: starts them, ends with them, writes down which of them failed and how."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.launch.world import AGENT_STORE_VARIABLE
from bench.run.processes import STOP_VARIABLE, die_with_parent, hold_stop_signals
from records.files import write_record

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
    die_with_parent(signal.SIGKILL)
    if STOP_VARIABLE in os.environ:
        hold_stop_signals()
    ranks, words = int(argv[1]), argv[2:]
    record = _one_rank(words) if ranks == 1 else _several_ranks(ranks, words)
    write_record(Path(argv[0]), record)
    return 1 if record["failures"] else 0


def _several_ranks(ranks: int, words: Sequence[str]) -> dict[str, Any]:
    from bench.launch.torchrun import ONE_NODE, run_torchrun

    began = time.perf_counter()
    importlib.import_module("torch.distributed.run")
    import_seconds = time.perf_counter() - began
    options = [*ONE_NODE, f"--nproc-per-node={ranks}", "--monitor-interval=0.1", "--max-restarts=0"]
    failures = [
        {"rank": rank, "exit_code": failure.exitcode, "time": failure.timestamp}
        for rank, failure in sorted(run_torchrun([*options, *words]).items())
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
