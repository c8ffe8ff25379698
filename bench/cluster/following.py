"""What the other ranks than 0 do in a training whose world others started: wait for rank 0's word, then train."""

import os
import socket
import sys
import time
from pathlib import Path

from bench.cluster.world import Notice, World
from bench.machine.devices import Devices
from bench.run import worker
from bench.run.launch import rank_variables
from bench.run.processes import STOP_VARIABLE
from common.atomic import storage_errors
from common.errors import StorageError
from records.run import TrialDirectory

# How long a folder that rank 0 has made may take to show on other nodes.
_SHARED_FOLDER_SECONDS = 30.0


def follow(world: World, devices: Devices) -> int:
    """Be another rank than 0 of a training: do what rank 0 says, and return the exit code of this rank.

    Raises:
        StorageError: the run directory is not there on this node.
        BertbenchError: rank 0 says nothing.
    """
    told = Notice(world).hear()
    if "directory" not in told:
        return int(told["end"])
    directory = TrialDirectory(Path(told["directory"]))
    deadline = time.monotonic() + _SHARED_FOLDER_SECONDS
    while not directory.trial_json.exists():
        if time.monotonic() >= deadline:
            raise StorageError(
                "folder-not-shared",
                f"rank {world.rank} on {socket.gethostname()} does not see {directory.path}, where rank 0 writes: give "
                "--out in a folder that all nodes share, under the same path",
            )
        list(directory.path.parent.glob("*"))  # a network file system then looks anew
        time.sleep(0.1)
    threads = told["threads"] or world.threads(devices.cpu_cores)
    os.environ |= {**rank_variables(threads, None), STOP_VARIABLE: "1"}
    _write_to(directory.path / f"log-{world.rank}.txt")
    return worker.main([str(directory.path)])


def _write_to(path: Path) -> None:
    """Let what this rank and its libraries print go to a file: many ranks would drown what rank 0 says."""
    with storage_errors(path), path.open("ab") as log:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
