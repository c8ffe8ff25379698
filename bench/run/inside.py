"""Measure and train in the ranks that torchrun, `bertbench launch` or a batch system started.

This is how several nodes are measured: every rank runs the same command. No harness surrounds the ranks; their launcher
handles crashes and hangs.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.launch.torchrun import import_torch
from bench.launch.world import AGENT_STORE_VARIABLE, World
from bench.machine.devices import Devices
from bench.machine.environment import bounded_spin, capture
from bench.run import worker
from bench.run.processes import STOP_SIGNALS
from bench.run.supervise import LaunchOptions, finish, rank_variables
from bench.sweep.sweep import locked, record_request, write_results
from common.atomic import storage_errors
from common.errors import BertbenchError, StorageError, first_line
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

# Seconds until a folder made by rank 0 must be visible on other nodes.
_SHARED_FOLDER_SECONDS = 30.0
# For rank 0 to say what to train.
_ORDER_TIMEOUT = timedelta(minutes=10)
_ORDER_KEY = "train"


def run_inside(
    run: RunDirectory,
    trials: Sequence[Trial],
    request: Mapping[str, Any],
    devices: Devices,
    world: World,
    options: LaunchOptions,
) -> list[dict[str, Any]]:
    """Run trials in this process, which is a rank of the world; return the results on rank 0, nothing on the others.

    Every rank writes its own records. If nodes share no folder, each has a part of the run directory.
    """
    results = []
    with contextlib.nullcontext() if world.rank else locked(run):
        for trial in trials:
            directory = run.trial(trial.trial_id)
            with storage_errors(directory.path):
                directory.path.mkdir(parents=True, exist_ok=True)
                if world.rank == 0:  # of an earlier call, whose step records the ranks are about to replace
                    directory.result_json.unlink(missing_ok=True)
            if world.local_rank == 0:
                unavailable = {"telemetry": "ranks started by another launcher have no harness to read sensors"}
                write_record(directory.env_json, {**capture(devices), "telemetry_unavailable": unavailable})
                write_record(directory.trial_json, trial.to_json())
            # torchrun sets 1 by default; ranks get an equal share of their node, as in trials of one node.
            threads = trial.threads_per_rank or max(1, devices.cpu_cores // world.local_world_size)
            os.environ |= {"OMP_NUM_THREADS": str(threads), **bounded_spin()}
            worker.run_rank(directory, trial)  # its last barrier follows the records of all ranks
            if world.rank == 0:
                results.append(finish(trial, directory, "ok", "", options))
        if world.rank == 0:
            record_request(run, trials, request)
            write_results(run)
    return results


class Leader:
    """Rank 0 of a world, which tells the waiting ranks what to train; they fail when this process ends before."""

    def __init__(self, world: World) -> None:
        self.world = world
        # Rank 0 may host it, so it lives as long as this process.
        self._store = _store_of_ranks(world) if world.world_size > 1 else None

    def order(self, **content: Any) -> None:
        """Tell the others."""
        if self._store is not None:
            self._store.set(_ORDER_KEY, json.dumps(content))


def follow(world: World, devices: Devices) -> int:
    """Train as a rank other than 0, as rank 0 directs; return the exit code of this rank."""
    for number in STOP_SIGNALS:  # until the rank listens: Python's own handlers wait for the end of a call of the store
        signal.signal(number, signal.SIG_DFL)
    try:
        order: dict[str, Any] = json.loads(_store_of_ranks(world).get(_ORDER_KEY))
    except RuntimeError as error:
        raise BertbenchError("rank-failed", f"rank 0 did not say what to train: {first_line(error)}") from error
    directory = TrialDirectory(Path(order["directory"]))
    deadline = time.monotonic() + _SHARED_FOLDER_SECONDS
    while not directory.trial_json.exists():
        if time.monotonic() >= deadline:
            where = f"rank {world.rank} on {socket.gethostname()} cannot see {directory.path} of rank 0"
            raise StorageError("nodes-disagree", f"{where}: give an --out in a folder that all nodes share")
        list(directory.path.parent.glob("*"))  # makes a network file system refresh its cache
        time.sleep(0.1)
    os.environ |= rank_variables(order["threads"] or world.threads(devices.cpu_cores), None)
    path = directory.path / f"log-{world.rank}.txt"
    with storage_errors(path), path.open("ab") as log:  # output of libraries, too, so that rank 0 stays readable
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    return worker.main([str(directory.path)])


def _store_of_ranks(world: World) -> Any:
    """Connect to the store of the ranks, which rank 0 hosts where torchrun does not."""
    import_torch()
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    hosts = world.rank == 0 and os.environ.get(AGENT_STORE_VARIABLE) != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:  # The process group uses the same store, since no other process can have its port.
        store = TCPStore(address, port, is_master=hosts, timeout=_ORDER_TIMEOUT, wait_for_workers=False)
    except RuntimeError as error:
        text = f"rank {world.rank} cannot reach the store at {address}:{port}: {first_line(error)}"
        raise BertbenchError("node-unreachable", text) from error
    os.environ[AGENT_STORE_VARIABLE] = "True"
    return PrefixStore(f"bertbench/{os.environ.setdefault('TORCHELASTIC_RESTART_COUNT', '0')}", store)
