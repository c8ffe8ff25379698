"""Measuring inside a world of ranks that torchrun, a scheduler or `bertbench launch` has already started.

This is how several nodes are measured: every process of the world runs the same command. There is no harness around the
ranks then: what a crash or a hang ends in is up to what launched them.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NoReturn

from bench.cluster.world import World
from bench.machine.devices import Devices
from bench.machine.environment import capture
from bench.plan.sweep import locked, record_request, write_results
from bench.run.launch import LaunchOptions, finish
from common.atomic import storage_errors
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial


def run_trial_inside(
    run: RunDirectory,
    trial: Trial,
    request: Mapping[str, Any],
    devices: Devices,
    world: World,
    options: LaunchOptions,
) -> dict[str, Any] | None:
    """Run one throughput trial in this very process, one of the world's ranks.

    Every rank writes its own records. Where nodes share no folder, each has a part of the run directory, and
    `bertbench collect` puts the parts together.

    Returns:
        The result on rank 0, None on the others.

    Raises:
        LockedError: another sweep uses the run directory; said by rank 0, for which the others wait.
        StorageError: the run directory cannot be written.
        BertbenchError: what the trial refuses.
    """
    from bench.run.worker import run_rank

    directory = run.trial(trial.trial_id)
    with nullcontext() if world.rank else locked(run):
        with storage_errors(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
        if world.local_rank == 0:
            _prepare(directory, trial, devices)
        # torchrun says 1 where nobody said anything: ranks have an equal share of their node, as in trials of one node.
        threads = trial.threads_per_rank or max(1, devices.cpu_cores // world.local_world_size)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        run_rank(directory, trial, world.rank)  # its last barrier comes after every rank has written its records
        if world.rank:
            return None
        result = finish(trial, directory, "ok", "", options)
        record_request(run, [trial], request)
        write_results(run)
        return result


def _prepare(directory: TrialDirectory, trial: Trial, devices: Devices) -> None:
    unavailable = {"telemetry": "ranks that another launcher started have no harness that reads sensors"}
    write_record(directory.env_json, {**capture(devices), "telemetry_unavailable": unavailable})
    write_record(directory.trial_json, trial.to_json())


def end_process(code: int) -> NoReturn:
    """End a rank at once: threads of a process group that is gone must neither hold it nor abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
