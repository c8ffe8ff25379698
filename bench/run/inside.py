"""Trials in the ranks that torchrun, `bertbench launch` or a batch system started: every rank runs the same command.

Rank 0 runs it as on one machine, and a process of its own joins the world for each trial; the other ranks follow it.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from bench.launch.torchrun import import_torch
from bench.launch.world import AGENT_STORE_VARIABLE, World
from bench.machine.devices import Devices, bounded_spin
from bench.run import worker
from bench.run.processes import STOP_SIGNALS
from bert.parallel import JOIN_TIMEOUT_VARIABLE
from common.atomic import storage_errors
from common.errors import BertbenchError, StorageError, first_line
from records.run import TrialDirectory
from records.trial import Trial

# Seconds until a folder made by rank 0 must be visible on other nodes.
_SHARED_FOLDER_SECONDS = 30.0
# For rank 0 to say what to run.
_ORDER_TIMEOUT = timedelta(minutes=10)
# Without a limit on a trial, how long a rank waits for the others, such as for one that writes a checkpoint.
_LONGEST_WAIT_SECONDS = 3600


def rank_variables(threads: int, timeout_seconds: float | None) -> dict[str, str]:
    """Return the environment variables of every rank, however it is started."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **bounded_spin(),
        # The limit on the trial decides what a hang is, not the process group's own, which would look like a crash.
        JOIN_TIMEOUT_VARIABLE: str(int(timeout_seconds or _LONGEST_WAIT_SECONDS) + 60),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


class Leader:
    """Rank 0 of a world: it tells the waiting ranks what to run, and to exit at the end of a `with` block."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._store = _store_of_ranks(world)  # rank 0 may host it, so it lives as long as this process
        self._orders = 0

    def begin(self, directory: TrialDirectory, trial: Trial) -> dict[str, str]:
        """Have the other ranks join a trial; return the environment variables with which rank 0 joins it."""
        with socket.create_server(("", 0)) as server:
            port = str(server.getsockname()[1])
        # Rank 0 hosts a store of its own for each trial, so that none has old keys.
        meeting = {"MASTER_PORT": port, AGENT_STORE_VARIABLE: "False"}
        self._order(directory=str(directory.path), threads=trial.threads_per_rank, meeting=meeting)
        return meeting

    def _order(self, **content: Any) -> None:
        self._store.set(str(self._orders), json.dumps(content))
        self._orders += 1

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with contextlib.suppress(RuntimeError):  # the host of the store has ended
            self._order(end=2 if kind else 0)


def follow(world: World, devices: Devices) -> int:
    """Run the trials that rank 0 runs as another rank; return the exit code of this rank."""
    for one in STOP_SIGNALS:  # until the rank listens: Python's own handlers wait for the end of a call of the store
        signal.signal(one, signal.SIG_DFL)
    store = _store_of_ranks(world)
    for number in itertools.count():
        try:
            order: dict[str, Any] = json.loads(store.get(str(number)))
        except RuntimeError as error:
            if number:
                return 0  # rank 0, whose exit code counts, has ended after a trial
            raise BertbenchError("rank-failed", f"rank 0 did not say what to run: {first_line(error)}") from error
        if "directory" not in order:
            return int(order["end"])
        directory = TrialDirectory(Path(order["directory"]))
        deadline = time.monotonic() + _SHARED_FOLDER_SECONDS
        while not directory.trial_json.exists():
            if time.monotonic() >= deadline:
                where = f"rank {world.rank} on {socket.gethostname()} cannot see {directory.path} of rank 0"
                raise StorageError("nodes-disagree", f"{where}: give an --out in a folder that all nodes share")
            list(directory.path.parent.glob("*"))  # makes a network file system refresh its cache
            time.sleep(0.1)
        threads = order["threads"] or world.threads(devices.cpu_cores)
        path = directory.path / f"log-{world.rank}.txt"
        with storage_errors(path), path.open("ab") as log:  # output of libraries, too, so that rank 0 stays readable
            code = _join(directory, {**rank_variables(threads, None), **order["meeting"]}, log)
        if code:
            return code
    raise AssertionError


def _join(directory: TrialDirectory, variables: dict[str, str], log: IO[bytes]) -> int:
    """Run this rank of a trial and return its exit code."""
    if directory.read_trial().kind != "train":  # the next one must not have the memory and cores that this one leaves
        return subprocess.run(
            [sys.executable, "-u", "-m", "bench.run.worker", str(directory.path)],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
        ).returncode  # fmt: skip
    os.environ |= variables
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log.fileno(), stream.fileno())
    return worker.main([str(directory.path)])  # in this process, which the launcher asks to stop


def _store_of_ranks(world: World) -> Any:
    """Connect to the store of the ranks, which rank 0 hosts where torchrun does not."""
    import_torch()
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    hosts = world.rank == 0 and os.environ.get(AGENT_STORE_VARIABLE) != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = TCPStore(address, port, is_master=hosts, timeout=_ORDER_TIMEOUT, wait_for_workers=False)
    except RuntimeError as error:
        text = f"rank {world.rank} cannot reach the store at {address}:{port}: {first_line(error)}"
        raise BertbenchError("node-unreachable", text) from error
    return PrefixStore(f"bertbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
