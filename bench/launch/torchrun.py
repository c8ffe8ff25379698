"""torchrun on one node: its command line, its environment, and the process that runs it and records how it ended."""

import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.machine.devices import Devices, bounded_spin
from bench.run.processes import STOP_SIGNALS, descendants, die_with_parent, end_in_words, send
from common.atomic import write_text
from common.errors import UsageError, first_line
from common.tools import find_tool

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

ONE_NODE = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")
"""Options of torchrun on one node: its store has any free port, since nobody else connects."""
GRACE_SECONDS = 8.0
"""Seconds that ranks have to end after another one failed, before they are killed."""
LOST, KILLED, FAILED, STOPPED, OK = range(5)
"""Kinds of endings; of several, the first is the cause of the others."""


class Ending(msgspec.Struct, frozen=True):
    """How the ranks of one node ended."""

    kind: int
    text: str = ""
    """Of the rank that failed first."""
    time: float = 0.0
    """When, as Unix time in s by the clock of the node."""


def command_of_rank(command: Sequence[str], module: bool, no_python: bool) -> tuple[str, ...]:
    """Return the command line of a rank. Raises UsageError if this node does not have the program."""
    if module:
        return (sys.executable, "-u", "-m", *command)
    if no_python:
        return (str(find_tool(command[0], "give its path").absolute()), *command[1:])
    if command[0] == "bertbench":
        return (sys.executable, "-u", "-P", "-m", "bench.cli.main", *command[1:])
    if not Path(command[0]).is_file():
        problem = f"Python script {command[0]!r} is not on this node: give its path, or --no-python for another program"
        raise UsageError("path-missing", problem)
    return (sys.executable, "-u", *command)


def environment(devices: Devices, here: int) -> dict[str, str]:
    """Return the environment of torchrun with `here` ranks on these devices."""
    threads = str(max(1, devices.cpu_cores // here))
    visible = devices.environment(here) if devices.kind == "cuda" else {}
    return {"OMP_NUM_THREADS": threads, **bounded_spin(), **os.environ, **visible}


def command(words: Sequence[str], record: Path) -> list[str]:
    """Return the command that runs torchrun with these words and writes an Ending to `record`."""
    options = ("--monitor-interval=0.1", "--signals-to-handle=SIGHUP")
    return [sys.executable, "-P", "-m", "bench.launch.torchrun", str(record), *options, *words]


def import_torch() -> None:
    """Import torch.distributed without its reports of lost connections and failed ranks: ours are one line."""
    level = os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ["TORCH_CPP_LOG_LEVEL"] = level or "FATAL"
    importlib.import_module("torch.distributed")  # reads the variable
    logging.disable()
    if level is None:
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # not for the ranks


def _ending(rank: int, failure: "ProcessFailure", failed_at: Mapping[int, float]) -> Ending:
    code = failure.exitcode
    kind = FAILED if code > 0 else STOPPED if -code in STOP_SIGNALS else KILLED
    error = failure.error_file_data.get("message")
    reason = str(error["message"]).splitlines()[:1] if isinstance(error, dict) else []  # of a rank that uses @record
    when = failed_at.get(failure.pid, failure.timestamp)  # torchrun notes whole seconds
    return Ending(kind, ": ".join([f"rank {rank} {end_in_words(code)}", *reason]), when)


def _watch_ranks(failed_at: dict[int, float]) -> None:
    """Note when the first rank fails, by its process id, since torchrun waits 30 s for the others; then kill those."""
    while not failed_at:
        time.sleep(0.02)
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # torchrun reaps it
        except ChildProcessError:
            continue
        if child is not None and child.si_status:
            failed_at[child.si_pid] = time.time()
    time.sleep(GRACE_SECONDS)
    send(descendants(os.getpid()), signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Run torchrun with the words argv[1:]; write its Ending to argv[0]."""
    die_with_parent(signal.SIGHUP)  # torchrun then ends the ranks
    for number in STOP_SIGNALS:  # of a batch system, which signals every process; the launcher passes them to the ranks
        signal.signal(number, lambda *_: None)
    import_torch()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    failed_at: dict[int, float] = {}
    threading.Thread(target=_watch_ranks, args=(failed_at,), daemon=True).start()
    record = Path(argv[0])
    try:
        run(parse_args([f"--log-dir={record.with_name('torchrun')}", *argv[1:]]))
        ending = Ending(OK)
    except ChildFailedError as error:
        # The others were ended because of the first.
        failures = error.failures
        first = min(failures, key=lambda rank: failed_at.get(failures[rank].pid, time.time()))
        ending = _ending(first, failures[first], failed_at)
    except Exception as error:
        ending = Ending(STOPPED, f"torchrun failed: {first_line(error)}", time.time())
    write_text(record, msgspec.json.encode(ending).decode())
    return int(ending.kind != OK)


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # threads of the store must not keep the process alive
