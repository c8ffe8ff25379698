"""Measure and train inside a world of ranks that torchrun, a scheduler or `bertbench launch` has started.

This is how several nodes are measured: every process of the world runs the same command. There is no harness around the
ranks; their launcher handles crashes and hangs.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.cluster.world import Notice, World
from bench.machine.devices import Devices
from bench.machine.environment import bounded_spin, capture
from bench.plan.sweep import locked, record_request, write_results
from bench.run import worker
from bench.run.launch import LaunchOptions, finish, rank_variables
from bench.run.processes import STOP_VARIABLE
from common.atomic import storage_errors
from common.errors import StorageError
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

# Seconds until a folder made by rank 0 must be visible on other nodes.
_SHARED_FOLDER_SECONDS = 30.0


def run_trial_inside(
    run: RunDirectory,
    trial: Trial,
    request: Mapping[str, Any],
    devices: Devices,
    world: World,
    options: LaunchOptions,
) -> dict[str, Any] | None:
    """Run one throughput trial in this process, which is a rank of the world.

    Every rank writes its own records. If nodes share no folder, each has a part of the run directory.

    Returns:
        The result on rank 0, None on the others.
    """
    directory = run.trial(trial.trial_id)
    with nullcontext() if world.rank else locked(run):
        with storage_errors(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
            if world.rank == 0:  # of an earlier call, whose step records the ranks are about to replace
                directory.result_json.unlink(missing_ok=True)
        if world.local_rank == 0:
            _prepare(directory, trial, devices)
        # torchrun sets 1 by default; ranks get an equal share of their node, as in trials of one node.
        threads = trial.threads_per_rank or max(1, devices.cpu_cores // world.local_world_size)
        os.environ |= {"OMP_NUM_THREADS": str(threads), **bounded_spin()}
        worker.run_rank(directory, trial)  # its last barrier follows the records of all ranks
        if world.rank:
            return None
        result = finish(trial, directory, "ok", "", options)
        record_request(run, [trial], request)
        write_results(run)
        return result


def _prepare(directory: TrialDirectory, trial: Trial, devices: Devices) -> None:
    unavailable = {"telemetry": "ranks started by another launcher have no harness to read sensors"}
    write_record(directory.env_json, {**capture(devices), "telemetry_unavailable": unavailable})
    write_record(directory.trial_json, trial.to_json())


def follow(world: World, devices: Devices) -> int:
    """Run as a rank other than 0 of a training, as rank 0 directs; return the exit code of this rank."""
    told = Notice(world).hear()
    if "directory" not in told:
        return int(told["end"])
    directory = TrialDirectory(Path(told["directory"]))
    deadline = time.monotonic() + _SHARED_FOLDER_SECONDS
    while not directory.trial_json.exists():
        if time.monotonic() >= deadline:
            raise StorageError(
                "folder-not-shared",
                f"rank {world.rank} on {socket.gethostname()} cannot see {directory.path} of rank 0: give an --out in "
                "a folder that all nodes share under the same path",
            )
        list(directory.path.parent.glob("*"))  # makes a network file system refresh its cache
        time.sleep(0.1)
    threads = told["threads"] or world.threads(devices.cpu_cores)
    os.environ |= {**rank_variables(threads, None), STOP_VARIABLE: "1"}
    _write_to(directory.path / f"log-{world.rank}.txt")
    return worker.main([str(directory.path)])


def _write_to(path: Path) -> None:
    """Redirect the output of this rank and its libraries to a file, so that rank 0 stays readable."""
    with storage_errors(path), path.open("ab") as log:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
