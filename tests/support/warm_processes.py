"""Processes that begin where torch is imported already, which takes a fresh interpreter seconds of its core.

They are forked from a process that has imported and done nothing else: no threads, no process group, no CUDA.
"""

import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# The first optimizer of a process loads torch._dynamo; the program that started this one is imported as __mp_main__.
IMPORTED = (
    "pytest", "torch", "torch._dynamo", "torch.nn.parallel", "bert.train.run", "bert.parallel",
    "bert.parallel.ddp", "bert.parallel.fsdp", "bert.tasks.pretrain.task", "bert.tasks.squad.task",
)  # fmt: skip


def start_world(work: Callable[..., int], *arguments: Any, ranks: int, place: Path) -> list[BaseProcess]:
    """Start `work` in one process per rank, with torchrun's environment; what they print goes to place/errors-RANK.txt.

    Each ends with the exit code that `work` returns, and at the latest with this process.
    """
    place.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    processes: list[BaseProcess] = []
    for rank in range(ranks):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        output = place / f"errors-{rank}.txt"
        output.write_bytes(b"")
        given = (work, arguments, environment, str(output))
        processes.append(context.Process(target=_begin, args=given, daemon=True))
        processes[-1].start()
    return processes


def wait(processes: list[BaseProcess], place: Path, seconds: float = 280) -> list[int]:
    """Wait for all ranks; return their exit codes."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.1, end - time.monotonic()))
    codes = [process.exitcode for process in processes if process.exitcode is not None]
    if len(codes) < len(processes):
        kill(processes)
        raise AssertionError("".join(path.read_text() for path in place.glob("errors-*.txt")))
    return codes


def kill(processes: list[BaseProcess]) -> None:
    """End all ranks as kill -9 does."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _begin(work: Callable[..., int], arguments: tuple[Any, ...], environment: dict[str, str], output: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.clear()
    os.environ.update(environment)
    try:
        code = work(*arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # As bench.run.worker does: gloo's threads can abort a process whose interpreter is taken apart (pytorch #179291).
    os._exit(code)
